"""Memory over the load and two steps of a rung, by category, with what holds the peak."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Any

from oomdoctor.analysis.ranking import in_order
from oomdoctor.records.facts.categories import OTHER, STACKED
from oomdoctor.records.facts.phases import PHASES, STEPS
from oomdoctor.records.job.measurement import MemoryCurve
from oomdoctor.records.job.result import ProbeResult
from oomdoctor.records.report.report import Report
from oomdoctor.render.blocks import Column, Grid
from oomdoctor.render.charts import WIDTHS, Chart, Size
from oomdoctor.render.charts import axes as look
from oomdoctor.render.charts.axes import ink
from oomdoctor.render.charts.parts import PART_WORDS
from oomdoctor.render.text import one_line
from oomdoctor.units import format_bytes, format_percent

_MOST = 12  # charts of a page; each takes some 30 KiB
_ROLES = tuple(role for role in STACKED if role in PART_WORDS)
"""From the bottom; the last one is "other"."""
_HEIGHTS: dict[Size, int] = {"wide": 420, "narrow": 400}
_LEGEND_COLUMNS: dict[Size, int] = {"wide": 4, "narrow": 2}
_NEAR = 1.35  # a limit that is higher than the peak by more is not drawn


@dataclass(frozen=True, slots=True)
class Span:
    """A phase, from one moment to another (without it), and its place among the events."""

    step: str
    phase: str
    first: int
    end: int
    begins: float
    ends: float


@dataclass(frozen=True, slots=True)
class Bands:
    """What is drawn: the moments on the axis, and for each role its bytes at each moment.

    `edges` are halfway between the events of the `curve`; phases begin there. `limit` is what
    tensors may take, None if it is not known.
    """

    label: str
    curve: MemoryCurve
    edges: tuple[float, ...]
    sizes: dict[look.Role, tuple[int, ...]]
    spans: tuple[Span, ...]
    limit: int | None


def step_charts(report: Report, rung: str | None = None) -> list[Chart]:
    """A chart of each rung with a curve, the best first; all others are folded.

    The chart of the rung with the key `rung` comes before the best.
    """
    results = sorted(in_order(report), key=lambda result: result.key != rung)
    drawn = [bands for result in results if (bands := bands_of(report, result)) is not None]
    return [
        Chart(
            "step",
            "Memory over a step",
            _says(bands),
            _grid(bands),
            partial(_draw, bands),
            _HEIGHTS.__getitem__,
            about=bands.label,
            folded=number > 0,
        )
        for number, bands in enumerate(drawn[:_MOST])
    ]


def bands_of(report: Report, result: ProbeResult) -> Bands | None:
    """What to draw of a rung; None if its memory was not followed."""
    measured = result.measurement
    curve = measured.curve if measured is not None else None
    if measured is None or curve is None or not curve.phases:
        return None
    limit = None
    if report.budget is not None:
        limit = report.budget.usable_bytes - (measured.overhead_bytes or 0)
    edges, label = _edges(curve), one_line(result.label)
    return Bands(label, curve, edges, _sizes(curve), tuple(_spans(curve, edges)), limit)


def _edges(curve: MemoryCurve) -> tuple[float, ...]:
    """Where each moment begins on the axis: halfway to the one before it."""
    event = curve.event
    between = [(left + right) / 2 for left, right in pairwise(event)]
    return (0.0, *between, float(max(curve.events, event[-1] + 1)))


def _sizes(curve: MemoryCurve) -> dict[look.Role, tuple[int, ...]]:
    """Bytes by role; what is neither of the five is other."""
    by_role = {role: curve.by_category.get(role) for role in _ROLES if role != OTHER}
    sizes: dict[look.Role, tuple[int, ...]] = {role: own for role, own in by_role.items() if own}
    rest = [
        total - sum(own[moment] for own in sizes.values())
        for moment, total in enumerate(curve.allocated_bytes)
    ]
    return {**sizes, "other": tuple(rest)}


def _spans(curve: MemoryCurve, edges: Sequence[float]) -> list[Span]:
    starts = [phase.moment for phase in curve.phases]
    ends = [*starts[1:], len(curve.event)]
    return [
        Span(phase.step, phase.phase, phase.moment, end, edges[phase.moment], edges[end])
        for phase, end in zip(curve.phases, ends, strict=True)
    ]


def _moment_words(span: Span) -> str:
    step = STEPS.get(span.step, span.step)
    phase = PHASES[span.phase].noun if span.phase in PHASES else span.phase
    return step if span.step == span.phase else f"{phase}, {step}"


def _says(bands: Bands) -> str:
    total = bands.curve.allocated_bytes[bands.curve.peak]
    there = {role: own[bands.curve.peak] for role, own in bands.sizes.items()}
    most = sorted(there, key=lambda role: -there[role])[:3]
    held = ", ".join(f"{PART_WORDS[role]} {format_bytes(there[role])}" for role in most)
    at = next(span for span in bands.spans if span.first <= bands.curve.peak < span.end)
    return f"The peak is {format_bytes(total)} ({_moment_words(at)}). Most of it: {held}."


def _grid(bands: Bands) -> Grid:
    """The highest moment of each phase."""
    roles = [role for role in _ROLES if any(bands.sizes.get(role, ()))]
    columns = (
        Column("phase"),
        *(Column(PART_WORDS[role], right=True) for role in roles),
        Column("allocated", right=True),
        Column("of peak", right=True),
    )
    rows = []
    totals = bands.curve.allocated_bytes
    for span in bands.spans:
        top = max(range(span.first, span.end), key=totals.__getitem__)
        rows.append(
            (
                _moment_words(span) + " (peak)" * (top == bands.curve.peak),
                *(format_bytes(bands.sizes[role][top] or None) for role in roles),
                format_bytes(totals[top]),
                format_percent(totals[top] / totals[bands.curve.peak]),
            )
        )
    return Grid(columns, tuple(rows))


def _draw(bands: Bands, figure: Any, size: Size) -> None:
    height = _HEIGHTS[size]
    roles = [role for role in _ROLES if any(bands.sizes.get(role, ()))]
    head = 21 * -(-len(roles) // _LEGEND_COLUMNS[size]) + 76
    left, right = (68, 14) if size == "wide" else (56, 8)
    axes = look.axes_in(figure, size, height, left=left, right=right, head=head, foot=52)
    peak = bands.curve.allocated_bytes[bands.curve.peak]
    limited = bands.limit is not None and 0 < bands.limit <= peak * _NEAR
    top = max(peak, bands.limit or 0) if limited else peak
    axes.set_xlim(bands.edges[0], bands.edges[-1])
    axes.set_ylim(0, max(1, top) * 1.12)
    _fill(axes, bands, roles)
    _mark_phases(axes, bands)
    if limited and bands.limit is not None:
        _mark_limit(axes, bands, bands.limit, size)
    _mark_peak(axes, bands, beside=limited)
    look.byte_axis(axes, "y")
    axes.locator_params(axis="x", nbins=8 if size == "wide" else 4, integer=True)
    axes.xaxis.set_major_formatter(lambda value, _: f"{int(value):,}")
    about = " (this is not time)" if size == "wide" else ""
    look.frame(axes, grid="y", label=f"allocations and releases, in order{about}")
    held = {role: format_bytes(bands.sizes[role][bands.curve.peak] or None) for role in roles}
    entries = [(look.patch(role), f"{PART_WORDS[role]} {held[role]}") for role in roles]
    look.legend(figure, entries, _LEGEND_COLUMNS[size], height, top=24)
    figure.text(
        8 / WIDTHS[size], 1 - 4 / height, "At the peak:", fontsize=look.SMALL,
        color=ink("faint"), va="top",
    )  # fmt: skip


def _fill(axes: Any, bands: Bands, roles: Sequence[look.Role]) -> None:
    """The moments, with straight lines from one to the next."""
    moments = range(len(bands.curve.allocated_bytes))
    at = (bands.edges[0], *bands.curve.event, bands.edges[-1])
    padded = (0, *moments, moments[-1])
    below = [0] * len(padded)
    for role in roles:
        own = bands.sizes[role]
        above = [low + own[moment] for low, moment in zip(below, padded, strict=True)]
        axes.fill_between(at, below, above, facecolor=ink(role), linewidth=0)
        below = above
    axes.plot(at, below, color=ink("ink"), linewidth=0.9)


def _mark_phases(axes: Any, bands: Bands) -> None:
    """A line where a phase begins, and above the names of phases and steps that have room."""
    whole = bands.edges[-1] - bands.edges[0]
    room = axes.bbox.width / whole
    over = axes.get_xaxis_transform()
    above = {"xycoords": over, "ha": "center", "va": "bottom"}
    steps: dict[str, list[float]] = {}
    for span in bands.spans:
        steps.setdefault(span.step, [span.begins, span.ends])[1] = span.ends
        if span.first:
            axes.axvline(span.begins, color=ink("line"), linewidth=1, zorder=0.5)
        if span.phase == span.step:
            continue
        short = PHASES[span.phase].short if span.phase in PHASES else None
        for name in (span.phase, short or span.phase):
            if len(name) * look.SMALL * 0.6 < (span.ends - span.begins) * room - 6:
                middle = (span.begins + span.ends) / 2
                look.note(axes, name, (middle, 1.02), color=ink("faint"), **above)
                break
    for number, (step, (begins, ends)) in enumerate(steps.items()):
        if number:
            axes.plot(
                [begins, begins], [0, 1.16], transform=over, color=ink("faint"), linewidth=1,
                clip_on=False, zorder=0.6,
            )  # fmt: skip
        name = STEPS.get(step, step)
        if len(name) * look.SMALL * 0.6 < (ends - begins) * room:
            look.note(axes, name, ((begins + ends) / 2, 1.09), **above)


def _mark_limit(axes: Any, bands: Bands, limit: int, size: Size) -> None:
    axes.axhline(limit, color=ink("alarm"), linewidth=1.6)
    words = "usable by tensors" if size == "wide" else "usable"
    look.note(axes, f"{format_bytes(limit)} {words}", (bands.edges[-1], limit), (-4, 4), ha="right",
              va="bottom", color=ink("alarm"))  # fmt: skip


def _mark_peak(axes: Any, bands: Bands, *, beside: bool) -> None:
    """The peak; its text is `beside` it where the line of the limit may be above it."""
    at = bands.curve.event[bands.curve.peak]
    height = bands.curve.allocated_bytes[bands.curve.peak]
    share = (at - bands.edges[0]) / (bands.edges[-1] - bands.edges[0])
    side = "left" if share < (0.3 if beside else 0.12) else "right"
    side = "center" if not beside and 0.12 <= share <= 0.88 else side
    away = (0, 6) if not beside else (9, 6) if side == "left" else (-9, 6)
    axes.plot([at], [height], marker="v", color=ink("ink"), markersize=6, clip_on=False)
    look.note(axes, f"peak {format_bytes(height)}", (at, height), away, ha=side,
              va="top" if beside else "bottom", bbox={
                  "facecolor": ink("page"), "edgecolor": "none", "alpha": 0.8, "pad": 1
              })  # fmt: skip
