"""Memory that grows with batch and length: activations saved for the backward pass, and logits.

Counts what autograd saves in the decoder layers of transformers, like Korthikanti et al. 2022,
section 4, except for gated MLPs, RMS norms in float32 and no dropout.
"""

from __future__ import annotations

from oomdoctor.analysis.memory.closed_form import Term
from oomdoctor.explain.memory.model_sizes import Sizes
from oomdoctor.explain.memory.states import linear_widths
from oomdoctor.explain.training.assumed import Training

_AMONG_HEADS = "the output of attention"
# Linear layers with the same input.
_SHARED = {
    **dict.fromkeys(("q", "k", "v"), "the input of attention"),
    **dict.fromkeys(("gate", "up"), "the input of the MLP"),
    "o": _AMONG_HEADS,
    "down": "the input of its last layer",
}
_MAKES_SCORES = ("eager", "sdpa")  # the kernels that transformers replaces if scores are capped


def activations(sizes: Sizes, training: Training) -> Term:
    """What autograd keeps at the end of the forward pass."""
    tokens = training.tokens
    saved = _stream_bytes_per_token if training.checkpoints else layer_bytes_per_token
    layer, note = saved(sizes, training), " (checkpoints)" if training.checkpoints else ""
    text = f"{tokens:,} tokens x {sizes.layers} layers x {layer:,} bytes{note}"
    return Term("activations", tokens * sizes.layers * layer, text)


def recomputed(sizes: Sizes, training: Training) -> Term | None:
    """The activations of the first layer that the backward pass recomputes, and all checkpoints."""
    kept, tokens = activations(sizes, training), training.tokens
    if not training.checkpoints:
        return None
    stream = _stream_bytes_per_token(sizes, training)
    layer = layer_bytes_per_token(sizes, training)
    text = f"{tokens:,} tokens x ({sizes.layers} layers x {stream:,} + {layer:,} bytes recomputed)"
    return Term("activations", kept.size_bytes + tokens * layer, text)


def first_layer(sizes: Sizes, training: Training) -> Term:
    """What the last layer of the backward pass still needs, when all gradients are there."""
    tokens, layer = training.tokens, layer_bytes_per_token(sizes, training)
    return Term("activations", tokens * layer, f"{tokens:,} tokens x 1 layer x {layer:,} bytes")


def weight_copies(sizes: Sizes, training: Training) -> Term | None:
    """16-bit copies of 32-bit weights: autocast makes one of each weight in the forward pass.

    Without checkpointing the backward pass needs them too, those of frozen weights as well; with it
    they are dropped at its start, except for the output head.
    """
    peft = training.quantized_in_4_bits and training.config.kbit_prepare == "peft"
    whole = training.upcast and training.config.method != "qlora"
    if not training.autocast or not (whole or peft):
        return None
    count = sizes.vocabulary * sizes.embedding
    if whole and not training.checkpoints:
        count += sizes.layers * sizes.layer_parameters
    return Term("16-bit copies of weights", 2 * count, f"{count:,} x 2 bytes (autocast)")


def _stream_bytes_per_token(sizes: Sizes, training: Training) -> int:
    """Bytes a token of what runs from layer to layer: a checkpoint."""
    return sizes.hidden * (4 if training.upcast else training.compute_bytes)


def layer_bytes_per_token(sizes: Sizes, training: Training) -> int:
    """Bytes that one layer saves per token for the backward pass.

    The result is within 3% of a count with `torch.autograd.graph.saved_tensors_hooks` on a
    LlamaForCausalLM of transformers 5.2, with and without adapters of peft 0.21. A trainable linear
    layer saves its input. A frozen one saves only its weight, but each of its adapters saves a copy
    of the input in the adapter's type (`_cast_input_dtype` in peft/tuners/lora/layer.py).
    """
    width = training.compute_bytes
    learns = training.config.method == "full"
    mixed = learns and training.upcast and training.autocast
    norms = sizes.norms * sizes.hidden
    if sizes.head_norms:
        norms += sizes.query_width + sizes.kv_width
    heads = width * (2 * sizes.query_width + 2 * sizes.kv_width)
    heads += scores_bytes_per_token(sizes, training)
    experts = max(1, sizes.experts_per_token)
    kept = norms * _norm_bytes(sizes, training) + heads
    kept += _inner_bytes(sizes, training) * sizes.intermediate * experts
    if learns:
        # The inputs of qkv, of the MLP and of its last layer; the input of o is among the heads.
        # Autocast gives each linear layer a 16-bit copy of its own.
        inputs = (3 + (2 if sizes.gated else 1)) if mixed else 2
        return kept + width * (inputs * sizes.hidden + sizes.intermediate * experts)
    return kept + _adapter_bytes_per_token(sizes, training)


