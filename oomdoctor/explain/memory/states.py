"""What is certainly on the device: weights, gradients and optimizer states, in closed form."""

from __future__ import annotations

from oomdoctor.analysis.memory.closed_form import (
    Term,
    product,
    quantized_terms,
    state_width,
    trained_bytes_of,
)
from oomdoctor.explain.memory.model_sizes import Sizes
from oomdoctor.explain.training.assumed import Training
from oomdoctor.records.configuration.config import has_quantized_experts, steps_in_backward
from oomdoctor.records.facts.dtypes import dtype_bytes
from oomdoctor.records.facts.optimizers import optimizer_named

# An unknown optimizer counts as Adam in 32 bits.
_UNKNOWN_STATE_BYTES = 8
# DeepSpeed's 32-bit weight, momentum and variance (Rajbhandari et al. 2020, section 3.1).
_MASTER_STATE_BYTES = 12


def weights(sizes: Sizes, training: Training) -> Term:
    """The weights of the model on one device, without adapters."""
    if training.config.method == "qlora":
        rest = sizes.embedding_parameters + sizes.norm_parameters
        if training.stacked_experts and not has_quantized_experts(training.config):
            rest += sizes.expert_parameters
        linear = sizes.parameters - rest
        *quantized, others = quantized_terms(training.config, linear, rest)
        packed = sum(term.size_bytes for term in quantized)
        text = f"{linear:,} x {packed / max(1, linear):.3g} byte + {others.arithmetic}"
        return Term("quantized weights", packed + others.size_bytes, text)
    each = dtype_bytes(training.config.weights_dtype)
    return product("weights", sizes.parameters, each, training.shards(3))


def adapters(sizes: Sizes, training: Training) -> Term | None:
    """The weights of the adapters; None in full training."""
    if training.config.method == "full":
        return None
    each = trained_bytes_of(training.config)
    return product("adapters", trainable(sizes, training), each, training.shards(3))


def gathered(sizes: Sizes, training: Training) -> Term | None:
    """Sharded weights that are whole on every device: the layer at work and the next one."""
    if training.stage < 3 or training.config.world_size < 2:
        return None
    each = dtype_bytes(training.config.weights_dtype)
    return product("gathered weights", 2 * sizes.layer_parameters, each)


def temporaries(sizes: Sizes, training: Training) -> Term | None:
    """What the optimizer step needs beside its states: foreach updates all tensors at once.

    `_multi_tensor_adamw` allocates one temporary as large as the second moment.
    """
    row, states = optimizer_named(training.config.optimizer), optimizer_states(sizes, training)
    if row is None or row.kernel != "foreach" or row.moments != 2 or not states.size_bytes:
        return None
    if steps_in_backward(training.config):
        each = trained_bytes_of(training.config)
        return product("temporaries of the step", largest_parameter(sizes), each)
    return Term("temporaries of the step", states.size_bytes // 2, "half of the states (foreach)")


def trainable(sizes: Sizes, training: Training) -> int:
    """The number of trainable parameters: all of them, or those of the adapters."""
    if training.config.method == "full":
        return sizes.parameters
    widths = linear_widths(sizes)
    edges = sum(sum(widths[role]) for role in training.adapted if role in widths)
    return sizes.layers * training.config.lora_rank * edges


def linear_widths(sizes: Sizes) -> dict[str, tuple[int, int]]:
    """Input and output width of the linear layers of one decoder layer, by role."""
    query, pair, wide = sizes.query_width, sizes.kv_width, sizes.intermediate
    widths = {
        "q": (sizes.hidden, query),
        "k": (sizes.hidden, pair),
        "v": (sizes.hidden, pair),
        "o": (query, sizes.hidden),
        "up": (sizes.hidden, wide),
        "down": (wide, sizes.hidden),
    }
    return widths | {"gate": (sizes.hidden, wide)} if sizes.gated else widths


def gradients(sizes: Sizes, training: Training) -> Term:
    """One gradient per trainable parameter, in the type of its weight or adapter.

    If the optimizer steps in the backward pass, only that of one tensor is held.
    """
    if steps_in_backward(training.config):
        return product("gradients", largest_parameter(sizes), trained_bytes_of(training.config))
    return gradients_of(trainable(sizes, training), training)


def gradients_of(count: int, training: Training) -> Term:
    """The gradients of so many parameters, on one device."""
    return product("gradients", count, trained_bytes_of(training.config), training.shards(2))


def largest_parameter(sizes: Sizes) -> int:
    """The number of elements of the largest tensor: the embedding, or a layer's matrix."""
    return max(sizes.vocabulary * sizes.embedding, sizes.hidden * sizes.intermediate)


def optimizer_states(sizes: Sizes, training: Training) -> Term:
    """The optimizer states on the device."""
    if training.states_on_host:
        return Term("optimizer states", 0, "kept in host memory")
    width = trained_bytes_of(training.config)
    each = state_width(training.config.optimizer, width)
    if training.master_weights:
        each = _MASTER_STATE_BYTES
    elif each is None:
        each = _UNKNOWN_STATE_BYTES
    return product("optimizer states", trainable(sizes, training), each, training.shards(1))
