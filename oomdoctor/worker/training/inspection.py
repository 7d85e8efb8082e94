"""Inspect the user's interpreter, the device, and the model's parameters by role.

The model is created on the meta device: no weights, no download, one or two seconds.
"""

from __future__ import annotations

import copy
import importlib
import platform
from collections.abc import Collection
from contextlib import suppress
from itertools import chain
from typing import TYPE_CHECKING

import torch
from torch import nn

from oomdoctor.records.configuration.config import adapts_all_linear
from oomdoctor.records.facts.architectures import SIZE_NAMES, family_of
from oomdoctor.records.facts.checkpoints import checkpoint_of
from oomdoctor.records.job.model import ParameterCounts
from oomdoctor.records.job.result import Inspection, ProbeJob
from oomdoctor.system.machine import libraries
from oomdoctor.worker.training.layers import named_targets, stacks_of
from oomdoctor.worker.training.model_config import load_config, model_class, needed_package

if TYPE_CHECKING:
    from transformers import PretrainedConfig, PreTrainedModel

_PACKAGES = (
    "torch",
    "transformers",
    "accelerate",
    "peft",
    "bitsandbytes",
    "flash-attn",
    "liger-kernel",
    "triton",
    "trl",
)
_POSITIONS = ("max_position_embeddings", "max_target_positions")


def inspect_model(job: ProbeJob) -> Inspection:
    """The parameter counts, limits, versions and device of a job.

    Raises:
        UnsupportedError: transformers does not know the architecture.
    """
    config = load_config(job.model)
    # A model's module imports this, which fails under the meta device (torch 2.6).
    importlib.import_module("torch._dynamo")
    with torch.device("meta"), needed_package():
        model = model_class(job.model, config).from_config(
            config, trust_remote_code=job.model.trust_remote_code
        )
    positions = _positions(config)
    name = total = free = capability = None
    if job.device_type == "cuda":
        properties = torch.cuda.get_device_properties(0)
        free, total = torch.cuda.mem_get_info(0)
        name, capability = properties.name, f"{properties.major}.{properties.minor}"
    return Inspection(
        architecture=type(model).__name__,
        parameters=count_parameters(model, config),
        max_sequence_length=positions if _sized_by_positions(job, model, config) else None,
        positions=positions,
        versions=installed_versions(),
        device_name=name,
        device_total_bytes=total,
        device_free_bytes=free,
        compute_capability=capability,
        stacks=stacks_of(model, config),
        lora_targets=_lora_targets(model, job),
    )


def _lora_targets(model: PreTrainedModel, job: ProbeJob) -> tuple[str, ...]:
    """The layers to name for LoRA; empty where `all-linear` does, or where it is not asked for."""
    if adapts_all_linear(job.config):
        with suppress(ImportError):  # then no LoRA is tried
            row = checkpoint_of(job.model.quantized)
            # peft does not take the layers of gptqmodel for linear ones.
            packed = row is not None and row.layers == "linear"
            return named_targets(model, job.model.task, always=packed)
    return ()


def installed_versions() -> dict[str, str | None]:
    """Versions of the packages that decide memory and speed; for torch with its build."""
    return {
        "python": platform.python_version(),
        **libraries.versions(_PACKAGES),
        "torch": torch.__version__,
        "cuda": torch.version.cuda or torch.version.hip,
    }


def torch_release() -> tuple[int, int]:
    """Major and minor number of the installed torch, which decides the kernels of a step."""
    major, minor = torch.__version__.split(".")[:2]
    return int(major), int(minor)


