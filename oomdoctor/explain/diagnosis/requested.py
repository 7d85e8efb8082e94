"""The tensor that did not fit: which tensor of the model has the requested size.

A message prints two decimals, and PyTorch's allocator rounds a request up before it prints it, so
a printed size stands for an interval. The size of each kind of tensor follows from the model, the
batch and the sequence length; if those are unknown, we search for whole numbers that fit.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from math import prod

from oomdoctor.analysis.allocator.sizes import LARGE_SEGMENT, SMALL_SEGMENT, segment_size
from oomdoctor.explain.memory.model_sizes import Sizes
from oomdoctor.explain.memory.states import trainable
from oomdoctor.explain.reading.parse import OF_PYTORCH
from oomdoctor.explain.training.assumed import training_of
from oomdoctor.explain.training.known import Setup
from oomdoctor.package_data import data_of, in_tuples
from oomdoctor.records.report.diagnosis import Confidence, Incident, Tensor
from oomdoctor.records.report.timeline import CONFIDENCES
from oomdoctor.stacks.partial_config import PartialConfig
from oomdoctor.units import GIB, KIB, MIB, format_bytes

_NEARBY = 64  # how many neighbouring lengths may print the same figure
_LENGTHS = tuple(2**n for n in range(5, 21)) + tuple(3 * 2**n for n in range(5, 17))


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
    """What an allocator prints for a tensor of `size` bytes: PyTorch's, the segment it requests."""
    return segment_size(size) if dialect in OF_PYTORCH else size


def fits_figure(size: int, requested: int, dialect: str) -> bool:
    """Whether a tensor of `size` bytes would print the requested figure."""
    asked = allocation(size, dialect)
    if requested % KIB and requested < MIB:
        return asked == requested
    unit = GIB if requested >= GIB else MIB if requested >= MIB else KIB
    # Rounding changes half of the last decimal; some programs truncate, which changes a whole one.
    return abs(asked - requested) <= unit // 100


def is_pool_segment(requested: int | None, dialect: str) -> bool:
    """Whether the request is a segment for small tensors, which says nothing about their size."""
    return dialect in OF_PYTORCH and requested in (SMALL_SEGMENT, LARGE_SEGMENT)


@dataclass(frozen=True, slots=True)
class _Request:
    """A request that failed: its bytes, who refused it, when, and what the frames show then."""

    size: int
    dialect: str
    phase: str
    near: str

    def fits(self, size: int) -> bool:
        return fits_figure(size, self.size, self.dialect)


def matches(incident: Incident, sizes: Sizes | None, setup: PartialConfig) -> tuple[Tensor, ...]:
    """The tensors that have the requested size, most likely first; at most six."""
    requested, dialect = incident.event.requested_bytes, incident.event.dialect
    if requested is None or requested < MIB or is_pool_segment(requested, dialect):
        return ()
    texts = [f"{f.file} {f.function} {f.code or ''}" for f in incident.frames[-6:]]
    code = (incident.where.code or "") if incident.where is not None else ""
    asked = _Request(requested, dialect, incident.phase, " ".join((*texts, code)))
    ranked: list[tuple[int, Tensor]] = []
    if sizes is not None:
        ranked += _of_model(asked, sizes, setup)
    elif setup.get("micro_batch_size") and setup.get("sequence_length"):
        ranked += _of_vocabulary(asked, setup)
    everywhere = " ".join(f.file for f in incident.frames)
    for size, name, hint in BUCKETS:
        if asked.fits(size) and re.search(hint, everywhere):
            tensor = Tensor(size, (), name, None, "medium", f"{size:,} bytes: {name}")
            ranked.append((1, tensor))
    ranked.sort(key=lambda pair: (CONFIDENCES.index(pair[1].likelihood), pair[0]))
    unique: dict[tuple[str, tuple[int, ...], str | None], Tensor] = {}
    for _, tensor in ranked:
        unique.setdefault((tensor.name, tensor.shape, tensor.dtype), tensor)
    return tuple(unique.values())[:6]


