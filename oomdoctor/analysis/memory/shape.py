"""The sizes of an architecture that the formulas need, read from the content of a config.json.

A size that has none of the known names is None, and formulas that need it give no answer.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from oomdoctor.records.facts.architectures import SIZE_NAMES, TOWERS


@dataclass(frozen=True, slots=True)
class Shape:
    """Sizes of the text part of a model; None if the config does not give them.

    `embedding` is the width of the embedding table, which is `hidden` except in factorized
    families. `head_width` is the mean of the query-key width and the value width of one head.
    `towers` is true if the model has a part that text does not run through.
    """

    layers: int | None
    hidden: int | None
    heads: int | None
    head_width: float | None
    vocabulary: int | None
    embedding: int | None
    encoder_decoder: bool
    towers: bool


def shape_of(config: Mapping[str, Any]) -> Shape:
    """The sizes in a config.json, or in its `text_config` if it has one."""
    text = text_part(config)
    hidden, heads = size_in(text, "hidden"), size_in(text, "heads")
    return Shape(
        layers=size_in(text, "layers"),
        hidden=hidden,
        heads=heads,
        head_width=_head_width(text, hidden, heads),
        vocabulary=size_in(text, "vocabulary"),
        embedding=size_in(text, "embedding") or hidden,
        encoder_decoder=bool(config.get("is_encoder_decoder")),
        towers=any(config.get(name) is not None for name in TOWERS),
    )


def text_part(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """The part of a config.json that describes the language model."""
    nested = config.get("text_config")
    return nested if isinstance(nested, Mapping) else config


def _head_width(text: Mapping[str, Any], hidden: int | None, heads: int | None) -> float | None:
    # Latent attention (DeepSeek) computes scores from two query-key parts and sums a third width.
    latent = [
        _integer(text.get(name)) for name in ("qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim")
    ]
    if None not in latent:
        return sum(size for size in latent if size is not None) / 2
    width = size_in(text, "head_width")
    if width is None and hidden is not None and heads:
        width = hidden // heads
    return width


def size_in(text: Mapping[str, Any], kind: str) -> int | None:
    """The size under one of its names in SIZE_NAMES; None if no name is there."""
    for name in SIZE_NAMES[kind]:
        value = _integer(text.get(name))
        if value is not None:
            return value
    return None


def _integer(value: Any) -> int | None:
    return value if type(value) is int and value > 0 else None
