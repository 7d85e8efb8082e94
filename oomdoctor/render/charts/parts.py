"""What the peak of a rung consists of, as parts that add up to the memory that decides.

Also as a bar of letters for each rung, beside what is usable. It needs no color. A terminal gets
bars as wide as it has room for. A pipe and a document get the sizes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from oomdoctor.analysis.ranking import in_order
from oomdoctor.records.facts.categories import BREAKDOWN, TABLE
from oomdoctor.records.facts.step_parts import STEP_PARTS
from oomdoctor.records.job.result import ProbeResult
from oomdoctor.records.report.report import Report
from oomdoctor.render.blocks import Cells, Column, Look, Note, Section, Sized, figures, table_of
from oomdoctor.render.charts.axes import Role
from oomdoctor.render.text import one_line
from oomdoctor.units import DASH, format_bytes

# The words and the letters of parts that are no categories. `whole` are tensors of unknown
# categories, `reserved` is what the allocator holds without using it. The last two are of messages.
_OTHERS = {
    "whole": ("tensors", "t"),
    "reserved": ("cached", "-"),
    "context": ("CUDA and libraries", "c"),
    "others": ("other processes", "="),
    "request": ("requested", "!"),
}
_PARTS = {name: (TABLE[name].words, TABLE[name].sign) for name in BREAKDOWN} | _OTHERS
PART_WORDS: dict[Role, str] = {name: words for name, (words, _) in _PARTS.items()}
"""Each part as people read it, in the order of a bar."""
SIGNS: dict[Role, str] = {name: sign for name, (_, sign) in _PARTS.items()} | {
    name: part.sign for name, part in STEP_PARTS.items()
}
"""The letter of each part of a peak, and of a step's time."""


@dataclass(frozen=True, slots=True)
class Peak:
    """The peak of a rung. `parts` add up to `total`; `fits` is None if the rung did not run.

    A peak that is only `expected` is a prediction for a rung that ran out of memory. It is that of
    `micro_batch_size`, None if unknown; `at_one` is the peak at micro-batch size 1, None if unknown
    or if it does not fit.
    """

    key: str
    label: str
    fits: bool
    total: int
    parts: tuple[tuple[Role, int], ...]
    expected: bool = False
    micro_batch_size: int | None = None
    at_one: int | None = None
    borderline: bool = False

    @property
    def size_words(self) -> str:
        """`mb 4`: the micro-batch size; empty if it is unknown."""
        return f"mb {self.micro_batch_size}" if self.micro_batch_size is not None else ""

    @property
    def is_compared(self) -> bool:
        """Whether its peak at micro-batch size 1 is known, and another one."""
        return self.at_one is not None and self.micro_batch_size != 1

    def size_of(self, role: Role) -> str:
        """The size of a part; a dash if it has none."""
        return format_bytes(dict(self.parts).get(role) or None)


def peaks_of(report: Report) -> list[Peak]:
    """The peaks that are known: of the rungs that fit, best first, and then of the others."""
    with_peak = [
        result for result in in_order(report) if result.outcome in ("fits", "oom", "host_oom")
    ]
    return [peak for result in with_peak if (peak := _peak(result)) is not None]


def parts_in(peaks: Sequence[Peak]) -> list[Role]:
    """The parts that any of the peaks has, in the order of a bar."""
    there = {role for peak in peaks for role, size in peak.parts if size}
    return [role for role in PART_WORDS if role in there]


def part_cells(peaks: Sequence[Peak]) -> Cells[Peak]:
    """A column for each part that any of the peaks has."""
    return [
        (figures(PART_WORDS[role]), partial(Peak.size_of, role=role)) for role in parts_in(peaks)
    ]


def _peak(result: ProbeResult) -> Peak | None:
    total, fits = result.deciding_peak_bytes(), result.outcome == "fits"
    if result.measurement is None or result.peak_allocated_bytes is None or total is None:
        expected = result.predicted.deciding_peak_bytes() if result.predicted is not None else None
        if expected is None or fits:
            return None
        return Peak(result.key, result.label, False, expected, (("whole", expected),), True)
    size = result.micro_batch_size
    return Peak(
        result.key,
        result.label,
        fits,
        total,
        _parts(result, total),
        micro_batch_size=size,
        at_one=total if size == 1 else peak_at(result, 1),
        borderline=result.borderline,
    )


