"""How charts look: colors by role, the font, axes of bytes, rows with names, notes, a legend.

The colors of categories stay apart for people who do not see red, green or blue well; neighbors in
a bar also have a gap between them, and what the allocator only caches is hatched.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, Literal

from oomdoctor.package_data import data_of
from oomdoctor.records.facts.categories import BREAKDOWN, TABLE
from oomdoctor.records.facts.step_parts import STEP_PARTS
from oomdoctor.render.charts import WIDTHS, Size
from oomdoctor.units import format_bytes

Role = str
"""A category of memory, or a key of `COLORS` beside them."""


@dataclass(frozen=True, slots=True)
class Color:
    """A color on a light and on a dark page."""

    light: str
    dark: str


COLORS: dict[Role, Color] = {
    **{name: Color(TABLE[name].light, TABLE[name].dark) for name in BREAKDOWN},
    **{name: Color(part.light, part.dark) for name, part in STEP_PARTS.items()},
    **{name: Color(*pair) for name, pair in data_of("categories.toml")["colors"].items()},
}
FONT = "DejaVu Sans"  # whose widths matplotlib knows; a page uses its own font, which is narrower
TEXT = 13.0  # points; the pictures are drawn at 72 dots per inch, so they are pixels too
SMALL = 12.0
Palette = Literal["roles", "light", "dark"]
_palette: ContextVar[Palette] = ContextVar("palette", default="roles")


@contextmanager
def palette(name: Palette) -> Iterator[None]:
    """What `ink` gives inside: colors of a page, or a placeholder for each role."""
    token = _palette.set(name)
    try:
        yield
    finally:
        _palette.reset(token)


def ink(role: Role) -> str:
    """The color to draw a role with."""
    match _palette.get():
        case "roles":
            return f"#fe{list(COLORS).index(role):02x}fe"
        case "dark":
            return COLORS[role].dark
        case _:
            return COLORS[role].light


def byte_ticks(top: float, most: int, room: float | None = None, start: float = 0) -> list[int]:
    """Round sizes from `start` to `top` at even distances: at most so many, each a power of two.

    With `room`, the pixels of the axis, their texts do not touch.
    """
    if top <= start:
        return [0]
    step = 1
    while True:
        first, last = math.ceil(start / step), math.floor(top / step)
        ticks = [step * number for number in range(first, last + 1)] if last - first < 99 else []
        widest = max((len(tick_text(tick)) for tick in ticks), default=0) * SMALL * 0.66 + 12
        apart = None if room is None else room * step / (top - start)
        if ticks and len(ticks) <= most + 1 and (apart is None or apart >= widest):
            return ticks
        if step > top:
            return [0] if not start else []
        step *= 2


def tick_text(size: float) -> str:
    """`24 GiB`: without the decimals that a round size does not have."""
    number, _, unit = format_bytes(int(size)).partition(" ")
    return f"{number.rstrip('0').rstrip('.') if '.' in number else number} {unit}"


def axes_in(
    figure: Any, size: Size, height: int, *, left: float, right: float, head: float, foot: float
) -> Any:
    """Axes with so many pixels around them, in a figure of this height."""
    width = WIDTHS[size]
    return figure.add_axes(
        (left / width, foot / height, (width - left - right) / width, 1 - (head + foot) / height)
    )


def byte_axis(axes: Any, name: Literal["x", "y"]) -> None:
    """Mark round sizes along an axis, between its limits."""
    low, high = axes.get_xlim() if name == "x" else axes.get_ylim()
    ticks = byte_ticks(high, *((9, axes.bbox.width, low) if name == "x" else (7,)))
    set_ticks = axes.set_xticks if name == "x" else axes.set_yticks
    set_ticks(ticks, list(map(tick_text, ticks)))


def frame(axes: Any, *, grid: str, label: str = "") -> None:
    """Keep the lines along one axis, and faint text; `label` says what the x axis shows."""
    if label:
        axes.set_xlabel(label, fontsize=SMALL, color=ink("faint"), labelpad=6)
    for side in ("top", "right", "left", "bottom"):
        axes.spines[side].set_visible(False)
    axes.set_facecolor("none")
    axes.tick_params(length=0, labelsize=SMALL, labelcolor=ink("faint"), pad=5)
    axes.grid(axis=grid, color=ink("line"), linewidth=1)
    axes.tick_params(axis="x", pad=9)  # below what stands at the foot of the other axis
    axes.set_axisbelow(True)


def note(
    axes: Any, text: str, at: tuple[Any, Any], away: tuple[float, float] = (0, 0), **style: Any
) -> Any:
    """Write a text so many pixels away from a place of the axes."""
    usual = {"textcoords": "offset points", "fontsize": SMALL, "color": ink("ink")}
    return axes.annotate(text, at, away, **usual | style)


# Charts with a row for each name. On a phone the name stands above what the row shows.
SHIFT: dict[Size, float] = {"wide": 0.0, "narrow": 0.2}
LABELS: dict[Size, int] = {"wide": 36, "narrow": 35}  # characters of a row's name
_NARROW_NAME = 31.5  # characters of the usual size that a phone has room for, next to `end_row`
SMALLEST = 0.9  # of the usual size: 10 pixels on a narrow phone
END: dict[Size, float] = {"wide": 92, "narrow": 24}  # pixels beside rows for the text of `end_row`


def rows_in(
    figure: Any, size: Size, height: int, names: Sequence[str], top: float, *,
    right: float, head: float, foot: float, label: str = "",
) -> Any:  # fmt: skip
    """Axes with a row for each name, from 0 to `top`; see `axes_in` and `frame`."""
    # The letters of the font that is measured are at most so wide.
    left = max(map(len, names)) * TEXT * 0.62 + 20 if size == "wide" else 16.0
    axes = axes_in(figure, size, height, left=left, right=right, head=head, foot=foot)
    axes.set_xlim(0, top)
    axes.set_ylim(len(names) - 0.5, -0.5)
    axes.set_yticks([])
    frame(axes, grid="x", label=label)
    return axes


def name_row(axes: Any, number: int, name: str, size: Size) -> None:
    """Write the name of a row."""
    if size == "wide":
        note(axes, name, (0, number), (-10, 0), ha="right", va="center", fontsize=TEXT)
    else:
        smaller = max(SMALLEST, min(1.0, _NARROW_NAME / max(1, len(name))))
        note(axes, name, (0, number - 0.24), ha="left", va="center", fontsize=SMALL * smaller)


def end_row(axes: Any, number: int, text: str, top: float, size: Size, **style: Any) -> None:
    """Write a text at the right end of a row."""
    at, away = ((top, number), (84, 0)) if size == "wide" else ((top, number - 0.24), (0, 0))
    if size == "narrow":  # where lines of the chart would go through it
        style["bbox"] = {"facecolor": ink("page"), "edgecolor": "none", "pad": 1.5}
    note(axes, text, at, away, ha="right", va="center", **style)


Entry = tuple[Any, str]
"""What stands for something in a legend, and the words for it."""


def legend(figure: Any, entries: Sequence[Entry], columns: int, height: int, top: int = 4) -> None:
    """A legend above the chart, from the left, line by line, so many pixels below the top."""
    rows = -(-len(entries) // columns)
    order = [row * columns + column for column in range(columns) for row in range(rows)]
    shown = [entries[place] for place in order if place < len(entries)]  # it fills columns
    figure.legend(
        [mark for mark, _ in shown],
        [words for _, words in shown],
        loc="upper left",
        bbox_to_anchor=(8 / figure.bbox.width, 1 - top / height),
        ncols=columns,
        frameon=False,
        fontsize=SMALL,
        labelcolor=ink("ink"),
        handlelength=1.1,
        handleheight=1.1,
        columnspacing=1.4,
        handletextpad=0.5,
        borderaxespad=0.0,
        borderpad=0.0,
    )


def handle(role: Role, marker: str, **style: Any) -> Any:
    """What stands for a mark or a line in a legend."""
    from matplotlib.lines import Line2D

    usual: dict[str, Any] = {
        "marker": marker,
        "markersize": 8,
        "linestyle": "none",
        "color": ink(role),
    }
    return Line2D([], [], **usual | {"markeredgecolor": ink("page")} | style)


def hatch(role: Role) -> str | None:
    """The hatching of what the allocator only caches; None for other roles."""
    return "////" if role == "reserved" else None


def patch(role: Role) -> Any:
    """The square of a legend."""
    from matplotlib.patches import Patch

    return Patch(facecolor=ink(role), hatch=hatch(role), edgecolor=ink("page"), linewidth=0)


def elided(text: str, most: int) -> str:
    """At most so many characters: the middle of a longer text is left out."""
    if len(text) <= most:
        return text
    head = (most - 1) // 2 + 1
    return f"{text[:head]}…{text[len(text) - (most - 1 - head) :]}"
