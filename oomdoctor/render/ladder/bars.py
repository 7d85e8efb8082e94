"""A bar for each rung: what its peak consists of, beside what is usable. It needs no color.

A terminal gets bars of letters, as wide as it has room for. A pipe and a document get the sizes.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from oomdoctor.records.facts.categories import BREAKDOWN, TABLE
from oomdoctor.records.report.report import Report
from oomdoctor.render.blocks import Cells, Column, Look, Note, Section, Sized, figures, table_of
from oomdoctor.render.charts.axes import Role
from oomdoctor.render.charts.parts import PART_WORDS, Peak, part_cells, parts_in, peaks_of
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
