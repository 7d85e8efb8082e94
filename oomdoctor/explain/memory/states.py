"""What certainly lies on the device: weights, gradients and optimizer states, in closed form."""

from __future__ import annotations

from dataclasses import dataclass

from oomdoctor.explain.memory.sizes import Sizes
from oomdoctor.explain.training.training import DTYPE_BYTES, Training
from oomdoctor.units import format_bytes

# Bytes of optimizer state for each trainable parameter; True: times the width of the weight.
STATE_BYTES: dict[str, tuple[float, bool]] = {
    "adamw_torch": (2, True),
    "adamw_torch_fused": (2, True),
    "adamw_hf": (2, True),
    "adamw_apex_fused": (2, True),
    "adamw_bnb_8bit": (2, False),
    "adamw_8bit": (2, False),
    "lion_8bit": (1, False),
    "lion_32bit": (4, False),
    "paged_adamw_8bit": (0, False),
    "paged_adamw_32bit": (0, False),
    "paged_adamw": (0, False),
    "paged_lion_8bit": (0, False),
    "paged_lion_32bit": (0, False),
    "adafactor": (0, False),
    "sgd": (0, False),
}


@dataclass(frozen=True, slots=True)
class Term:
    """One part of the memory with the product that gives it."""

    name: str
    size_bytes: int
    arithmetic: str

    def text(self) -> str:
        """`weights 8,030,261,248 x 2 bytes = 15.0 GiB`."""
        return f"{self.name} {self.arithmetic} = {format_bytes(self.size_bytes)}"


def weights(sizes: Sizes, training: Training) -> Term:
    """The weights on one device."""
    each = DTYPE_BYTES[training.weights_dtype]
    if training.method == "qlora":
        rest = sizes.embedding_parameters
        linear = sizes.parameters - rest
        packed = 0.5 + 1 / 64 * (1 + 4 / 256) if training.quantization != "int8" else 1
        size = round(linear * packed) + rest * each
        text = f"{linear:,} x {packed:.3g} byte + {rest:,} x {each} bytes"
        return Term("quantised weights", size, text)
    return _shared("weights", sizes.parameters, each, training.world_size * (training.stage >= 3))


def trainable(sizes: Sizes, training: Training) -> int:
    """Parameters that learn: all of them, or those of the adapters."""
    if training.method == "full":
        return sizes.parameters
    widths = linear_widths(sizes)
    edges = sum(sum(widths[role]) for role in training.adapted if role in widths)
    return sizes.layers * training.lora_rank * edges


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
    """One gradient a trainable parameter, in the type of its weight (adapters: 4 bytes)."""
    each = DTYPE_BYTES[training.weights_dtype] if training.method == "full" else 4
    count = trainable(sizes, training)
    return _shared("gradients", count, each, training.world_size * (training.stage >= 2))


def optimizer_states(sizes: Sizes, training: Training) -> Term:
    """States on the device; an optimizer that is not in the table counts as Adam in 32 bits."""
    if training.offload_optimizer:
        return Term("optimizer states", 0, "kept in host memory")
    known, follows = STATE_BYTES.get(training.optimizer, (8, False))
    width = DTYPE_BYTES[training.weights_dtype] if training.method == "full" else 4
    each = known * width if follows else known
    if training.master_weights:
        each = 12  # Rajbhandari et al. 2020, section 3.1: 32-bit weight, momentum and variance
    shards = training.world_size * (training.stage >= 1)
    return _shared("optimizer states", trainable(sizes, training), each, shards)


def _shared(name: str, count: int, each: float, shards: int) -> Term:
    text = f"{count:,} x {each:g} byte{'' if each == 1 else 's'}"
    if shards > 1:
        return Term(name, round(count * each / shards), f"{text} / {shards} devices")
    return Term(name, round(count * each), text)
