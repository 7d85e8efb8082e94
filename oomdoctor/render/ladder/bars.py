"""A bar for each rung: what its peak consists of, beside what is usable. It needs no color.

A terminal gets bars of letters, as wide as it has room for. A pipe and a document get the sizes.
"""

from __future__ import annotations

from collections.abc import Sequence

from oomdoctor.records.facts.categories import BREAKDOWN, TABLE
from oomdoctor.records.report.report import Report
from oomdoctor.render.blocks import Column, Grid, Look, Note, Section, Sized
from oomdoctor.render.charts.axes import Role
from oomdoctor.render.charts.parts import PART_WORDS, Peak, parts_in, peaks_of
from oomdoctor.units import DASH, format_bytes

SIGNS: dict[Role, str] = {
    **{name: TABLE[name].sign for name in BREAKDOWN},
    "whole": "t",
    "reserved": "-",
    "context": "c",
}
_FREE = "."
_MORE = ">"
_CELLS = (72, 60, 48, 36, 24, 16)
_BEYOND = 8  # a bar that does not fit goes on for at most so many cells
_MOST = 16  # rungs; the bars of more would make the page long
_FAR = 3  # if so much more is usable than any rung needs, the highest peak is the scale


def bar_sections(report: Report, look: Look) -> list[Section]:
    """The bars; none for a long ladder unless all is asked for, and where no peak is known.

    `plan --why` says more about its rung.
    """
    peaks = peaks_of(report) if report.why is None else []
    if not peaks or (len(peaks) > _MOST and not look.verbose):
        return []
    usable = report.budget.usable_bytes if report.budget is not None else None
    highest = max(peak.total for peak in peaks)
    if usable is not None and usable <= highest * _FAR:
        scale, name = usable, f"of {format_bytes(usable)} usable"
    else:
        scale, name = highest, f"of {format_bytes(highest)}, the highest peak"
    legend = Note(_legend(peaks, scale))
    drawn = tuple((_bars(peaks, scale, cells, name), (legend,)) for cells in _CELLS)
    return [Section("Memory at the peak", (Sized(_sizes(peaks), drawn),))]


def bar(parts: Sequence[tuple[Role, int]], scale: int, cells: int) -> str:
    """`[wwggoall--c....]`: `cells` are as much as `scale`; what is beyond stands behind it."""
    total = sum(size for _, size in parts)
    ends, text = 0, ""
    for role, size in parts:
        ends += size
        text += SIGNS[role] * (round(ends / max(1, scale) * cells) - len(text))
    if total > scale:  # it has at least one cell behind the bracket
        text = text if len(text) > cells else text + SIGNS[parts[-1][0]] * (cells + 1 - len(text))
        behind = text[cells:]
        behind = behind if len(behind) <= _BEYOND else behind[: _BEYOND - 1] + _MORE
        return f"[{text[:cells]}]{behind}"
    return f"[{text:{_FREE}<{cells}}]"


def _bars(peaks: Sequence[Peak], scale: int, cells: int, name: str) -> Grid:
    columns = (Column("rung"), *_size_columns(peaks), Column(name, 1))
    rows = tuple(
        (peak.label, *_size_cells(peak, peaks), bar(_joined(peak), scale, cells)) for peak in peaks
    )
    return Grid(columns, rows)


def _size_columns(peaks: Sequence[Peak]) -> tuple[Column, ...]:
    """The micro-batch size, the peak, and where it is another one the peak at size 1."""
    columns = (Column("mb", right=True), Column("peak", right=True))
    if not _are_compared(peaks):
        return columns
    return (*columns, Column("at mb 1", 2, right=True, detail="at mb 1: {}"))


def _size_cells(peak: Peak, peaks: Sequence[Peak]) -> tuple[str, ...]:
    size = peak.micro_batch_size
    cells = (str(size) if size is not None else DASH, _total(peak))
    return (*cells, format_bytes(peak.at_one)) if _are_compared(peaks) else cells


def _are_compared(peaks: Sequence[Peak]) -> bool:
    """Whether peaks at size 1 say more than the peaks."""
    return any(peak.at_one is not None and peak.micro_batch_size != 1 for peak in peaks)


def _joined(peak: Peak) -> list[tuple[Role, int]]:
    """The parts without those of no size."""
    return [(role, size) for role, size in peak.parts if size]


def _total(peak: Peak) -> str:
    return f"~{format_bytes(peak.total)}" if peak.expected else format_bytes(peak.total)


def _legend(peaks: Sequence[Peak], scale: int) -> str:
    words = [f"{SIGNS[role]} {PART_WORDS[role]}" for role in parts_in(peaks)]
    if any(peak.total < scale for peak in peaks):
        words.append(f"{_FREE} free")
    return f"{', '.join(words)}; mb is the micro-batch size."


def _sizes(peaks: Sequence[Peak]) -> Grid:
    """The same as numbers."""
    roles = parts_in(peaks)
    columns = (
        Column("rung"),
        *_size_columns(peaks),
        *(Column(PART_WORDS[role], right=True) for role in roles),
    )
    rows = []
    for peak in peaks:
        sizes = dict(peak.parts)
        cells = [format_bytes(sizes[role]) if sizes.get(role) else DASH for role in roles]
        rows.append((peak.label, *_size_cells(peak, peaks), *cells))
    return Grid(columns, tuple(rows))
