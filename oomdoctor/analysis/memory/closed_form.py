"""The arithmetic of weights, gradients and optimizer states: bytes from counts of parameters.

The lower bound, the formula view and `explain` all call it. They differ in what they assume about
a run; how many bytes an assumption costs is decided here.
"""

from __future__ import annotations

from dataclasses import dataclass

from oomdoctor.records.configuration.adapters import kept_dtype
from oomdoctor.records.configuration.config import TrainConfig
from oomdoctor.records.facts.dtypes import FLOAT32_BYTES, dtype_bytes
from oomdoctor.records.facts.optimizers import OPTIMIZERS, optimizer_named
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
    each = FLOAT32_BYTES if config.kbit_prepare == "peft" else dtype_bytes(config.weights_dtype)
    rest = product("other weights", others, each)
    packed = packed_bytes(linear, config.quantization)
    if config.quantization == "int8":
        return [product("8-bit weights", packed, 1), rest]
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
