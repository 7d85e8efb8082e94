"""Memory against throughput, with the sizes that nothing beats in both: the Pareto front."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import product
from typing import Any

from oomdoctor.analysis.ranking import in_order
from oomdoctor.records.job.result import ProbeResult
from oomdoctor.records.report.report import Report
from oomdoctor.render.blocks import Column, Grid, table_of
from oomdoctor.render.charts import WIDTHS, Chart, Size
from oomdoctor.render.charts import axes as look
from oomdoctor.render.charts.axes import ink
from oomdoctor.render.charts.parts import Peak, least_at_one, peaks_of
from oomdoctor.render.text import one_line
from oomdoctor.render.words import estimate, is_estimate
from oomdoctor.units import format_bytes, format_count, format_rate

METHODS: dict[str, tuple[look.Role, str, str]] = {
    "full": ("full", "o", "full fine-tuning"),
    "lora": ("lora", "s", "LoRA"),
    "qlora": ("qlora", "D", "QLoRA"),
}
"""The role, the marker and the word of each method."""


@dataclass(frozen=True, slots=True)
class Point:
    """A rung at a micro-batch size that fits. The `chosen` size of a rung is in the ranking."""

    label: str
    method: str
    micro_batch: int
    memory: int
    speed: float
    spread: float | None
    shown_speed: str
    chosen: bool
    estimated: bool


def points_of(report: Report) -> list[Point]:
    """Every size that fits and has a known peak and speed, in the order of the ranking."""
    fitting = (result for result in in_order(report) if result.surely_fits)
    return [point for result in fitting for point in _points(result)]


def _points(result: ProbeResult) -> Iterator[Point]:
    peak, speed, chosen = result.deciding_peak_bytes(), result.tokens_per_s, result.micro_batch_size
    if peak is None or not speed or chosen is None:
        return
    name, method, guessed = one_line(result.label), result.config.method, is_estimate(result)
    spread, shown = result.tokens_per_s_spread, estimate(speed, result)
    yield Point(name, method, chosen, peak, speed, spread, shown, True, guessed)
    for tried in result.tries:
        memory, rate, size = tried.peak_bytes, tried.tokens_per_s, tried.micro_batch_size
        surely_fits = (
            tried.outcome == "fits" and not tried.borderline and not tried.peak_is_lower_bound
        )
        if surely_fits and memory is not None and rate and size != chosen:
            shown = estimate(rate, result)
            yield Point(name, method, size, memory, rate, None, shown, False, guessed)


def front(points: Sequence[Point]) -> list[Point]:
    """The points that no other beats: none is as fast with less memory. By memory, ascending."""
    best: list[Point] = []
    for point in sorted(points, key=lambda candidate: (candidate.memory, -candidate.speed)):
        if not best or point.speed > best[-1].speed:
            best.append(point)
    return best


_HEIGHTS: dict[Size, int] = {"wide": 440, "narrow": 360}
_MOST_LABELS = 12
_SHORT_LABEL = 20  # characters of a name that has no other place
_DASHED = (0, (4, 3))


def frontier_chart(report: Report) -> Chart | None:
    """The chart, if a rung that fits has a speed."""
    points = points_of(report)
    if not any(point.chosen for point in points):
        return None
    best = front(points)
    usable = report.usable_bytes
    return Chart(
        "frontier",
        "Memory against throughput",
        _says(points, peaks_of(report)),
        _grid(points, best),
        partial(_draw, points, best, usable),
        _HEIGHTS.__getitem__,
    )


def _says(points: Sequence[Point], peaks: Sequence[Peak]) -> str:
    """The fastest point, and the rung with the least memory at the same size for all."""
    fastest = max(points, key=lambda point: point.speed)
    text = (
        f"The fastest is {fastest.label} at {fastest.shown_speed} tokens/s with "
        f"{format_bytes(fastest.memory)}, at micro-batch size {fastest.micro_batch}."
    )
    return " ".join(filter(None, (text, least_at_one(peaks))))


def _grid(points: Sequence[Point], best: Sequence[Point]) -> Grid:
    return table_of(
        points,
        (
            (Column("config"), lambda point: point.label),
            (Column("micro-batch", right=True), lambda point: str(point.micro_batch)),
            (Column("peak", right=True), lambda point: format_bytes(point.memory)),
            (Column("tokens/s", right=True), lambda point: point.shown_speed),
            (Column("chosen"), lambda point: "yes" * point.chosen),
            (Column("Pareto front"), lambda point: "yes" * (point in best)),
        ),
    )


def _draw(
    points: Sequence[Point], best: Sequence[Point], usable: int | None, figure: Any, size: Size
) -> None:
    height = _HEIGHTS[size]
    left, right = (60, 30) if size == "wide" else (52, 24)
    head = 18 + 21 * (1 if size == "wide" else 3) + 16
    axes = look.axes_in(figure, size, height, left=left, right=right, head=head, foot=54)
    top = max(point.speed * (1 + (point.spread or 0)) for point in points)
    most = max(point.memory for point in points)
    reach = max(most, usable) if usable and usable < most * 1.8 else most
    low = min(point.memory for point in points)
    start = 0.0 if low < reach * 0.45 else low - (reach - low) * 0.25
    axes.set_xlim(start, reach + (reach - start) * 0.06)
    axes.set_ylim(0, top * 1.12)
    _front_line(axes, best)
    for method, (role, marker, _) in METHODS.items():
        _scatter(axes, [p for p in points if p.method == method], role, marker)
    if usable is not None and usable <= reach:
        _mark_usable(axes, usable)
    look.byte_axis(axes, "x")
    axes.yaxis.set_major_formatter(lambda value, _: rate_text(value))
    axes.locator_params(axis="y", nbins=6)
    guessed = any(point.estimated for point in points)
    words = "tokens/s" + ", estimated, with the error of the estimate" * guessed
    figure.text(
        8 / WIDTHS[size], 1 - (head - 6) / height, words, fontsize=look.SMALL,
        color=ink("faint"), va="bottom",
    )  # fmt: skip
    look.frame(axes, grid="both", label="peak memory")
    _name_points(axes, points, best, usable if usable and usable <= reach else None, size)
    _legend(figure, points, best, size, height)


def rate_text(value: float) -> str:
    """A speed below an axis."""
    if value >= 1e6:
        return format_count(int(value))
    return f"{int(value):,}" if value == int(value) else format_rate(value)


def _front_line(axes: Any, best: Sequence[Point]) -> None:
    axes.plot(
        [point.memory for point in best],
        [point.speed for point in best],
        color=ink("faint"),
        linewidth=1.5,
        linestyle=_DASHED,
        zorder=1,
        drawstyle="steps-post",
    )


def _scatter(axes: Any, points: Sequence[Point], role: look.Role, marker: str) -> None:
    for point in points:
        if point.spread and point.chosen:
            by = point.speed * point.spread
            axes.plot(
                [point.memory] * 2, [max(0, point.speed - by), point.speed + by],
                color=ink(role), linewidth=1.4, alpha=0.45, zorder=1.5,
                solid_capstyle="butt",
            )  # fmt: skip
    for chosen, area, edge in ((False, 22, 1.2), (True, 84, 1.2)):
        drawn = [point for point in points if point.chosen is chosen]
        axes.scatter(
            [point.memory for point in drawn],
            [point.speed for point in drawn],
            s=area,
            marker=marker,
            facecolor=ink(role) if chosen else ink("page"),
            edgecolor=ink("page") if chosen else ink(role),
            linewidth=edge,
            zorder=3 if chosen else 2,
            clip_on=False,
        )


def _mark_usable(axes: Any, usable: int) -> None:
    low, high = axes.get_xlim()
    left = (usable - low) / (high - low) > 0.4
    axes.axvline(usable, color=ink("alarm"), linewidth=1.6)
    look.note(axes, f"{format_bytes(usable)} usable", (usable, 1), (-6 if left else 6, -4),
              xycoords=("data", "axes fraction"), ha="right" if left else "left", va="top",
              color=ink("alarm"))  # fmt: skip


def _legend(
    figure: Any, points: Sequence[Point], best: Sequence[Point], size: Size, height: int
) -> None:
    there = {point.method for point in points}
    shown = [each for method, each in METHODS.items() if method in there]
    entries = [(look.handle(role, marker), word) for role, marker, word in shown]
    if any(not point.chosen for point in points):
        other = look.handle("page", "o", markersize=5, markeredgecolor=ink("faint"))
        entries.append((other, "other micro-batch sizes"))
    if len(best) > 1:
        entries.append((look.handle("faint", "", linestyle=_DASHED, linewidth=1.5), "Pareto front"))
    look.legend(figure, entries, 5 if size == "wide" else 2, height)


def _name_points(
    axes: Any, points: Sequence[Point], best: Sequence[Point], usable: int | None, size: Size
) -> None:
    """Write the names of the chosen points, those of the front first."""
    from matplotlib.transforms import Bbox

    canvas = axes.figure.canvas
    canvas.draw()
    renderer = canvas.get_renderer()
    inside, at = axes.get_window_extent(renderer), axes.transData.transform
    marks = [(*at((point.memory, point.speed)), 6 if point.chosen else 3) for point in points]
    taken = [Bbox.from_extents(x - by, y - by, x + by, y + by) for x, y, by in marks]
    if usable is not None:
        x = at((usable, 0))[0]
        taken.append(Bbox.from_extents(x - 2, axes.bbox.y0, x + 2, axes.bbox.y1))
    order = [p for p in points if p.chosen and p in best]
    order += [p for p in points if p.chosen and p not in best]
    for point in order[: _MOST_LABELS if size == "wide" else 5]:
        text = look.elided(point.label, look.LABELS[size])
        forms = (
            (text, look.SMALL),
            (text, look.SMALL * look.SMALLEST),
            (_on_two_lines(text), look.SMALL),
            (look.elided(text, _SHORT_LABEL), look.SMALL),
        )
        for (written, height), (dx, dy, ha, va) in product(forms, _PLACES):
            place, clear = (point.memory, point.speed), _CLEAR | {"facecolor": ink("page")}
            name = look.note(
                axes, written, place, (dx, dy), ha=ha, va=va, zorder=4, fontsize=height, bbox=clear
            )
            box = name.get_window_extent(renderer)
            free = not any(box.overlaps(other) for other in taken)
            across = inside.x0 <= box.x0 and box.x1 <= inside.x1
            if free and across and inside.y0 <= box.y0 and box.y1 <= inside.y1 - 18:
                taken.append(box.padded(6, 1))  # two names next to each other would read as one
                break
            name.remove()


def _on_two_lines(label: str) -> str:
    """A label that is broken at the `+` nearest to its middle."""
    breaks = [place for place, letter in enumerate(label) if letter == "+"]
    if not breaks:
        return label
    middle = min(breaks, key=lambda place: abs(2 * place - len(label)))
    return f"{label[:middle]}\n{label[middle:]}"


# Lines behind a name leave it readable.
_CLEAR = {"edgecolor": "none", "alpha": 0.8, "pad": 0.5}
# Right below a point there is no line: that of the front goes to the right, and then up.
_PLACES = (
    (8, -7, "left", "top"),
    (-8, 7, "right", "bottom"),
    (-9, 0, "right", "center"),
    (9, 0, "left", "center"),
    (8, 7, "left", "bottom"),
    (-8, -7, "right", "top"),
    (0, -9, "center", "top"),
    (0, 9, "center", "bottom"),
)
