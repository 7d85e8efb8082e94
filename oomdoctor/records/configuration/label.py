"""The short name of a rung: how it differs from what people expect of its method.

Two rungs that train differently have different labels. Only the micro-batch size is left out: a
rung is tried at several.
"""

from __future__ import annotations

from oomdoctor.records.configuration.config import TrainConfig
from oomdoctor.records.configuration.keys import KEYS, settled
from oomdoctor.records.facts.dtypes import dtype_word

_SIZES = {"sequence_length": "seq", "effective_batch_size": "batch"}


def label_of(config: TrainConfig, sizes: TrainConfig | None = None) -> str:
    """A label such as `qlora-nf4-r16+ckpt+paged8bit`.

    `sizes` has the sequence length and the effective batch size that the rung would have if it
    named none: where it has others, the label says so.
    """
    config = settled(config)
    words = [word for key in KEYS.values() if (word := key.said(config))]
    if sizes is not None:
        words += [
            f"{word}-{getattr(config, name)}"
            for name, word in _SIZES.items()
            if getattr(config, name) != getattr(sizes, name)
        ]
    return "+".join([_head(config), *words])


def _head(config: TrainConfig) -> str:
    """The method with its rank and precision."""
    if config.method == "full":
        parts = ["full", dtype_word(config.weights_dtype), _autocast(config)]
    else:
        kind = ("qlora", config.quantization) if config.method == "qlora" else ("lora",)
        parts = [*kind, f"r{config.lora_rank}", *_unusual_precision(config)]
    return "-".join(part for part in parts if part)


def _unusual_precision(config: TrainConfig) -> tuple[str, ...]:
    """What adapters are trained in, if that is not bfloat16 with autocast, as ladders have it."""
    weights, mixed = config.weights_dtype, config.autocast_dtype
    word = "" if weights == "bfloat16" else dtype_word(weights)
    if mixed == "none":
        return (word,) if weights == "float32" else (word, "no-amp")
    if weights == mixed:
        return (word,)
    return (dtype_word(weights), _autocast(config))


def _autocast(config: TrainConfig) -> str:
    mixed = config.autocast_dtype
    return "" if mixed == "none" else f"amp-{dtype_word(mixed)}"
