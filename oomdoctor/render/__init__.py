"""A report as text: a table for people, documents for programs. Nothing here prints."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from oomdoctor.render.formats import FORMATS, Style

if TYPE_CHECKING:
    from oomdoctor.records.report.report import Report


def render_report(report: Report, format: str, style: Style) -> str:
    """The report in a format of `FORMATS`, as text that ends with a newline."""
    module = next(row.module for row in FORMATS if row.name == format)
    text: str = import_module(module).render(report, style)
    return text