def _of_model(asked: _Request, sizes: Sizes, setup: PartialConfig) -> Iterator[tuple[int, Tensor]]:
    letters = _letters(sizes, setup)
    for kind in KINDS:
        hinted = re.search(kind.hint, asked.near) is not None
        agrees = asked.phase in kind.phases
        elsewhere = hinted and asked.phase in ("eval", "generate")
        untold = asked.phase == "unknown" and (hinted or kind.dimensions not in ("P", "W"))
        if not (agrees or elsewhere or untold) or (kind.needs_hint and not hinted):
            continue
        for place, width in enumerate(kind.widths):
            for shape, solved in _shapes(asked, kind, letters, width, sizes.longest or 2**20):
                if solved and not hinted:
                    continue  # with two unknowns, something always fits
                level: Confidence = "medium" if solved or not (hinted and agrees) else "high"
                if not agrees and not hinted:
                    level = "low"
                rank = 2 * solved + (not hinted) + place
                yield rank, _tensor(kind.name, shape, width, level, solved)


def _of_vocabulary(asked: _Request, setup: PartialConfig) -> Iterator[tuple[int, Tensor]]:
    """Logits of a common vocabulary, if batch and length are known but the model is not."""
    hinted = re.search(KINDS[0].hint, asked.near)
    if asked.phase not in ("loss", "forward", "backward", "eval") or not hinted:
        return
    batch, length = setup["micro_batch_size"], setup["sequence_length"]
    for vocabulary, family in VOCABULARIES.items():
        for width in (4, 2):
            shape = (batch, length, vocabulary)
            if asked.fits(prod(shape) * width):
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
    asked: _Request, kind: Kind, letters: dict[str, int | None], width: int, longest: int
) -> Iterator[tuple[tuple[int, ...], bool]]:
    """Shapes of this kind with the requested size; True if batch or length was solved for."""
    names = kind.dimensions.split()
    values = [letters[name] for name in names]
    if all(value is not None for value in values):
        shape = tuple(value for value in values if value is not None)
        if asked.fits(prod(shape) * width):
            yield shape, False
        return
    if "X" in names or "S-1" in names:
        return
    batches = [letters["B"]] if letters["B"] else [1, 2, 4, 8, 16, 32, 64]
    likely = sorted(length for length in _LENGTHS if length <= max(longest, 2048))
    lengths = [letters["S"]] if letters["S"] else likely
    hits = 0
    for batch in batches:
        for length in lengths:
            sizes_of = {**letters, "B": batch, "S": length}
            shape = tuple(sizes_of[name] or 1 for name in names)
            if asked.fits(prod(shape) * width):
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
    near = asked.size // (batch * each)
    nearby = range(max(16, near - _NEARBY), min(near + _NEARBY, 2**20) + 1)
    fitting = [length for length in nearby if asked.fits(batch * length * each)]
    if fitting:
        # Collators pad to multiples of 8 or 64, so we prefer the length with the most factors of 2
        # among those that print the same figure.
        printed = format_bytes(asked.size)
        best = [size for size in fitting if format_bytes(batch * size * each) == printed]
        length = max(best or fitting, key=lambda length: (length & -length, -abs(length - near)))
        sizes_of = {**letters, "B": batch, "S": length}
        yield tuple(sizes_of[name] or 1 for name in names), True


def _tensor(
    name: str, shape: tuple[int, ...], width: int, level: Confidence, solved: bool
) -> Tensor:
    size = prod(shape) * width
    product = " x ".join(str(value) for value in (*shape, width))
    note = " (batch and length solved for)" if solved else ""
    dtype = {4: "fp32", 2: "16-bit", 1: "8-bit"}[width]
    arithmetic = f"{format_bytes(size)} = {product} bytes: {dtype} {name}{note}"
    return Tensor(size, shape, f"{dtype} {name}", dtype, level, arithmetic)
