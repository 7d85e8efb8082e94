"""The sizes of a model for the closed form, read from a config.json without building the model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from oomdoctor.analysis.memory.shape import shape_of, size_in, text_part
from oomdoctor.records.facts.architectures import (
    COMPOSED_ACTIVATIONS,
    GATED_ACTIVATIONS,
    LAYER_NORM_KEYS,
    family_of,
)


@dataclass(frozen=True, slots=True)
class Sizes:
    """The sizes of a decoder (or encoder) that the formulas need.

    `norms` is the number of norms of a layer over its hidden width; `layer_norm` says that they are
    not RMS norms, `wide_norms` that they multiply in 32 bits, and `head_norms` that queries and
    keys have norms too. `composed` says that the MLP's activation is made of single operations.
    """

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
    norms: int = 2
    layer_norm: bool = False
    wide_norms: bool = False
    head_norms: bool = False
    composed: bool = False
    capped_scores: bool = False
    capped_logits: bool = False

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
        routed = self.hidden * self.experts
        return attention + self._mlp * max(1, self.experts) + routed + self._layer_norms

    @property
    def norm_parameters(self) -> int:
        """The norms of all layers and the last one."""
        return self.layers * self._layer_norms + self._norm

    @property
    def expert_parameters(self) -> int:
        """The experts of all layers; 0 for a dense model."""
        rest = self.parameters - self.embedding_parameters  # some layers may be dense
        return min(rest, self.layers * self.experts * self._mlp)

    @property
    def _norm(self) -> int:
        return self.hidden * (2 if self.layer_norm else 1)

    @property
    def _layer_norms(self) -> int:
        return self.norms * self._norm + (2 * self.head_width if self.head_norms else 0)

    @property
    def _mlp(self) -> int:
        return (3 if self.gated else 2) * self.hidden * self.intermediate


def sizes_of(config: Mapping[str, Any], parameters: int | None = None) -> Sizes | None:
    """The sizes in a config.json; None if the formulas do not cover the architecture."""
    text, shape = text_part(config), shape_of(config)
    if None in (shape.layers, shape.hidden, shape.heads, shape.vocabulary):
        return None
    assert shape.layers and shape.hidden and shape.heads and shape.vocabulary  # for the checker
    model_type = str(text.get("model_type") or config.get("model_type") or "")
    experts = size_in(text, "experts") or 0
    wide = size_in(text, "intermediate") or 4 * shape.hidden
    if experts:
        wide = size_in(text, "expert_intermediate") or wide
    tied = text.get("tie_word_embeddings", config.get("tie_word_embeddings"))
    family = family_of(model_type)
    activation = str(
        text.get("hidden_act") or text.get("hidden_activation") or text.get("activation_function")
    )
    sizes = Sizes(
        layers=shape.layers * (2 if shape.encoder_decoder else 1),
        hidden=shape.hidden,
        heads=shape.heads,
        kv_heads=size_in(text, "kv_heads") or shape.heads,
        head_width=int(size_in(text, "head_width") or shape.head_width or 1),
        intermediate=wide,
        vocabulary=shape.vocabulary,
        embedding=shape.embedding or shape.hidden,
        # The default of transformers if the config does not say.
        tied=bool(tied) if tied is not None else family.tied,
        gated=activation in GATED_ACTIVATIONS,
        experts=experts,
        experts_per_token=size_in(text, "experts_per_token") or 0,
        parameters=0,
        model_type=model_type,
        longest=size_in(text, "positions"),
        norms=family.norms,
        layer_norm=any(name in text for name in LAYER_NORM_KEYS),
        wide_norms=family.wide_norms,
        head_norms=family.head_norms,
        composed=activation in COMPOSED_ACTIVATIONS,
        capped_scores=bool(text.get("attn_logit_softcapping")),
        capped_logits=bool(text.get("final_logit_softcapping")),
    )
    counted = sizes.embedding_parameters + sizes.layers * sizes.layer_parameters + sizes._norm
    return replace(sizes, parameters=parameters or counted)
