"""A chart as SVG or PNG, drawn by matplotlib: an optional package.

In SVG, text stays text, and colors become either those of a light page or variables of the page
around it. Every text in a chart is drawn as it is: none is read as mathematics.
"""

from __future__ import annotations

import io
import re
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from xml.sax.saxutils import escape, quoteattr

from oomdoctor.errors import machine_error
from oomdoctor.render.charts import WIDTHS, Chart, Size
from oomdoctor.render.charts.axes import COLORS, FONT, Palette, ink, palette

_DOTS = 72  # an inch: a unit of the picture is a pixel of the page
_PNG_SCALE = 2
_HEAD = 40  # pixels for the title of a picture that stands alone
_TITLE: dict[Size, int] = {"wide": 15, "narrow": 14}
_SVG = re.compile(r"<svg\b[^>]*>", re.DOTALL)
_STYLE = re.compile(r' style="([^"]*)"')
_NUMBER = re.compile(r"-?\d+\.\d{3,}")
_METADATA = re.compile(r"\s*<metadata>.*?</metadata>", re.DOTALL)
_FILL = re.compile(r' fill="(#fe[0-9a-f]{2}fe)"')
_NO_TURN = re.compile(r' transform="rotate\(-?0 [^"]*"')
_FONT = re.compile(r"font: (?:[\w.]+ )*?([\d.]+px) [^;]*")  # matplotlib before 3.11
_FAMILY = re.compile(r"font-family: [^;]*; ?")
_OWN_STYLE = re.compile(r"\s*<style\b.*?</style>", re.DOTALL)
_REFERENCE = re.compile(r'(\bid="|url\(#|href="#)')
_DATA = re.compile(r'(?<= d=")[MLz\d\s.-]+(?=")')
_COMMAND = re.compile(r"([MLz])\s*(-?[\d.]+)?\s*(-?[\d.]+)?")
_DIGITS = 1  # after the point: a tenth of a pixel

Point = tuple[str, str]


def need_matplotlib(option: str, hint: str = 'run `pip install "oomdoctor[report]"`') -> None:
    """Check that charts can be drawn; `option` is what asks for them.

    Raises:
        OomDoctorError: matplotlib is missing (exit 5).
    """
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        raise machine_error(
            "matplotlib_missing",
            f"{option} needs the Python package matplotlib, which is not installed",
            hint,
        ) from None


def svg_part(chart: Chart, size: Size, number: int, styles: dict[str, str]) -> str:
    """The chart as an element of a page; what it says is for screen readers.

    Styles go into `styles`, from declarations to the name of a class, because the page allows none
    in its elements. `number` keeps ids apart.
    """
    text = _OWN_STYLE.sub("", _drawn_svg(chart, size, "roles"))
    name = f"chart{number}{size[0]}"
    text = _REFERENCE.sub(rf"\g<1>{name}-", text)
    text = _FILL.sub(r' style="fill: \1"', _NO_TURN.sub("", text))
    text = _STYLE.sub(lambda match: f' class="{_class_of(match[1], styles)}"', text)
    opening = (
        f'<svg class="chart {size}" viewBox="0 0 {WIDTHS[size]} {chart.height(size)}" role="img" '
        f"aria-label={quoteattr(f'{_title(chart)}. {chart.says}')} "
        'xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink">'
    )
    return _SVG.sub(lambda _: opening, text[text.index("<svg") :], count=1)


def svg(chart: Chart) -> str:
    """The chart as a file, in the colors of a light page."""
    text = _drawn_svg(chart, "wide", "light")
    told = f"<title>{escape(_title(chart))}</title><desc>{escape(chart.says)}</desc>"
    return _SVG.sub(lambda match: match[0] + told, text, count=1)


def png(chart: Chart, size: Size = "wide", colors: Palette = "light") -> bytes:
    """The chart as a picture of twice its size in pixels."""
    with _figure(chart, size, colors) as figure:
        target = io.BytesIO()
        figure.savefig(target, format="png", dpi=_DOTS * _PNG_SCALE, facecolor=ink("page"))
    return target.getvalue()


def _title(chart: Chart) -> str:
    return f"{chart.title}: {chart.about}" if chart.about else chart.title


def _drawn_svg(chart: Chart, size: Size, colors: Palette) -> str:
    target = io.StringIO()
    with _figure(chart, size, colors) as figure:
        face = "none" if colors == "roles" else ink("page")
        figure.savefig(target, format="svg", facecolor=face, metadata={"Date": None})
    text = with_short_paths(_METADATA.sub("", target.getvalue()))
    return _NUMBER.sub(lambda match: f"{float(match[0]):.2f}".rstrip("0").rstrip("."), text)


def _class_of(style: str, styles: dict[str, str]) -> str:
    """The class for some declarations, in the colors and the font of the page."""
    for role in COLORS:
        style = style.replace(ink(role), f"var(--{role})")
    style = _FAMILY.sub("", _FONT.sub(r"font-size: \1", style))
    return styles.setdefault(style, f"k{len(styles)}")


@contextmanager
def _figure(chart: Chart, size: Size, colors: Palette) -> Iterator[Any]:
    """The drawn figure; one that stands alone has room for a title above it."""
    import matplotlib
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    settings = {
        "svg.fonttype": "none",
        "svg.hashsalt": "oomdoctor",
        "font.family": FONT,
        "text.parse_math": False,
        "axes.formatter.use_mathtext": False,
        "hatch.linewidth": 0.8,
        "path.simplify_threshold": 0.3,
    }
    title = _title(chart) if size == "wide" else "\n".join(filter(None, (chart.title, chart.about)))
    head = 0 if colors == "roles" else _HEAD + 18 * title.count("\n")
    height = chart.height(size) + head
    with palette(colors), matplotlib.rc_context(settings), warnings.catch_warnings(action="ignore"):
        figure: Any = Figure(figsize=(WIDTHS[size] / _DOTS, height / _DOTS), dpi=_DOTS)
        FigureCanvasAgg(figure)
        area = figure
        if head:
            area = figure.subfigures(2, 1, height_ratios=(head, chart.height(size)), hspace=0)[1]
            figure.text(8 / WIDTHS[size], 1 - head * 0.62 / height, title, fontsize=_TITLE[size],
                        fontweight="bold", color=ink("ink"), va="center")  # fmt: skip
        chart.draw(area, size)
        yield figure


def with_short_paths(text: str) -> str:
    """The SVG with each path of straight lines in as few commands as possible."""
    return _DATA.sub(lambda match: _short(match[0]), text)


def _short(data: str) -> str:
    parts: list[str] = []
    x, y = "", ""  # where the pen is
    for command, across, down in _COMMAND.findall(data):
        if command == "z":
            parts.append("z")
            continue
        before, (x, y) = (x, y), (_rounded(across), _rounded(down))
        if command == "M":
            parts.append(f"M{x} {y}")
        elif (x, y) == before:
            continue
        elif y == before[1]:
            parts.append(f"H{x}")
        elif x == before[0]:
            parts.append(f"V{y}")
        else:
            parts.append(f"L{x} {y}")
    return "".join(parts)


def _rounded(number: str) -> str:
    text = f"{float(number):.{_DIGITS}f}"
    text = text.rstrip("0").rstrip(".")
    return "0" if text == "-0" else text
