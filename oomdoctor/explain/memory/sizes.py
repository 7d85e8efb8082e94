"""The sizes of a model for the closed form, read from a config.json without building the model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from oomdoctor.analysis.memory.shape import shape_of, text_part

# Families that tie the output head to the embedding unless the config says otherwise.
_TIED = frozenset(
    {"gpt2", "gemma", "gemma2", "gemma3_text", "bert", "t5", "opt", "bloom", "gpt_neo"}
)


@dataclass(frozen=True, slots=True)
class Sizes:
    """The sizes of a decoder (or encoder) that the formulas need."""

    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_width: int
    intermediate: int
    vocabulary: int
    embedding: int
    tied: bool
    gated: bool
    experts: int
    experts_per_token: int
    parameters: int
    model_type: str
    longest: int | None

    @property
    def query_width(self) -> int:
        return self.heads * self.head_width

    @property
    def kv_width(self) -> int:
        return self.kv_heads * self.head_width

    @property
    def embedding_parameters(self) -> int:
        """Input embeddings and output head; a tied table counts once."""
        return self.vocabulary * (self.embedding + (0 if self.tied else self.hidden))

    @property
    def layer_parameters(self) -> int:
        attention = 2 * self.hidden * (self.query_width + self.kv_width)
        mlp = (3 if self.gated else 2) * self.hidden * self.intermediate
        return attention + mlp * max(1, self.experts) + self.hidden * (2 + self.experts)


def sizes_of(config: Mapping[str, Any], parameters: int | None = None) -> Sizes | None:
    """The sizes in a config.json; None if the formulas do not cover the architecture."""
    text, shape = text_part(config), shape_of(config)
    if None in (shape.layers, shape.hidden, shape.heads, shape.vocabulary):
        return None
    assert shape.layers and shape.hidden and shape.heads and shape.vocabulary  # for the checker
    model_type = str(text.get("model_type") or config.get("model_type") or "")
    experts = _first(text, "num_local_experts", "num_experts", "n_routed_experts") or 0
    wide = _first(text, "intermediate_size", "n_inner", "d_ff", "ffn_dim") or 4 * shape.hidden
    if experts:
        wide = _first(text, "moe_intermediate_size") or wide
    tied = text.get("tie_word_embeddings", config.get("tie_word_embeddings"))
    sizes = Sizes(
        layers=shape.layers * (2 if shape.encoder_decoder else 1),
        hidden=shape.hidden,
        heads=shape.heads,
        kv_heads=_first(text, "num_key_value_heads") or shape.heads,
        head_width=int(_first(text, "head_dim") or shape.head_width or 1),
        intermediate=wide,
        vocabulary=shape.vocabulary,
        embedding=shape.embedding or shape.hidden,
        # The default of transformers if the config does not say.
        tied=bool(tied) if tied is not None else model_type in _TIED,
        gated=str(text.get("hidden_act") or text.get("hidden_activation") or "")
        in ("silu", "swish", "gelu_pytorch_tanh"),
        experts=experts,
        experts_per_token=_first(text, "num_experts_per_tok") or 0,
        parameters=0,
        model_type=model_type,
        longest=_first(text, "max_position_embeddings", "n_positions"),
    )
    counted = sizes.embedding_parameters + sizes.layers * sizes.layer_parameters + sizes.hidden
    return replace(sizes, parameters=parameters or counted)


def _first(text: Mapping[str, Any], *names: str) -> int | None:
    for name in names:
        value = text.get(name)
        if isinstance(value, int) and not isinstance(value, bool) and value > 0:
            return value
    return None
