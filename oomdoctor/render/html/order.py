"""What stands where in a page: the sections of a report in parts, with the charts between them."""

from __future__ import annotations

from dataclasses import replace

from oomdoctor.records.report import Report
from oomdoctor.render import pages
from oomdoctor.render.blocks import Part, Section
from oomdoctor.render.charts.choose import charts_of


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