def count_parameters(model: PreTrainedModel, config: PretrainedConfig) -> ParameterCounts:
    """Parameters of a model by role; a tied weight counts once, as an embedding.

    A linear weight belongs to a module that bitsandbytes would replace: a `Linear` or transformers'
    `Conv1D`, except the output head.
    """
    outside = {id(p) for p in _embedding_parameters(model)}
    seen: set[int] = set()
    linear = embedding = rest = routed = 0
    for path, module in model.named_modules():
        for parameter in module._parameters.values():
            if parameter is None or id(parameter) in seen:
                continue
            seen.add(id(parameter))
            size = parameter.numel()
            is_linear = isinstance(module, torch.nn.Linear) or type(module).__name__ == "Conv1D"
            if id(parameter) in outside:
                embedding += size
            elif is_linear and parameter.dim() == 2:
                linear += size
            else:
                rest += size
            if not {"experts", "local_experts"}.isdisjoint(path.split(".")):
                routed += size
    text = config.get_text_config()
    experts = count_experts(config)
    used = _first_number(text, SIZE_NAMES["experts_per_token"])
    return ParameterCounts(
        total=linear + embedding + rest,
        linear=linear,
        embedding=embedding,
        rest=rest,
        buffers_bytes=sum(b.numel() * b.element_size() for b in model.buffers()),
        routed_experts=routed if experts else 0,
        experts=experts if routed else 0,
        experts_per_token=used if routed else 0,
    )


def count_experts(config: PretrainedConfig) -> int:
    """The experts among which a router chooses; 0 for a dense model."""
    return _first_number(config.get_text_config(), SIZE_NAMES["experts"])


def _embedding_parameters(model: PreTrainedModel) -> list[torch.nn.Parameter]:
    modules = []
    for find in (model.get_input_embeddings, model.get_output_embeddings):
        # transformers searches the parts of a model under their usual names. A model with custom
        # code may have others; then its embeddings count as "rest". Other errors are real faults.
        try:
            modules.append(find())
        except NotImplementedError:
            continue
        except AttributeError as error:
            if not isinstance(error.obj, torch.nn.Module):
                raise
    embeddings = (module for module in modules if isinstance(module, torch.nn.Module))
    return [p for module in embeddings for p in module.parameters()]


def _first_number(config: PretrainedConfig, names: tuple[str, ...]) -> int:
    values = (getattr(config, name, None) for name in names)
    return next((value for value in values if isinstance(value, int)), 0)


def _positions(config: PretrainedConfig) -> int | None:
    """The positions of a row that config.json states; None if it states none."""
    name = _positions_name(config)
    if name is None:
        return None
    text = config.get_text_config()
    limit: int = getattr(text, name)
    pad = getattr(text, "pad_token_id", None)
    shifted = family_of(text.model_type).positions_after_padding
    return limit - (pad + 1 if shifted and isinstance(pad, int) else 0)


def _positions_name(config: PretrainedConfig) -> str | None:
    """The key of config.json that states the positions of a row."""
    text = config.get_text_config()
    name = next((name for name in _POSITIONS if getattr(text, name, None)), None)
    stated = getattr(text, name) if name is not None else None
    return name if isinstance(stated, int) and stated > 0 else None


def _sized_by_positions(job: ProbeJob, model: PreTrainedModel, config: PretrainedConfig) -> bool:
    """Whether a tensor of the model has one entry for each position, so longer rows fail.

    True for learned and for stored positions. Rotary positions are computed for rows of any
    length: transformers compares no row with `max_position_embeddings`.
    """
    name = _positions_name(config)
    if name is None:
        return False
    limit: int = getattr(config.get_text_config(), name)
    linear = {id(module.weight) for module in model.modules() if isinstance(module, nn.Linear)}
    embeddings = {id(parameter) for parameter in _embedding_parameters(model)}
    shapes = _shapes(model, linear | embeddings)
    if all(size < limit for shape in shapes.values() for size in shape):
        return False
    longer = copy.deepcopy(config)
    setattr(longer.get_text_config(), name, 2 * limit)
    with torch.device("meta"):
        built = model_class(job.model, longer).from_config(
            longer, trust_remote_code=job.model.trust_remote_code
        )
    after = _shapes(built, set())
    return any(after.get(name) != shape for name, shape in shapes.items())


def _shapes(model: PreTrainedModel, but: Collection[int]) -> dict[str, torch.Size]:
    """The shapes of parameters and buffers by name, without those whose `id` is in `but`."""
    tensors = chain(model.named_parameters(), model.named_buffers())
    return {name: tensor.shape for name, tensor in tensors if id(tensor) not in but}
