"""Prints a report in the format that was asked for."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from oomdoctor.cli.streams import output

if TYPE_CHECKING:
    from oomdoctor.records.report import Report


def publish_report(report: Report, chosen: str, *, verbose: bool, file: Path | None) -> None:
    """Print a report in the chosen format, and also write it to `file` if there is one."""
    from oomdoctor.render import render_report

    def render(name: str, screen: output.Screen) -> str:
        return render_report(
            report,
            name,
            terminal=screen.terminal,
            width=screen.width,
            color=screen.color,
            verbose=verbose,
            signs=screen.signs,
        )

    output.publish(render, chosen, file)
