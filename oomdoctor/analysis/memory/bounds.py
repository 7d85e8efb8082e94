"""A floor under the memory of a rung: what certainly lies on the device when the optimizer steps.

Every term is a thing that cannot be missing at that moment, so a rung whose floor is above the
budget needs no try. Activations, adapters, buffers and library memory are left out: they only add.
"""

from __future__ import annotations

from dataclasses import dataclass

from oomdoctor.records.config import TrainConfig
from oomdoctor.records.model import ParameterCounts
from oomdoctor.units import format_bytes

DTYPE_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}
_NF4_BLOCK = 64  # bitsandbytes: weights that share one scale
_NF4_NESTED_BLOCK = 256  # scales that share one float32 scale when double-quantised
# Optimizers that step after the backward pass, when all gradients exist, and the bytes of state
# they certainly keep on the device for each parameter (torch follows the type of the weight).
# bitsandbytes keeps more than this for embeddings and small tensors; paged states may leave the
# device. An optimizer that is not here may drop gradients layer by layer, so nothing is certain.
_STATE_BYTES: dict[str, tuple[int, bool]] = {
    "adamw_torch": (2, True),
    "adamw_torch_fused": (2, True),
    "adamw_bnb_8bit": (2, False),
    "adamw_8bit": (2, False),
    "lion_8bit": (1, False),
    "lion_32bit": (4, False),
    "paged_adamw_8bit": (0, False),
    "paged_adamw_32bit": (0, False),
    "paged_lion_8bit": (0, False),
    "paged_lion_32bit": (0, False),
    "adafactor": (0, False),
    "sgd": (0, False),
}


@dataclass(frozen=True, slots=True)
class Bound:
    """Bytes that a rung certainly needs, and the sentence that adds them up."""

    size_bytes: int
    arithmetic: str


@dataclass(frozen=True, slots=True)
class _Term:
    name: str
    sum_text: str
    size_bytes: int


def lower_bound(
    config: TrainConfig,
    counts: ParameterCounts,
    trainable: int | None,
    *,
    all_learn: bool = True,
) -> Bound:
    """The floor of a rung on one device: weights, gradients and optimizer states.

    `trainable` is the number of parameters with gradients where it is known; of LoRA only the base
    is counted. `all_learn` False says that some parameters may get no gradient (a vision tower
    that text does not enter), so that only the weights are certain.
    """
    if config.offload == "parameters":
        return Bound(0, "the parameters are kept in host memory, so nothing is certain")
    shards = config.world_size if config.sharding not in ("none", "ddp") else 1
    weight_shards = 1 if config.sharding in ("zero1", "zero2") else shards
    terms = [_shared(term, weight_shards) for term in _weights(config, counts)]
    if config.method == "full" and all_learn:
        terms += [_shared(term, shards) for term in _training(config, counts, trainable)]
    total = sum(term.size_bytes for term in terms)
    text = ", ".join(f"{t.name} {t.sum_text} = {format_bytes(t.size_bytes)}" for t in terms)
    return Bound(total, text)


def weights_bytes(config: TrainConfig, counts: ParameterCounts) -> int:
    """Bytes of the base weights alone, unsharded and on the device."""
    return sum(term.size_bytes for term in _weights(config, counts))


def state_bytes(config: TrainConfig, counts: ParameterCounts) -> int | None:
    """Bytes of optimizer state certainly on the device in full training; None when unknown."""
    known = _STATE_BYTES.get(config.optimizer)
    if known is None:
        return None
    if config.offload == "optimizer":
        return 0
    each, follows = known
    return _learning(counts) * each * (DTYPE_BYTES[config.weights_dtype] if follows else 1)


def keeps_all_gradients(config: TrainConfig) -> bool:
    """Whether all gradients certainly lie on the device together when the optimizer steps."""
    return config.optimizer in _STATE_BYTES


def _weights(config: TrainConfig, counts: ParameterCounts) -> list[_Term]:
    each = DTYPE_BYTES[config.weights_dtype]
    if config.quantization == "none":
        return [_term("weights", counts.total, each)]
    # peft's preparation casts everything that is not quantised to float32.
    rest = 4 if config.kbit_prepare == "peft" else each
    others = _term("other weights", counts.total - counts.linear, rest)
    if config.quantization == "int8":
        return [_term("8-bit weights", counts.linear, 1), others]
    blocks = counts.linear // _NF4_BLOCK
    scales = blocks + 4 * (blocks // _NF4_NESTED_BLOCK) if config.double_quant else 4 * blocks
    return [
        _Term("4-bit weights", f"{counts.linear:,} x 0.5 byte", counts.linear // 2),
        _Term("block constants", f"{scales:,} bytes", scales),
        others,
    ]


def _training(config: TrainConfig, counts: ParameterCounts, trainable: int | None) -> list[_Term]:
    known = _STATE_BYTES.get(config.optimizer)
    if known is None:
        return []
    learning = _learning(counts)
    if trainable is not None:
        learning = max(0, learning - (counts.total - min(trainable, counts.total)))
    width = DTYPE_BYTES[config.weights_dtype]
    terms = [_term("gradients", learning, width)]
    each, follows = known
    if each and config.offload == "none":
        terms.append(_term("optimizer states", learning, each * width if follows else each))
    return terms


def _learning(counts: ParameterCounts) -> int:
    """Parameters that get a gradient for certain: of routed experts those of a single token."""
    if not counts.experts:
        return counts.total
    idle = counts.experts - counts.experts_per_token
    return counts.total - -(-counts.routed_experts * idle // counts.experts)


def _term(name: str, count: int, each: int) -> _Term:
    return _Term(name, f"{count:,} x {each} byte{'s' if each > 1 else ''}", count * each)


def _shared(term: _Term, shards: int) -> _Term:
    if shards == 1:
        return term
    return _Term(term.name, f"{term.sum_text} / {shards} devices", term.size_bytes // shards)
