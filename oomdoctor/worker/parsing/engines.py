"""The parsers of what launches and shards a training: accelerate and DeepSpeed."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from oomdoctor.worker.parsing.faults import ParserError, named, of_pydantic, plain

# Sizes of a batch depend on the number of GPUs, which a file of DeepSpeed does not say.
_OF_WORLD = ("train_batch_size", "gradient_accumulation_steps")
# DeepSpeed's models of the parts of its file.
_PARTS = {
    "DeepSpeedZeroConfig": "zero_optimization.",
    "DeepSpeedBF16Config": "bf16.",
    "DeepSpeedFP16Config": "fp16.",
}


def accelerate(values: Mapping[str, Any]) -> dict[str, Any]:
    """What `accelerate launch` loads from its file."""
    import yaml  # type: ignore[import-untyped]  # accelerate needs it
    from accelerate.commands.config.config_args import load_config_from_file

    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "config.yaml"
        file.write_text(yaml.safe_dump(dict(values)))
        try:
            found = load_config_from_file(str(file)).to_dict()
        except (ValueError, TypeError, KeyError) as error:
            message = str(error).replace(f" at {file}", "").partition(", please try")[0]
            raise ParserError(named(message, values), message) from None
    return plain(found)


def deepspeed(values: Mapping[str, Any]) -> dict[str, Any]:
    """DeepSpeed's own configuration, as for one GPU; "auto" is filled in by the Trainer."""
    from deepspeed.runtime.config import DeepSpeedConfig

    known = _without_auto(values)
    known = {name: value for name, value in known.items() if name not in _OF_WORLD}
    known.setdefault("train_micro_batch_size_per_gpu", 1)
    try:
        DeepSpeedConfig(known)
    except (ValueError, TypeError, AssertionError, KeyError) as error:
        head = _PARTS.get(str(getattr(error, "title", "")), "")
        found = of_pydantic(error, head)
        raise ParserError(found.setting or named(str(found), values), str(found)) from None
    return {}


def _without_auto(values: Mapping[str, Any]) -> dict[str, Any]:
    return {
        name: _without_auto(value) if isinstance(value, Mapping) else value
        for name, value in values.items()
        if value != "auto"
    }
