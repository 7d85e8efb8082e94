"""Parameters that a model has at least, from its config.json alone, before anything is built.

They serve the lower bounds of a run that ends in its first seconds. Every figure errs to the side
that makes a bound smaller.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from oomdoctor.analysis.memory.shape import shape_of, size_in, text_part
from oomdoctor.records.model import ParameterCounts


def least_counts(
    config: Mapping[str, Any], parameters: int | None, *, plain: bool
) -> ParameterCounts | None:
    """Counts that are at most the real ones, for bounds; None if the config says too little.

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
    return layers * hidden * (2 * queries + 2 * keys + 2 * inner)
