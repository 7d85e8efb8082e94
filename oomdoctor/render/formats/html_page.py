"""The page of a report: its sections as HTML, with charts among them.

One file, which a browser shows without a network: no script, no picture from elsewhere, and a
policy in the head that allows only its style. Every text of the report is escaped.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from oomdoctor.errors import machine_error
from oomdoctor.package_data import page_parts
from oomdoctor.records.report.report import Report
from oomdoctor.render import pages
from oomdoctor.render.blocks import Block, Code, Facts, Grid, Note, Part, Section, Sized, Verbatim
from oomdoctor.render.charts import WIDTHS
from oomdoctor.render.charts.axes import COLORS
from oomdoctor.render.charts.choose import charts_of
from oomdoctor.render.charts.drawing import need_matplotlib, svg_part
from oomdoctor.render.formats import Style
from oomdoctor.render.ladder.header import on_device
from oomdoctor.render.text import escape, hash_of, one_line, readable, tone

PARTS = ("page.html", "page.css")


def need_page(option: str = "a report as HTML") -> None:
    """Check that a page can be made; `option` is what asks for it.

    Raises:
        OomDoctorError: jinja2 or matplotlib is missing (exit 5).
    """
    try:
        import jinja2  # noqa: F401
    except ImportError:
        raise machine_error(
            "jinja2_missing",
            f"{option} needs the Python package jinja2, which is not installed",
            'run `pip install "oomdoctor[report]"`',
        ) from None
    need_matplotlib(option)


def render(report: Report, style: Style) -> str:
    """The page of a report, whatever the style.

    Raises:
        OomDoctorError: jinja2 or matplotlib is missing (exit 5).
    """
    need_page()
    from jinja2 import DictLoader, Environment
    from markupsafe import Markup

    texts = page_parts("report", PARTS)
    styles: dict[str, str] = {}
    pictures: list[dict[str, Any]] = [
        {"chart": chart, "grid": _grid(chart.grid)}
        | {size: svg_part(chart, size, number, styles) for size in WIDTHS}
        for number, chart in enumerate(charts_of(report, style.rung), 1)
    ]
    classes = (f".{name} {{ {style} }}" for style, name in styles.items())
    sheet = "\n".join([_colors(), texts["page.css"].strip(), "\n".join(classes)])
    environment = Environment(
        loader=DictLoader({"page.html": texts["page.html"]}),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters["picture"] = Markup
    page = environment.get_template("page.html").render(
        title=title_of(report),
        tool=report.tool,
        policy=f"default-src 'none'; style-src {hash_of(sheet)}; base-uri 'none'; "
        "form-action 'none'",
        style=Markup(sheet),
        parts=[_part(part, pictures) for part in parts_of(report)],
        started=one_line(report.started_at).replace("T", " ").removesuffix("+00:00"),
        is_utc=report.started_at.endswith("+00:00"),
    )
    # A path may hold bytes that are no text.
    return readable(page.encode("utf-8", "replace").decode())


def _colors() -> str:
    """The colors of a light page, and those of a dark one where that is asked for."""
    light = "".join(f"--{role}: {color.light}; " for role, color in COLORS.items())
    dark = "".join(f"--{role}: {color.dark}; " for role, color in COLORS.items())
    asked = "@media screen and (prefers-color-scheme: dark)"
    return f":root {{ {light}}}\n{asked} {{ :root {{ {dark}}} }}"


def _part(part: Part, pictures: Sequence[dict[str, Any]]) -> dict[str, object]:
    return {
        "name": part.name,
        "title": part.title,
        "folded": part.folded,
        "pictures": [picture for picture in pictures if picture["chart"].name in part.charts],
        "sections": [
            {
                "title": one_line(section.title.removesuffix(":")),
                "blocks": [_block(block) for block in section.blocks],
            }
            for section in part.sections
        ],
    }


def _block(block: Block) -> dict[str, object]:
    if isinstance(block, Note):
        return {"kind": "note", "text": one_line(block.text), "weight": block.weight}
    if isinstance(block, Facts):
        return {"kind": "facts", "pairs": _pairs(block)}
    if isinstance(block, Verbatim):
        return {"kind": "lines", "text": "\n".join(escape(line) for line in block.lines)}
    if isinstance(block, Code):
        lines = (escape((first + line)[block.depth :]) for first, line, _ in block.lines())
        return {"kind": "lines", "text": "\n".join(lines)}
    return _grid(block.whole if isinstance(block, Sized) else block)


def _pairs(facts: Facts) -> list[tuple[str, list[str]]]:
    """Each name with its sentences."""
    pairs: list[tuple[str, list[str]]] = []
    for name, text in facts.pairs:
        if name or not pairs:
            pairs.append((one_line(name.removesuffix(":")), [one_line(text)]))
        else:
            pairs[-1][1].append(one_line(text))
    return pairs


def _grid(grid: Grid) -> dict[str, object]:
    grid = grid.without_empty_columns()
    names = [column.name for column in grid.columns]
    head = names.index("config") if "config" in names else 0
    return {
        "kind": "grid",
        "columns": grid.columns,
        "rows": [
            [
                {
                    "column": column,
                    "text": one_line(cell),
                    "tone": tone(cell) if column.tone else "",
                    "head": place == head,
                }
                for place, (cell, column) in enumerate(zip(row, grid.columns, strict=True))
            ]
            for row in grid.rows
        ],
    }


def title_of(report: Report) -> str:
    """`meta-llama/Llama-3.1-8B on A100 80GB`; the command where there is no model."""
    if report.model is None:
        logs = {diagnosis.source for diagnosis in report.diagnoses}
        source = logs.pop() if len(logs) == 1 else ""
        what = " ".join(report.command_line) or report.source or source
        return one_line(what) or f"oomdoctor {report.command}"
    where = f" on {len(report.cards)} cards" if len(report.cards) > 1 else on_device(report)
    return one_line(f"{report.model.id}{where}")


def parts_of(report: Report) -> list[Part]:
    """The parts of the page, without those that have nothing to show."""
    drawn = {chart.name for chart in charts_of(report)}
    parts = [
        replace(
            part,
            sections=tuple(_untitled(part, section) for section in part.sections),
            charts=tuple(name for name in part.charts if name in drawn),
        )
        for part in pages.parts_of(report)
    ]
    return [part for part in parts if part.sections or part.charts]


def _untitled(part: Part, section: Section) -> Section:
    """The section without what the title of its part says."""
    if not part.title:
        return section
    rest = section.title.removesuffix(":").removeprefix(f"{part.title}: ")
    return replace(section, title="" if rest == part.title else rest)
