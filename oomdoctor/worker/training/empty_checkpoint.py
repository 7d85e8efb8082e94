"""A checkpoint of a model without data, for libraries that load a model only from a folder.

The file of the weights has a header and then a hole, so it takes no place on the disk. Its weights
read as zero.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

from oomdoctor.worker.training.synthetic import declare_model
from oomdoctor.worker.training.trainers.trl import tokenizer_of

if TYPE_CHECKING:
    import torch
    from transformers import PretrainedConfig
    from transformers.models.auto.auto_factory import _BaseAutoModelClass

_NAMES = {"bfloat16": "BF16", "float16": "F16", "float32": "F32"}


def write_checkpoint(
    folder: Path,
    auto_class: type[_BaseAutoModelClass],
    model_config: PretrainedConfig,
    dtype: torch.dtype,
    *,
    trust_remote_code: bool,
) -> None:
    """Write config.json, a tokenizer and the weights of a model to `folder`."""
    import torch

    model = declare_model(
        auto_class,
        model_config,
        dtype=dtype,
        attention="eager",  # any: only names and shapes are read
        device=torch.device("cpu"),
        trust_remote_code=trust_remote_code,
    )
    model.tie_weights()
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}
    known: set[int] = set()
    end = 0
    for name, tensor in model.state_dict(keep_vars=True).items():
        if id(tensor) in known:  # tied weights are stored once
            continue
        known.add(id(tensor))
        start, end = end, end + tensor.numel() * tensor.element_size()
        kind = _NAMES[str(tensor.dtype).removeprefix("torch.")]
        header[name] = {"dtype": kind, "shape": list(tensor.shape), "data_offsets": [start, end]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with (folder / "model.safetensors").open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        file.truncate(8 + len(text) + end)
    model.config.architectures = [type(model).__name__]
    model.config.dtype = dtype
    model.config.save_pretrained(folder)
    tokenizer_of(model).save_pretrained(folder)
