"""A lower bound of a rung's memory: what is certainly on the device when the optimizer steps.

Every term must be there at that moment, so a rung whose bound is above the budget needs no try.
Activations, adapters, buffers and library memory are left out: they can only add to it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from oomdoctor.analysis.memory.closed_form import (
    Term,
    product,
    quantized_terms,
    shared,
    state_width,
)
from oomdoctor.records.configuration.config import (
    TrainConfig,
    has_reference_model,
    steps_in_backward,
)
from oomdoctor.records.facts.dtypes import dtype_bytes
from oomdoctor.records.job.model import ParameterCounts


@dataclass(frozen=True, slots=True)
class Bound:
    """Bytes that a rung certainly needs, and the sentence that adds them up."""

    size_bytes: int
    arithmetic: str


def lower_bound(config: TrainConfig, counts: ParameterCounts, *, all_learn: bool = True) -> Bound:
    """The lower bound of a rung on one device: weights, gradients and optimizer states.

    For LoRA only the base is counted. With `all_learn` False some parameters may get no gradient
    (such as a vision tower in training on text), so only the weights are certain. So it is with
    frozen layers.
    """
    if config.offload == "parameters":
        return Bound(0, "the parameters are kept in host memory, so nothing is certain")
    counts = built_counts(config, counts)
    shards = shards_of(config)
    weight_shards = 1 if config.sharding in ("zero1", "zero2") or _is_copied(config) else shards
    terms = [shared(term, weight_shards) for term in _weights(config, counts)]
    if config.method == "full" and all_learn and not config.frozen_layers:
        terms += [shared(term, shards) for term in _training(config, counts)]
    return Bound(sum(term.size_bytes for term in terms), ", ".join(term.text() for term in terms))


def built_counts(config: TrainConfig, counts: ParameterCounts) -> ParameterCounts:
    """At most the parameters of the model that a rung builds.

    A reward model has a score instead of the output head, which is half of what counts as
    embedding. If the head shares its weights with the embedding, this is too few.
    """
    if config.objective != "reward":
        return counts
    head = counts.embedding // 2
    return replace(counts, total=counts.total - head, embedding=counts.embedding - head)


def shards_of(config: TrainConfig) -> int:
    """Into how many parts the training is split; each GPU holds one."""
    if config.sharding in ("none", "ddp"):
        return 1
    return config.gpus_per_node if config.sharding == "hybrid" else config.world_size


def _is_copied(config: TrainConfig) -> bool:
    """Whether each GPU holds all of the quantized weights: engines shard floating types only."""
    packed = config.quantization == "nf4" and config.quant_storage == "uint8"
    return packed or config.quantization == "int8"


def weights_bytes(config: TrainConfig, counts: ParameterCounts) -> int:
    """Bytes of all weights on one device without sharding, with those of a reference model."""
    return sum(term.size_bytes for term in _weights(config, built_counts(config, counts)))


def state_bytes(config: TrainConfig, counts: ParameterCounts) -> int | None:
    """Bytes of optimizer state certainly on the device in full training; None if unknown."""
    each = None if config.frozen_layers else _state_width(config)
    return None if each is None else _learning(built_counts(config, counts)) * each


def keeps_all_gradients(config: TrainConfig) -> bool:
    """Whether all gradients are certainly on the device together when the optimizer steps.

    An optimizer whose states are not known may free gradients layer by layer.
    """
    return _state_width(config) is not None and not steps_in_backward(config)


def _state_width(config: TrainConfig) -> int | None:
    each = dtype_bytes(config.weights_dtype)
    return state_width(config.optimizer, each, offloaded=config.offload == "optimizer")


def _weights(config: TrainConfig, counts: ParameterCounts) -> list[Term]:
    each = dtype_bytes(config.weights_dtype)
    if config.quantization != "none":
        return quantized_terms(config, counts.linear, counts.total - counts.linear)
    names = ("weights", "reference model") if has_reference_model(config) else ("weights",)
    return [product(name, counts.total, each) for name in names]


def _training(config: TrainConfig, counts: ParameterCounts) -> list[Term]:
    each = _state_width(config)
    if each is None:
        return []
    gradient = dtype_bytes(config.weights_dtype) if keeps_all_gradients(config) else 0
    sizes = {"gradients": gradient, "optimizer states": each}
    return [product(name, _learning(counts), size) for name, size in sizes.items() if size]


def _learning(counts: ParameterCounts) -> int:
    """Parameters that certainly get a gradient: of routed experts those of a single token."""
    if not counts.experts:
        return counts.total
    idle = counts.experts - counts.experts_per_token
    return counts.total - -(-counts.routed_experts * idle // counts.experts)
