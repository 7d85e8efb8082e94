"""A model that Unsloth loads, with its kernels, its adapters and its checkpointing.

Unsloth changes transformers, peft and TRL when it is imported, so it comes first and its jobs have
a new interpreter. It loads only from a folder or the hub, so synthetic weights are a checkpoint
without data: a file has a header and then a hole, so it takes no place on the disk, and its
weights read as zero. Read from Unsloth 2026.10.
"""

from __future__ import annotations

import atexit
import gc
import importlib
import json
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from oomdoctor.records.configuration.adapters import lora_settings
from oomdoctor.records.configuration.config import TrainConfig
from oomdoctor.records.configuration.faults import UNSLOTH_CHECKPOINTING
from oomdoctor.system.environment import set_variables, variable
from oomdoctor.worker.protocol import refused
from oomdoctor.worker.training.setup import Setup
from oomdoctor.worker.training.synthetic import Blueprint, declare_model, dtype_keyword
from oomdoctor.worker.training.trl import tokenizer_of

if TYPE_CHECKING:
    from transformers import PreTrainedModel

_SHARD_BYTES = 2 << 30
_NAMES = {"bfloat16": "BF16", "float16": "F16", "float32": "F32"}


def import_unsloth() -> None:
    """Import it before what it changes. What it compiles goes to a scratch folder.

    Raises:
        UnsupportedError: it cannot be imported here.
    """
    if variable("UNSLOTH_COMPILE_LOCATION") is None:
        scratch = tempfile.mkdtemp(prefix="oomdoctor-unsloth-")
        atexit.register(shutil.rmtree, scratch, ignore_errors=True)
        set_variables({"UNSLOTH_COMPILE_LOCATION": scratch})
    if variable("UNSLOTH_DISABLE_STATISTICS") is None:
        set_variables({"UNSLOTH_DISABLE_STATISTICS": "1"})  # a rung is no training of theirs
    # It raises whatever it meets, also for versions that do not fit.
    gc.disable()  # collecting garbage meanwhile takes a fifth of the time
    try:
        with refused("Unsloth cannot be imported", Exception, one_line=True):
            importlib.import_module("unsloth")
    finally:
        gc.enable()


def load_model(setup: Setup) -> PreTrainedModel:
    """The model from `FastLanguageModel.from_pretrained`.

    Raises:
        UnsupportedError: Unsloth does not take this model.
    """
    job, config, spec = setup.job, setup.config, setup.job.model
    settings: dict[str, object] = {
        "max_seq_length": config.sequence_length,
        "dtype": getattr(torch, config.weights_dtype),
        "load_in_4bit": config.quantization == "nf4",
        "load_in_8bit": config.quantization == "int8",
        "full_finetuning": config.method == "full",
        "use_gradient_checkpointing": UNSLOTH_CHECKPOINTING[config.activation_checkpointing],
        "trust_remote_code": spec.trust_remote_code,
        "device_map": {"": str(setup.device)},
        "offload_embedding": False,
    }
    if job.weights == "pretrained":
        if spec.source == "local":
            return _loaded(str(spec.path), settings)
        return _loaded(spec.id, settings | {"revision": spec.revision})
    with tempfile.TemporaryDirectory(prefix="oomdoctor-") as folder:
        # Only names and shapes are read, so any attention will do.
        write_checkpoint(Path(folder), Blueprint(job, setup.model_config, "eager"))
        setup.notes.append("Unsloth loaded a checkpoint without data, so all weights are zero")
        return _loaded(folder, settings | {"local_files_only": True})


def _loaded(name: str, settings: dict[str, object]) -> PreTrainedModel:
    unsloth = importlib.import_module("unsloth")
    kinds = (NotImplementedError, ValueError, ImportError)
    with refused("Unsloth cannot load this model", *kinds, one_line=True):
        return unsloth.FastLanguageModel.from_pretrained(name, **settings)[0]


def add_adapter(setup: Setup) -> None:
    """Add adapters with `FastLanguageModel.get_peft_model`.

    Raises:
        UnsupportedError: Unsloth does not take these adapters.
    """
    config = setup.config
    settings = lora_settings(config, "use_rslora")
    checkpointing = UNSLOTH_CHECKPOINTING[config.activation_checkpointing]
    settings["use_gradient_checkpointing"] = checkpointing
    unsloth = importlib.import_module("unsloth")
    kinds = (NotImplementedError, ValueError, TypeError)
    with refused("Unsloth cannot add these adapters", *kinds, one_line=True):
        setup.model = unsloth.FastLanguageModel.get_peft_model(setup.model, **settings)


def autocast_dtype(config: TrainConfig) -> str:
    """The mixed precision that Unsloth's trainers set: of adapters, the dtype of the weights."""
    return "none" if config.method == "full" else config.weights_dtype


def write_checkpoint(folder: Path, blueprint: Blueprint, shard_bytes: int = _SHARD_BYTES) -> None:
    """Write config.json, a tokenizer and the weights of a model to `folder`.

    A file has at most `shard_bytes` of weights, or one tensor, as those of the hub: Linux refuses
    to map a file that is larger than the memory of the machine.
    """
    model = declare_model(blueprint, torch.device("cpu"))
    model.tie_weights()
    shards: list[dict[str, torch.Tensor]] = [{}]
    stored: set[int] = set()
    size = 0
    for name, tensor in model.state_dict(keep_vars=True).items():
        if id(tensor) in stored:  # tied weights are stored once
            continue
        stored.add(id(tensor))
        if shards[-1] and size + tensor.nbytes > shard_bytes:
            shards.append({})
            size = 0
        shards[-1][name] = tensor
        size += tensor.nbytes
    files: dict[str, str] = {}
    for number, shard in enumerate(shards, 1):
        file = f"model-{number:05}-of-{len(shards):05}.safetensors"
        _write_hole(folder / file, shard)
        files |= dict.fromkeys(shard, file)
    index = {"metadata": {}, "weight_map": files}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    model.config.architectures = [type(model).__name__]
    setattr(model.config, dtype_keyword(), blueprint.dtype)
    model.config.save_pretrained(folder)
    tokenizer_of(model).save_pretrained(folder)


def _write_hole(path: Path, tensors: Mapping[str, torch.Tensor]) -> None:
    """A file of safetensors: a header, and zeros that take no place on the disk."""
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}
    end = 0
    for name, tensor in tensors.items():
        start, end = end, end + tensor.nbytes
        kind = _NAMES[str(tensor.dtype).removeprefix("torch.")]
        header[name] = {"dtype": kind, "shape": list(tensor.shape), "data_offsets": [start, end]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        file.truncate(8 + len(text) + end)