def _norm_bytes(sizes: Sizes, training: Training) -> int:
    """Bytes that a norm saves of each of its inputs."""
    if sizes.layer_norm:  # autocast runs it in float32
        return 4 if training.autocast else training.compute_bytes
    if training.config.method != "full":
        return 4
    # RMS norms compute in float32, and save the normalized input if their weight learns.
    wide = sizes.wide_norms or (training.upcast and training.autocast)
    return 4 + (4 if wide else training.compute_bytes)


def _inner_bytes(sizes: Sizes, training: Training) -> int:
    """Bytes that the activation function saves of each entry between the layers of an MLP."""
    # bitsandbytes gives back the type of its input, which 32-bit norms make float32.
    width = training.compute_bytes
    if training.quantized_in_4_bits and training.upcast:
        width = 4
    if sizes.gated:
        return 3 * width  # the gate, its activation and up
    if sizes.composed:
        # x, tanh(..), x / 2 and 1 + tanh(..); autocast runs the power in float32.
        return 14 if training.autocast and width == 2 else 4 * width
    return width


def scores_bytes_per_token(sizes: Sizes, training: Training) -> int:
    """What eager attention saves of one row of every head; 0 for kernels without scores.

    The softmax in float32 and its cast; capped scores also save what the cap computed. No kernel
    without scores takes 32-bit queries that share keys: PyTorch's sdpa then saves the softmax.
    """
    eager = training.config.attention == "eager"
    shares = sizes.query_width != sizes.kv_width and training.compute_bytes == 4
    if training.config.attention == "sdpa" and shares and not sizes.capped_scores:
        return 4 * sizes.heads * (training.sequence_length or 0)
    capped = sizes.capped_scores and training.config.attention in _MAKES_SCORES
    if not (eager or capped) or not training.sequence_length:
        return 0
    each = 4 + training.compute_bytes * (2 if sizes.capped_scores else 1)
    return each * sizes.heads * training.sequence_length


def _adapter_bytes_per_token(sizes: Sizes, training: Training) -> int:
    """The adapters' copies of their inputs and their low-rank outputs, without dropout.

    Inputs that need no cast are not copied: layers share them.
    """
    width = training.compute_bytes if training.autocast else 4
    widths = linear_widths(sizes)
    adapted = [role for role in training.adapted if role in widths]
    copied = not training.upcast or training.autocast
    inputs = {role if copied else _SHARED[role]: widths[role][0] for role in adapted}
    inputs.pop(_AMONG_HEADS, None)
    return width * (sum(inputs.values()) + training.config.lora_rank * len(adapted))


def logits(sizes: Sizes, training: Training) -> Term:
    """The output of the head, the log-softmax and two gradients, as the backward pass starts.

    The 16-bit output itself is gone by then, but the allocator holds on to its block. Capped logits
    save what the cap computed.
    """
    if training.config.loss != "default":  # the full logits are never held
        return Term("logits", 0, "computed in chunks by the fused loss")
    tokens, width = training.tokens, training.compute_bytes
    parts = [width] * ((width < 4) + sizes.capped_logits) + [4, 4, 4]
    text = f"{tokens:,} tokens x {sizes.vocabulary:,} x ({' + '.join(map(str, parts))}) bytes"
    return Term("logits", tokens * sizes.vocabulary * sum(parts), text)
