"""The table of a report, on a terminal and in a pipe."""

from __future__ import annotations

from typing import Any

from oomdoctor.records.report.report import Report
from oomdoctor.render import render_report
from oomdoctor.render.formats import Style


def table(report: Report, **keys: Any) -> str:
    """The table on a terminal of 100 columns without colour, unless `keys` say otherwise."""
    style = {"terminal": True, "width": 100, "color": False, "verbose": False} | keys
    return render_report(report, "table", Style(**style))


def plain(report: Report, verbose: bool = False) -> str:
    """The table in a pipe."""
    return table(report, terminal=False, verbose=verbose)


def whole(report: Report) -> str:
    """All that a pipe can get."""
    return plain(report, verbose=True)
