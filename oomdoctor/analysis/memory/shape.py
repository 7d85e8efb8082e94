"""The sizes of an architecture that the formulas need, read from the content of a config.json.

A size that has none of the known names is None, and formulas that need it give no answer. Before
anything is built, the sizes also tell how many parameters a model has at least (`least_counts`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from oomdoctor.records.facts.architectures import PATTERN_KINDS, SIZE_NAMES, TOWERS
from oomdoctor.records.job.model import ParameterCounts

# Kinds of layers in `layer_types`. Where an MLP has a layer of its own, no other layer has one.
_ALONE = ("mlp", "moe")
_WITHOUT_ATTENTION = ("linear_attention", "mamba", "recurrent", "conv", *_ALONE)
_WITH_WINDOW = ("sliding_attention", "chunked_attention")


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


def attended_positions(config: Mapping[str, Any], length: int) -> int | None:
    """The positions that the last of `length` tokens attends to, summed over the layers.

    A layer with a window attends to no more than that, one without attention to none. None if the
    number of layers is not known, or if only some have a window and the config does not say which.
    """
    text, layers = text_part(config), shape_of(config).layers
    named = text.get("sliding_window") or text.get("attention_chunk_size")
    window = named if isinstance(named, int) else length
    if layers is None:
        return None
    if kinds := _kinds(text, layers):
        attending = (kind for kind in kinds if kind not in _WITHOUT_ATTENTION)
        return sum(min(length, window) if kind in _WITH_WINDOW else length for kind in attending)
    whole = length <= window or text.get("use_sliding_window") is False
    return layers * length if whole else None


def _kinds(text: Mapping[str, Any], layers: int) -> list[Any]:
    """The kind of each layer; empty if the config does not say it for all."""
    pattern = text.get("hybrid_override_pattern")
    kinds = text.get("layer_types") or text.get("layers_block_type")
    if isinstance(pattern, str):
        kinds = [PATTERN_KINDS.get(letter) for letter in pattern]
    return list(kinds) if isinstance(kinds, list | tuple) and len(kinds) == layers else []


def _head_width(text: Mapping[str, Any], hidden: int | None, heads: int | None) -> float | None:
    # Latent attention (DeepSeek) computes scores from two query-key parts and sums a third width.
    names = ("qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim")
    latent = [size for name in names if (size := _integer(text.get(name))) is not None]
    if len(latent) == len(names):
        return sum(latent) / 2
    width = size_in(text, "head_width")
    if width is None and hidden is not None and heads:
        width = hidden // heads
    return width


def size_in(text: Mapping[str, Any], kind: str) -> int | None:
    """The size under one of its names in SIZE_NAMES; None if no name is there."""
    sizes = (_integer(text.get(name)) for name in SIZE_NAMES[kind])
    return next((size for size in sizes if size is not None), None)


def _integer(value: Any) -> int | None:
    return value if type(value) is int and value > 0 else None


def least_counts(
    config: Mapping[str, Any], parameters: int | None, *, plain: bool
) -> ParameterCounts | None:
    """Counts that are at most the real ones, for bounds; None if the config says too little.

    Every figure errs to the side that makes a bound smaller.

    `parameters` is the exact total if it is known. `plain` says that the architecture is one whose
    total was compared with this count, so that the sizes in `config` mean what they usually do.
    """
    text, shape = text_part(config), shape_of(config)
    embedding = (shape.vocabulary or 0) * (shape.embedding or 0)
    total = parameters if parameters is not None else _in_layers(config) + embedding if plain else 0
    if not total:
        return None
    embedding = min(embedding, total)
    experts = size_in(text, "experts") or 0
    return ParameterCounts(
        total=total,
        # 4-bit weights take the least, so all that may be linear counts as linear.
        linear=total - embedding,
        embedding=embedding,
        rest=0,
        buffers_bytes=0,
        routed_experts=total - embedding if experts else 0,
        experts=experts,
        experts_per_token=(size_in(text, "experts_per_token") or 0) if experts else 0,
    )


def _in_layers(config: Mapping[str, Any]) -> int:
    """Attention, and two matrices of the MLP, in the layers of a decoder; 0 for other models."""
    text, shape = text_part(config), shape_of(config)
    if shape.encoder_decoder or None in (shape.layers, shape.hidden, shape.heads):
        return 0
    layers, hidden, heads = shape.layers or 0, shape.hidden or 0, shape.heads or 0
    width = size_in(text, "head_width") or hidden // heads
    queries, keys = heads * width, (size_in(text, "kv_heads") or 1) * width
    inner = 0 if size_in(text, "experts") else size_in(text, "intermediate") or 0
    attending = feeding = layers
    kinds = _kinds(text, layers)
    if any(kind in _ALONE for kind in kinds):
        attending, feeding = kinds.count("attention"), kinds.count("mlp")
    return hidden * (attending * (2 * queries + 2 * keys) + feeding * 2 * inner)
