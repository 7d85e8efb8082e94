"""The few sizes of an architecture that formulas need, read from the content of a config.json.

Families name the same thing differently (`hidden_size`, `n_embd`, `d_model`); a size that is not
there under any known name is None, and a formula that needs it stays silent.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

_NAMES = {
    "layers": ("num_hidden_layers", "n_layer", "num_layers", "n_layers"),
    "hidden": ("hidden_size", "n_embd", "d_model", "dim"),
    "heads": ("num_attention_heads", "n_head", "num_heads", "n_heads"),
    "embedding": ("embedding_size", "word_embed_proj_dim"),
}
_TOWERS = ("vision_config", "audio_config", "speech_config")


@dataclass(frozen=True, slots=True)
class Shape:
    """Sizes of the text part of a model; None for what the config does not say.

    `embedding` is the width of the embedding table, which is `hidden` except in factorised
    families. `head_width` is the mean of the query-key width and the value width of one head.
    `towers` is true where the model has a part that text does not run through.
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
    """The sizes in a config.json, whose `text_config` is read where it has one."""
    text = text_part(config)
    hidden, heads = _size(text, "hidden"), _size(text, "heads")
    return Shape(
        layers=_size(text, "layers"),
        hidden=hidden,
        heads=heads,
        head_width=_head_width(text, hidden, heads),
        vocabulary=_integer(text.get("vocab_size")),
        embedding=_size(text, "embedding") or hidden,
        encoder_decoder=bool(config.get("is_encoder_decoder")),
        towers=any(config.get(name) is not None for name in _TOWERS),
    )


def text_part(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """The part of a config.json that describes the language model."""
    nested = config.get("text_config")
    return nested if isinstance(nested, Mapping) else config


def _head_width(text: Mapping[str, Any], hidden: int | None, heads: int | None) -> float | None:
    # Latent attention (DeepSeek) scores over two query-key parts and sums over a third width.
    latent = [
        _integer(text.get(name)) for name in ("qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim")
    ]
    if None not in latent:
        return sum(size for size in latent if size is not None) / 2
    width = _integer(text.get("head_dim"))
    if width is None and hidden is not None and heads:
        width = hidden // heads
    return width


def _size(text: Mapping[str, Any], kind: str) -> int | None:
    for name in _NAMES[kind]:
        value = _integer(text.get(name))
        if value is not None:
            return value
    return None


def _integer(value: Any) -> int | None:
    return value if type(value) is int and value > 0 else None