def peak_at(result: ProbeResult, size: int) -> int | None:
    """The peak of a rung at a micro-batch size that fits; None if it is not known exactly."""
    return next(
        (
            tried.peak_bytes
            for tried in result.tries
            if tried.micro_batch_size == size
            and tried.outcome == "fits"
            and not tried.peak_is_lower_bound
        ),
        None,
    )


def least_at_one(peaks: Sequence[Peak]) -> str | None:
    """Which rung that fits needs the least memory at micro-batch size 1, as a sentence.

    None if that is not known of all that fit: at the sizes that were chosen, a lean rung may have
    the higher peak.
    """
    fitting = {peak.label: peak.at_one for peak in peaks if peak.fits}
    sizes = {label: size for label, size in fitting.items() if size is not None}
    if len(sizes) < max(2, len(fitting)):
        return None
    least = min(sizes, key=sizes.__getitem__)
    return (
        f"At micro-batch size 1, {one_line(least)} needs the least memory, "
        f"{format_bytes(sizes[least])}."
    )


def _parts(result: ProbeResult, total: int) -> tuple[tuple[Role, int], ...]:
    allocated, reserved = result.peak_allocated_bytes or 0, result.peak_reserved_bytes
    parts = result.breakdown
    tensors: tuple[tuple[Role, int], ...] = (("whole", allocated),)
    if parts is not None:
        tensors = tuple(parts.sizes().items())
    held = allocated if reserved is None else max(reserved, allocated)
    return (*tensors, ("reserved", held - allocated), ("context", max(0, total - held)))


_FREE = "."
_MORE = ">"
_CELLS = (72, 60, 48, 36, 24, 16)
_BEYOND = 8  # a bar that does not fit goes on for at most so many cells
_FAR = 3  # if so much more is usable than any rung needs, the highest peak is the scale


def bar_sections(report: Report, _: Look) -> list[Section]:
    """The bars; none where no peak is known, and for `plan --why`, which says more."""
    peaks = peaks_of(report) if report.why is None else []
    if not peaks:
        return []
    usable = report.usable_bytes
    highest = max(peak.total for peak in peaks)
    if usable is not None and usable <= highest * _FAR:
        scale, name = usable, f"of {format_bytes(usable)} usable"
    else:
        scale, name = highest, f"of {format_bytes(highest)}, the highest peak"
    legend = Note(_legend(peaks, scale))
    cells = _cells(peaks)
    drawn = tuple(
        (table_of(peaks, [*cells, (Column(name, 1), partial(_bar, scale, width))]), (legend,))
        for width in _CELLS
    )
    whole = table_of(peaks, [*cells, *part_cells(peaks)])
    return [Section("Memory at the peak", (Sized(whole, drawn),))]


def bar(parts: Sequence[tuple[Role, float]], scale: float, cells: int) -> str:
    """`[wwggoall--c....]`: `cells` are as much as `scale`; what is beyond stands behind it."""
    total = sum(size for _, size in parts)
    ends, text = 0.0, ""
    for role, size in parts:
        ends += size
        text += SIGNS[role] * (round(ends / scale * cells if scale else 0.0) - len(text))
    if total > scale:  # it has at least one cell behind the bracket
        text = text if len(text) > cells else text + SIGNS[parts[-1][0]] * (cells + 1 - len(text))
        behind = text[cells:]
        behind = behind if len(behind) <= _BEYOND else behind[: _BEYOND - 1] + _MORE
        return f"[{text[:cells]}]{behind}"
    return f"[{text:{_FREE}<{cells}}]"


def _cells(peaks: Sequence[Peak]) -> Cells[Peak]:
    """The micro-batch size, the peak, and where it is another one the peak at size 1."""
    cells: Cells[Peak] = (
        (Column("config"), lambda peak: peak.label),
        (figures("mb"), lambda peak: str(peak.micro_batch_size or DASH)),
        (figures("peak"), lambda peak: "~" * peak.expected + format_bytes(peak.total)),
        (figures("at mb 1", 2, "at mb 1: {}"), lambda peak: format_bytes(peak.at_one)),
    )
    return cells if any(peak.is_compared for peak in peaks) else cells[:-1]


def _bar(scale: int, cells: int, peak: Peak) -> str:
    return bar([part for part in peak.parts if part[1]], scale, cells)


def _legend(peaks: Sequence[Peak], scale: int) -> str:
    words = [f"{SIGNS[role]} {PART_WORDS[role]}" for role in parts_in(peaks)]
    if any(peak.total < scale for peak in peaks):
        words.append(f"{_FREE} free")
    return f"{', '.join(words)}; mb is the micro-batch size."
