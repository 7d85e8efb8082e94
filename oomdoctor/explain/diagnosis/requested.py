"""The tensor that did not fit: which tensor of the model has the requested size.

A message prints two decimals, and PyTorch's allocator rounds a request up before it prints it, so
a printed size stands for an interval. The size of each kind of tensor follows from the model, the
batch and the sequence length; if those are unknown, we search for whole numbers that fit.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import prod

from oomdoctor.explain.memory.model_sizes import Sizes
from oomdoctor.explain.memory.states import trainable
from oomdoctor.explain.training.assumed import training_of
from oomdoctor.explain.training.known import Setup
from oomdoctor.package_data import data_of, in_tuples
from oomdoctor.records.report.diagnosis import Confidence, Frame, Tensor
from oomdoctor.stacks.partial_config import PartialConfig
from oomdoctor.units import GIB, KIB, MIB, format_bytes

# These allocators print the segment they requested, not the tensor. get_allocation_size in
# c10/cuda/CUDACachingAllocator.cpp: up to 1 MiB takes 2 MiB, below 10 MiB takes 20 MiB, above that
# the size is rounded up to 2 MiB.
_SEGMENTS = frozenset({"cuda_caching_allocator", "hip", "xpu"})
_SMALL, _LARGE_SEGMENT, _LARGE, _ROUND = MIB, 20 * MIB, 10 * MIB, 2 * MIB
_NEARBY = 64  # how many neighbouring lengths may print the same figure
_LENGTHS = tuple(2**n for n in range(5, 21)) + tuple(3 * 2**n for n in range(5, 17))
_RANK: dict[Confidence, int] = {"high": 0, "medium": 1, "low": 2}


@dataclass(frozen=True, slots=True)
class Kind:
    """A tensor by its dimensions: letters that stand for sizes, such as "B S V".

    `widths` are the possible bytes per element. `phases` are the ones that allocate it. `hint` is
    what the frames show at that moment. Without a hint the phase must match; a kind that few models
    have (`needs_hint`) must have both.
    """

    name: str
    dimensions: str
    widths: tuple[int, ...]
    phases: tuple[str, ...]
    hint: str
    needs_hint: bool = False


_TABLE = in_tuples(data_of("tensors.toml"))
KINDS = tuple(Kind(**row) for row in _TABLE["kind"])
# The family that usually has a vocabulary of this size.
VOCABULARIES = {int(size): family for size, family in _TABLE["vocabularies"].items()}
# Bytes, name and hint of buffers whose size does not depend on the model.
BUCKETS = tuple((row["bytes"], row["name"], row["hint"]) for row in _TABLE["bucket"])


def allocation(size: int, dialect: str) -> int:
    """The segment that the allocator requests for a tensor of `size` bytes."""
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
    # Rounding changes half of the last decimal; some programs truncate, which changes a whole one.
    return abs(asked - requested) <= unit // 100


def _prints(size: int, requested: int) -> bool:
    """Whether the size, rounded as PyTorch rounds it, prints as the requested size."""
    return format_bytes(size) == format_bytes(requested)


def is_pool_segment(requested: int | None, dialect: str) -> bool:
    """Whether the request is a segment for small tensors, which says nothing about their size."""
    return dialect in _SEGMENTS and requested in (_ROUND, _LARGE_SEGMENT)


def matches(
    requested: int | None,
    *,
    dialect: str,
    phase: str,
    frames: Sequence[Frame],
    sizes: Sizes | None,
    setup: PartialConfig,
    code: str = "",
) -> tuple[Tensor, ...]:
    """The tensors that have the requested size, most likely first; at most six."""
    if requested is None or requested < MIB or is_pool_segment(requested, dialect):
        return ()
    shown = frames[-6:]
    near = " ".join(f"{f.file} {f.function} {f.code or ''}" for f in shown) + " " + code
    found: list[tuple[int, Tensor]] = []
    if sizes is not None:
        found += _of_model(requested, dialect, phase, near, sizes, setup)
    elif setup.get("micro_batch_size") and setup.get("sequence_length"):
        found += _of_vocabulary(requested, dialect, phase, near, setup)
    for size, name, hint in BUCKETS:
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
    requested: int, dialect: str, phase: str, near: str, sizes: Sizes, setup: PartialConfig
) -> Iterator[tuple[int, Tensor]]:
    letters = _letters(sizes, setup)
    for kind in KINDS:
        hinted = re.search(kind.hint, near) is not None
        agrees = phase in kind.phases
        elsewhere = hinted and phase in ("eval", "generate")
        untold = phase == "unknown" and (hinted or kind.dimensions not in ("P", "W"))
        if not (agrees or elsewhere or untold) or (kind.needs_hint and not hinted):
            continue
        for place, width in enumerate(kind.widths):
            for shape, solved in _shapes(kind, letters, requested, width, dialect, sizes):
                if solved and not hinted:
                    continue  # with two unknowns, something always fits
                level: Confidence = "medium" if solved or not (hinted and agrees) else "high"
                if not agrees and not hinted:
                    level = "low"
                yield (
                    (2 if solved else 0) + (0 if hinted else 1) + place,
                    _tensor(kind.name, shape, width, level, solved),
                )


def _of_vocabulary(
    requested: int, dialect: str, phase: str, near: str, setup: PartialConfig
) -> Iterator[tuple[int, Tensor]]:
    """Logits of a common vocabulary, if batch and length are known but the model is not."""
    if phase not in ("loss", "forward", "backward", "eval") or not re.search(KINDS[0].hint, near):
        return
    batch, length = setup["micro_batch_size"], setup["sequence_length"]
    for vocabulary, family in VOCABULARIES.items():
        for width in (4, 2):
            shape = (batch, length, vocabulary)
            if fits_figure(prod(shape) * width, requested, dialect):
                yield 0, _tensor(f"logits (vocabulary of {family})", shape, width, "medium", False)


def _letters(sizes: Sizes, setup: PartialConfig) -> dict[str, int | None]:
    training, _ = training_of(Setup(setup), {})
    length = setup.get("sequence_length")
    return {
        "B": setup.get("micro_batch_size"),
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
    """Shapes of this kind with the requested size; True if batch or length was solved for."""
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
    # No round length fits: a padded batch can have any length.
    each = prod(letters[name] or 1 for name in names if name not in ("B", "S")) * width
    batch = letters["B"] or 1
    near = requested // (batch * each)
    fitting = [
        length
        for length in range(max(16, near - _NEARBY), min(near + _NEARBY, 2**20) + 1)
        if fits_figure(batch * length * each, requested, dialect)
    ]
    if fitting:
        # Collators pad to multiples of 8 or 64, so we prefer the length with the most factors of 2
        # among those that print the same figure.
        best = [length for length in fitting if _prints(batch * length * each, requested)]
        length = max(best or fitting, key=lambda length: (length & -length, -abs(length - near)))
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
