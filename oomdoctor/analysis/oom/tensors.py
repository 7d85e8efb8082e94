"""The tensor that did not fit: which tensor of the model has the size that was asked for.

A message prints two decimals, and PyTorch's allocator rounds a request up before it prints it, so
a size stands for an interval. Every tensor in one table is computed from the model's sizes, the
batch and the length; where these are unknown, whole numbers that fit the interval are looked for.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import prod

from oomdoctor.analysis.oom.memory_model import Sizes, trainable, training_of
from oomdoctor.analysis.oom.settings import Setup
from oomdoctor.records.diagnosis import Confidence, Frame, Tensor
from oomdoctor.units import GIB, KIB, MIB, format_bytes

# Allocators that print the segment they wanted, not the tensor: c10/cuda/CUDACachingAllocator.cpp,
# get_allocation_size: up to 1 MiB takes 2 MiB, below 10 MiB takes 20 MiB, else the next 2 MiB.
_SEGMENTS = frozenset({"cuda_caching_allocator", "hip", "xpu"})
_SMALL, _LARGE_SEGMENT, _LARGE, _ROUND = MIB, 20 * MIB, 10 * MIB, 2 * MIB
_LENGTHS = tuple(2**n for n in range(5, 21)) + tuple(3 * 2**n for n in range(5, 17))
# Vocabularies of common families, for when only batch and length are known.
VOCABULARIES = {
    30522: "BERT",
    32000: "Llama 2, Mistral",
    32064: "Phi-3",
    49152: "SmolLM, StarCoder",
    50257: "GPT-2",
    50304: "GPT-2 padded, Pythia",
    100352: "Phi-4",
    128256: "Llama 3",
    131072: "Mistral Nemo",
    151936: "Qwen, small",
    152064: "Qwen, large",
    248320: "Qwen 3.5",
    256000: "Gemma",
    262144: "Gemma 3",
}


@dataclass(frozen=True, slots=True)
class Kind:
    """A tensor by its dimensions: letters of known sizes, such as "B S V".

    `width` are the possible bytes of an element. `phases` are those in which it is asked for,
    `hint` is what a frame shows when it is; a kind without a hint in sight needs its phase.
    """

    name: str
    dimensions: str
    widths: tuple[int, ...]
    phases: tuple[str, ...]
    hint: str


# Letters: B batch, S sequence, V vocabulary, E embedding width, H hidden, A heads, D head width,
# K key-value heads, I intermediate, Q query width, G = 2 x I, X experts, L layers, P parameters.
_STEP = ("forward", "backward")
KINDS: tuple[Kind, ...] = (
    Kind(
        "logits",
        "B S V",
        (4, 2),
        ("loss", "forward", "backward", "eval"),
        r"loss_utils|cross_entropy|log_softmax|lm_head|logits|\.float\(\)|fixed_cross",
    ),
    Kind(
        "shifted logits",
        "B S-1 V",
        (4, 2),
        ("loss", "forward", "backward", "eval"),
        r"shift_logits|cross_entropy|\[\.\.\., :-1",
    ),
    Kind(
        "attention scores of one layer (eager attention)",
        "B A S S",
        (4, 2),
        (*_STEP, "eval", "generate"),
        r"eager_attention|softmax|matmul\(q|torch\.matmul|attn_weights|baddbmm|bmm",
    ),
    Kind("causal mask", "B 1 S S", (4, 2, 1), ("forward", "eval", "generate"), r"mask"),
    Kind(
        "MLP intermediate of one layer",
        "B S I",
        (4, 2),
        (*_STEP, "eval", "generate"),
        r"mlp|gate_proj|up_proj|down_proj|act_fn|feed_forward|intermediate|c_fc|fc1|gelu|silu",
    ),
    Kind("gate and up projection of one layer", "B S G", (4, 2), _STEP, r"gate_up"),
    Kind(
        "hidden states",
        "B S H",
        (4, 2),
        (*_STEP, "eval", "generate"),
        r"norm|residual|hidden_states|embed",
    ),
    Kind("queries of one layer", "B S Q", (4, 2), _STEP, r"q_proj|query|c_attn|rotary"),
    Kind(
        "keys or values of one layer",
        "B K S D",
        (4, 2),
        ("generate", "forward"),
        r"cache|k_proj|v_proj|key_states|value_states",
    ),
    Kind(
        "output head or embedding table, or a copy of it",
        "V H",
        (4, 2),
        ("load", "init", "save"),
        r"lm_head|embed|tie_weights|resize",
    ),
    Kind(
        "gradient of the output head or of the embedding",
        "V H",
        (4, 2),
        ("backward", "clip"),
        r"embedding|backward|clip_grad|unscale",
    ),
    Kind(
        "optimizer state or temporary of the embedding",
        "V H",
        (4, 2),
        ("optimizer",),
        r"adam|foreach|exp_avg|zeros_like|optim",
    ),
    Kind("one copy of lm_head", "V H", (4, 2), ("loss", "forward"), r"lm_head|F\.linear|float"),
    Kind(
        "MLP weight of one layer",
        "I H",
        (4, 2),
        ("load", "init", "optimizer", "backward"),
        r"proj|mlp|_apply|load|adam|foreach|to\(",
    ),
    Kind(
        "stacked expert weights of one layer",
        "X G H",
        (4, 2),
        ("load", "init", "optimizer", "backward"),
        r"experts|load|adam",
    ),
    Kind(
        "flat buffer of all learning parameters",
        "P",
        (4, 2),
        ("init", "load", "optimizer", "backward", "save"),
        r"flatten|flat_|stage_1_and_2|stage3|_broadcast|allreduce|all_reduce",
    ),
    Kind(
        "flat buffer of one layer's parameters",
        "W",
        (4, 2),
        ("init", "forward", "backward", "optimizer"),
        r"fsdp|flat_param|unshard|all_gather",
    ),
)
# Buffers whose size is a default of a library, whatever the model.
_BUCKETS: tuple[tuple[int, str, str], ...] = (
    (5 * 10**8 * 2, "DeepSpeed bucket of 5e8 elements in 16 bits", r"deepspeed"),
    (5 * 10**8 * 4, "DeepSpeed bucket of 5e8 elements in 32 bits", r"deepspeed"),
    (2 * 10**8 * 2, "DeepSpeed bucket of 2e8 elements in 16 bits", r"deepspeed"),
    (25 * MIB, "gradient bucket of DistributedDataParallel", r"distributed|reducer"),
)
_RANK: dict[Confidence, int] = {"high": 0, "medium": 1, "low": 2}


def allocation(size: int, dialect: str) -> int:
    """What the allocator asks the device for, for a tensor of `size` bytes."""
    if dialect not in _SEGMENTS:
        return size
    if size <= _SMALL:
        return _ROUND
    if size < _LARGE:
        return _LARGE_SEGMENT
    return -(-size // _ROUND) * _ROUND


def fits_figure(size: int, requested: int, dialect: str) -> bool:
    """Whether a tensor of `size` bytes would print the requested figure."""
    asked = allocation(size, dialect)
    if requested % KIB and requested < MIB:
        return asked == requested
    unit = GIB if requested >= GIB else MIB if requested >= MIB else KIB
    # Half of the last decimal; a whole one where a program cut instead of rounding.
    return abs(asked - requested) <= unit // 100


def is_pool_segment(requested: int | None, dialect: str) -> bool:
    """Whether the request is the segment for any small tensor, which tells nothing of its size."""
    return dialect in _SEGMENTS and requested in (_ROUND, _LARGE_SEGMENT)


def matches(
    requested: int | None,
    *,
    dialect: str,
    phase: str,
    frames: Sequence[Frame],
    sizes: Sizes | None,
    setup: Setup,
    code: str = "",
) -> tuple[Tensor, ...]:
    """The tensors whose size is the requested one, the likeliest first; at most six."""
    if requested is None or requested < MIB or is_pool_segment(requested, dialect):
        return ()
    shown = frames[-6:]
    near = " ".join(f"{f.file} {f.function} {f.code or ''}" for f in shown) + " " + code
    found: list[tuple[int, Tensor]] = []
    if sizes is not None:
        found += _of_model(requested, dialect, phase, near, sizes, setup)
    elif setup.micro_batch_size and setup.sequence_length:
        found += _of_vocabulary(requested, dialect, phase, near, setup)
    for size, name, hint in _BUCKETS:
        everywhere = " ".join(f.file for f in frames)
        if fits_figure(size, requested, dialect) and re.search(hint, everywhere):
            tensor = Tensor(size, (), name, None, "medium", f"{size:,} bytes by default")
            found.append((1, tensor))
    found.sort(key=lambda pair: (_RANK[pair[1].likelihood], pair[0]))
    unique: dict[tuple[str, tuple[int, ...], str | None], Tensor] = {}
    for _, tensor in found:
        unique.setdefault((tensor.name, tensor.shape, tensor.dtype), tensor)
    return tuple(unique.values())[:6]


def _of_model(
    requested: int, dialect: str, phase: str, near: str, sizes: Sizes, setup: Setup
) -> Iterator[tuple[int, Tensor]]:
    letters = _letters(sizes, setup)
    for kind in KINDS:
        hinted = re.search(kind.hint, near) is not None
        agrees = phase in kind.phases
        elsewhere = hinted and phase in ("eval", "generate")
        untold = phase == "unknown" and (hinted or kind.dimensions not in ("P", "W"))
        if not (agrees or elsewhere or untold):
            continue
        for place, width in enumerate(kind.widths):
            for shape, solved in _shapes(kind, letters, requested, width, dialect, sizes):
                if solved and not hinted:
                    continue  # with two free numbers something always fits
                level: Confidence = "medium" if solved or not (hinted and agrees) else "high"
                if not agrees and not hinted:
                    level = "low"
                yield (
                    (2 if solved else 0) + (0 if hinted else 1) + place,
                    _tensor(kind.name, shape, width, level, solved),
                )


def _of_vocabulary(
    requested: int, dialect: str, phase: str, near: str, setup: Setup
) -> Iterator[tuple[int, Tensor]]:
    """Logits of a common vocabulary, when batch and length are known and the model is not."""
    if phase not in ("loss", "forward", "backward", "eval") or not re.search(KINDS[0].hint, near):
        return
    assert setup.micro_batch_size and setup.sequence_length  # for the type checker
    for vocabulary, family in VOCABULARIES.items():
        for width in (4, 2):
            shape = (setup.micro_batch_size, setup.sequence_length, vocabulary)
            if fits_figure(prod(shape) * width, requested, dialect):
                yield 0, _tensor(f"logits (vocabulary of {family})", shape, width, "medium", False)


def _letters(sizes: Sizes, setup: Setup) -> dict[str, int | None]:
    training, _ = training_of(setup, {})
    length = setup.sequence_length
    return {
        "B": setup.micro_batch_size,
        "S": length,
        "S-1": length - 1 if length else None,
        "V": sizes.vocabulary,
        "E": sizes.embedding,
        "H": sizes.hidden,
        "A": sizes.heads,
        "D": sizes.head_width,
        "K": sizes.kv_heads,
        "I": sizes.intermediate,
        "G": 2 * sizes.intermediate,
        "Q": sizes.query_width,
        "X": sizes.experts or None,
        "P": trainable(sizes, training),
        "W": sizes.layer_parameters,
        "1": 1,
    }


def _shapes(
    kind: Kind,
    letters: dict[str, int | None],
    requested: int,
    width: int,
    dialect: str,
    sizes: Sizes,
) -> Iterator[tuple[tuple[int, ...], bool]]:
    """Shapes of this kind with the requested size; True where batch or length was solved for."""
    names = kind.dimensions.split()
    values = [letters[name] for name in names]
    if all(value is not None for value in values):
        shape = tuple(value for value in values if value is not None)
        if fits_figure(prod(shape) * width, requested, dialect):
            yield shape, False
        return
    if "X" in names or "S-1" in names:
        return
    batches = [letters["B"]] if letters["B"] else [1, 2, 4, 8, 16, 32, 64]
    lengths = [letters["S"]] if letters["S"] else _likely_lengths(sizes)
    hits = 0
    for batch in batches:
        for length in lengths:
            known = {**letters, "B": batch, "S": length}
            shape = tuple(known[name] or 1 for name in names)
            if fits_figure(prod(shape) * width, requested, dialect):
                yield shape, True
                hits += 1
                break
        if hits == 2:
            return
    if hits or letters["S"] or "B" not in names or names.count("S") != 1:
        return
    # No round length fits: the length that batches of padded sequences have can be any number.
    each = prod(letters[name] or 1 for name in names if name not in ("B", "S")) * width
    tokens = requested // each
    batch = letters["B"] or 1
    length = tokens // batch
    if 16 <= length <= 2**20 and fits_figure(batch * length * each, requested, dialect):
        known = {**letters, "B": batch, "S": length}
        yield tuple(known[name] or 1 for name in names), True


def _likely_lengths(sizes: Sizes) -> list[int]:
    longest = sizes.longest or 2**20
    return sorted(length for length in _LENGTHS if length <= max(longest, 2048))


def _tensor(
    name: str, shape: tuple[int, ...], width: int, level: Confidence, solved: bool
) -> Tensor:
    size = prod(shape) * width
    product = " x ".join(str(value) for value in (*shape, width))
    note = " (batch and length solved for)" if solved else ""
    dtype = {4: "fp32", 2: "16-bit", 1: "8-bit"}[width]
    arithmetic = f"{format_bytes(size)} = {product} bytes: {dtype} {name}{note}"
    return Tensor(size, shape, f"{dtype} {name}", dtype, level, arithmetic)
