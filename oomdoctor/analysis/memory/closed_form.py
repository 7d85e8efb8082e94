"""The arithmetic of weights, gradients and optimizer states: bytes from counts of parameters.

The formula view and `explain` call it, and the lower bound of a rung's memory: what is certainly on
the device when the optimizer steps. They differ in what they assume about a run; how many bytes an
assumption costs is decided here.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from oomdoctor.records.configuration.adapters import kept_dtype
from oomdoctor.records.configuration.config import (
    TrainConfig,
    has_quantized_experts,
    has_reference_model,
    is_cast_by_peft,
    steps_in_backward,
)
from oomdoctor.records.facts.dtypes import FLOAT32_BYTES, dtype_bytes
from oomdoctor.records.facts.optimizers import OPTIMIZERS, optimizer_named
from oomdoctor.records.job.model import ParameterCounts
from oomdoctor.units import format_bytes

_NF4_BLOCK = 64  # bitsandbytes: weights that share one scale
_NF4_NESTED_BLOCK = 256  # scales that share one float32 scale when double-quantized
_STATE_BLOCK = 256  # 8-bit states that share one float32 constant


@dataclass(frozen=True, slots=True)
class Term:
    """One part of the memory, with the product that gives it."""

    name: str
    size_bytes: int
    arithmetic: str

    def text(self) -> str:
        """`weights 8,030,261,248 x 2 bytes = 15.0 GiB`."""
        return f"{self.name} {self.arithmetic} = {format_bytes(self.size_bytes)}"


def product(name: str, count: int, each: int, shards: int = 1) -> Term:
    """`count` entries of `each` bytes, split evenly over `shards` devices."""
    text = f"{count:,} x {each} byte{'' if each == 1 else 's'}"
    return shared(Term(name, count * each, text), shards)


def shared(term: Term, shards: int) -> Term:
    """The part of a term that each of several devices has."""
    if shards <= 1:
        return term
    return Term(term.name, term.size_bytes // shards, f"{term.arithmetic} / {shards} devices")


def trained_bytes_of(config: TrainConfig) -> int:
    """Bytes of one trained parameter, and of its gradient: the weight's own, or the adapter's."""
    return dtype_bytes(config.weights_dtype if config.method == "full" else kept_dtype(config))


def packed_bytes(count: int, quantization: str) -> int:
    """Bytes of quantized weights without their block constants."""
    return count if quantization == "int8" else count // 2


def constant_bytes(count: int, *, double_quant: bool) -> int:
    """Bytes of the scales of bitsandbytes' 4-bit blocks; one each when quantized themselves."""
    blocks = count // _NF4_BLOCK
    if not double_quant:
        return FLOAT32_BYTES * blocks
    return blocks + FLOAT32_BYTES * (blocks // _NF4_NESTED_BLOCK)


def quantized_terms(config: TrainConfig, linear: int, others: int) -> list[Term]:
    """The frozen weights of QLoRA; `linear` parameters are quantized, `others` are not.

    peft's preparation (`prepare_model_for_kbit_training`) casts what is not quantized to float32.
    """
    cast = is_cast_by_peft(config)
    each = FLOAT32_BYTES if cast else dtype_bytes(config.weights_dtype)
    rest = product("other weights", others, each)
    packed = packed_bytes(linear, config.quantization)
    if config.quantization == "int8":
        return [product("8-bit weights", packed, 1), rest]
    if config.quantization == "checkpoint":  # its scheme is known to the simulation
        return [Term("stored weights", packed, f"{linear:,} x 0.5 byte or more"), rest]
    scales = constant_bytes(linear, double_quant=config.double_quant)
    return [
        Term("4-bit weights", packed, f"{linear:,} x 0.5 byte"),
        Term("block constants", scales, f"{scales:,} bytes"),
        rest,
    ]


def state_width(optimizer: str, weight_bytes: int, *, offloaded: bool = False) -> int | None:
    """Bytes of optimizer state on the device for each trained parameter; None if not known.

    Paged states may leave the device, so they count as 0.
    """
    row = optimizer_named(optimizer)
    width = None if row is None else row.device_state_bytes(weight_bytes)
    return 0 if offloaded and width is not None else width


def state_ceiling(optimizer: str, weight_bytes: int, linear: int, others: int) -> int | None:
    """The most bytes that states and temporaries of a step can take; None if not known.

    `linear` and `others` are trained parameters in linear layers and elsewhere. bitsandbytes may
    keep 32-bit states for embeddings and small tensors, and one float32 constant for each block of
    8-bit values; there is room for the constants of four states.
    """
    row = OPTIMIZERS.get(optimizer)
    if row is None or row.moments is None or row.gradient_copies is None:
        return None
    copies = row.gradient_copies * weight_bytes * (linear + others)
    each = weight_bytes if row.moment_bytes is None else row.moment_bytes
    if not row.eight_bit:
        return copies + int(row.moments * each * (linear + others))
    constants = 4 * FLOAT32_BYTES * linear // _STATE_BLOCK
    return copies + row.moments * (FLOAT32_BYTES * others + linear) + constants


@dataclass(frozen=True, slots=True)
class Bound:
    """Bytes that a rung certainly needs, and the sentence that adds them up.

    A rung whose bound is above the budget needs no try. Activations, adapters, buffers and library
    memory are left out: they can only add to it.
    """

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
        quantized = counts.linear
        if has_quantized_experts(config):
            quantized += min(counts.rest, counts.routed_experts)
        return quantized_terms(config, quantized, counts.total - quantized)
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
