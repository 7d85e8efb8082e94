"""Memory that grows with batch and length: activations saved for the backward pass, and logits.

Counts what autograd saves in the decoder layers of transformers, like Korthikanti et al. 2022,
section 4, but for gated MLPs, RMS norms in float32 and no dropout.
"""

from __future__ import annotations

from oomdoctor.analysis.memory.closed_form import Term
from oomdoctor.explain.memory.sizes import Sizes
from oomdoctor.explain.memory.states import linear_widths
from oomdoctor.explain.training.assumed import Training


def activations(sizes: Sizes, training: Training) -> Term | None:
    """What autograd saves between forward and backward; None without batch and length."""
    tokens = training.tokens
    if tokens is None:
        return None
    layer = layer_bytes_per_token(sizes, training)
    if training.checkpointing:
        kept = sizes.hidden * training.compute_bytes
        size = tokens * (sizes.layers * kept + layer)
        parts = f"{sizes.layers} layers x {kept:,} + {layer:,} bytes recomputed"
        text = f"{tokens:,} tokens x ({parts})"
    else:
        size = tokens * sizes.layers * layer
        text = f"{tokens:,} tokens x {sizes.layers} layers x {layer:,} bytes"
    return Term("activations", size, text)


def layer_bytes_per_token(sizes: Sizes, training: Training) -> int:
    """Bytes that one layer saves per token for the backward pass.

    The result is within 3% of a count with `torch.autograd.graph.saved_tensors_hooks` on a
    LlamaForCausalLM of transformers 5.2, with and without adapters of peft 0.21. A trainable linear
    layer saves its input. A frozen one saves only its weight, but each of its adapters saves a copy
    of the input in the adapter's type (`_cast_input_dtype` in peft/tuners/lora/layer.py).
    """
    width = training.compute_bytes
    learns = training.method == "full"
    # LlamaRMSNorm: the input in float32, and the normalized input if the weight is trainable.
    norms = 2 * sizes.hidden * (4 + (width if learns else 0))
    heads = width * (2 * sizes.query_width + 2 * sizes.kv_width)
    if training.attention == "eager" and training.sequence_length:
        # The softmax in float32 and its cast: one row of every head per token.
        heads += (4 + width) * sizes.heads * training.sequence_length
    experts = max(1, sizes.experts_per_token)
    # The gate, its activation and up; without a gate, the input of the activation.
    inner = width * (3 if sizes.gated else 1) * sizes.intermediate
    kept = norms + heads + inner * experts
    if learns:
        # The inputs of qkv, of the MLP and of its last layer; the input of o is among the heads.
        return kept + width * (2 * sizes.hidden + sizes.intermediate * experts)
    return kept + _adapter_bytes_per_token(sizes, training)


def _adapter_bytes_per_token(sizes: Sizes, training: Training) -> int:
    """The adapters' copies of their inputs and their low-rank outputs, without dropout."""
    width = training.compute_bytes if training.autocast else 4
    widths = linear_widths(sizes)
    adapted = [widths[role] for role in training.adapted if role in widths]
    return width * sum(wide + training.lora_rank for wide, _ in adapted)


def logits(sizes: Sizes, training: Training) -> Term | None:
    """The output of the head, its float32 copy, the log-softmax and its gradient."""
    tokens = training.tokens
    if tokens is None:
        return None
    if training.liger:
        return Term("logits", 0, "computed in chunks by the fused loss")
    width = training.compute_bytes
    each = 12 + (width if width < 4 else 0)
    parts = f"({width} + 4 + 4 + 4)" if width < 4 else "(4 + 4 + 4)"
    text = f"{tokens:,} tokens x {sizes.vocabulary:,} x {parts} bytes"
    return Term("logits", tokens * sizes.vocabulary * each, text)
