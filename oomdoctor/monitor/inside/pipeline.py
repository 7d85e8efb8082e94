"""Pipelines of diffusers without data: each part in its folder, as `from_pretrained` reads them."""

from __future__ import annotations

import inspect
import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from oomdoctor.monitor.inside.checkpoint import (
    SHARD_BYTES,
    weights_of,
    write_checkpoint,
    write_shards,
    write_tokenizer,
)

if TYPE_CHECKING:
    from oomdoctor.system.models.pipelines import Part, Pipeline

STAND_IN = "oomdoctor-tokenizer"  # beside a tokenizer that is a stand-in
WEIGHTS = (
    "*.safetensors", "pytorch_model*.bin", "diffusion_pytorch_model*.bin", "tf_model.h5",
    "flax_model.msgpack",
)  # fmt: skip
_VARIANTS = {"fp16": "float16", "bf16": "bfloat16"}
_TOKENIZERS = ("tokenizer*", "vocab*", "*.model")


def write_pipeline(target: Path, pipeline: Pipeline, variant: str = "", dtype: str = "") -> None:
    """Write a pipeline into a folder, with the weights of `variant` (such as "fp16").

    `dtype` is what the weights are asked for in: "bfloat16" for all, or by part,
    "transformer=bfloat16,default=float32". Without it, those of diffusers are in float32, which it
    converts all others to, and those of transformers have their own type.

    Raises:
        ImportError, AttributeError: diffusers or transformers has no such class.
    """
    import diffusers
    import transformers

    libraries = {"diffusers": diffusers, "transformers": transformers}
    index = {"_class_name": pipeline.class_name, "_diffusers_version": diffusers.__version__}
    for name, part in pipeline.parts.items():
        folder = target / name
        folder.mkdir(parents=True, exist_ok=True)
        if pipeline.path is not None:
            link_small_files(pipeline.path / name, folder)
        kind = getattr(libraries[part.library], part.class_name)
        class_name = part.class_name
        if issubclass(kind, transformers.PreTrainedTokenizerBase):
            if not any(path for pattern in _TOKENIZERS for path in folder.glob(pattern)):
                encoder = pipeline.parts[name.replace("tokenizer", "text_encoder")]
                _write_stand_in(folder, encoder.config)
                class_name = "PreTrainedTokenizerFast"
        else:
            _write_part(folder, kind, part, _type_of(name, part, variant, dtype))
        index[name] = [part.library, class_name]
    if pipeline.class_name is not None:
        (target / "model_index.json").write_text(json.dumps(index))


def _type_of(name: str, part: Part, variant: str, dtype: str) -> Any:
    """The type in which the weights of a part are stored."""
    import torch

    words = dtype.split(",") if "=" in dtype else [f"default={dtype}"] if dtype else []
    by_part = dict(word.split("=") for word in words)
    asked = by_part.get(name) or by_part.get("default")
    stored = _VARIANTS.get(variant, part.dtype)
    return getattr(torch, asked or ("float32" if part.library == "diffusers" else stored))


def _write_part(folder: Path, kind: Any, part: Part, dtype: Any) -> None:
    """Write a model or a scheduler; what is neither has its files from the pipeline's folder."""
    import diffusers
    import transformers

    if issubclass(kind, transformers.PreTrainedModel):
        (folder / "config.json").unlink(missing_ok=True)  # a link; ours is written in its place
        write_checkpoint(folder, _config(kind, part.config), kind, dtype)
    elif issubclass(kind, diffusers.ModelMixin):
        model = built(kind, part.config)
        (folder / "config.json").unlink(missing_ok=True)
        model.save_config(folder)
        weights = weights_of(model, None, dtype)
        write_shards(folder, weights, SHARD_BYTES, "diffusion_pytorch_model")
    elif issubclass(kind, diffusers.SchedulerMixin) and not any(folder.iterdir()):
        kind(**_accepted(kind, part.config)).save_config(folder)


def built(kind: Any, config: Mapping[str, Any]) -> Any:
    """A model of diffusers or transformers by its config, on the meta device."""
    import torch

    with torch.device("meta"):
        if hasattr(kind, "config_class"):
            return kind(_config(kind, config))
        return kind(**_accepted(kind, config))


def _config(kind: Any, config: Mapping[str, Any]) -> Any:
    own = kind.config_class.model_type
    return kind.config_class.from_dict({**config, "model_type": own} if own else dict(config))


def _accepted(kind: Any, config: Mapping[str, Any]) -> dict[str, Any]:
    """What the class takes of a config, which other releases of diffusers may have written."""
    names = inspect.signature(kind.__init__).parameters
    return {name: value for name, value in config.items() if name in names}


def _write_stand_in(folder: Path, config: Mapping[str, Any]) -> None:
    longest = config.get("max_position_embeddings") or config.get("n_positions")
    write_tokenizer(folder, {**config, "max_position_embeddings": longest}, pads=True)
    (folder / STAND_IN).touch()


def link_small_files(source: Path, target: Path) -> None:
    """Link what stands beside the weights: tokenizer, generation settings, custom code."""
    for path in source.iterdir():
        if path.is_file() and not any(path.match(p) for p in (*WEIGHTS, "*.index.json")):
            (target / path.name).symlink_to(path.resolve())
