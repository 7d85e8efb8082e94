"""Writes a report or a snapshot as a page, and charts of them as pictures."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from oomdoctor.cli.streams import output

if TYPE_CHECKING:
    from collections.abc import Iterable

    from oomdoctor.records.report.report import Report
    from oomdoctor.snapshot.history import History

STDOUT = Path("-")
_MANY = 300_000  # events; drawing more takes a noticeable time


@dataclass(frozen=True, slots=True)
class Drawn:
    """The files to write, None for one that nobody asked for; `chart` is that of the pictures.

    `rung` is the place of the rung whose step is drawn, None for the best.
    """

    html: Path | None
    png: Path | None
    svg: Path | None
    chart: str
    rung: str | None = None

    @property
    def draws(self) -> bool:
        """Whether there is one to write."""
        return (self.html, self.png, self.svg) != (None, None, None)

    @property
    def takes_stdout(self) -> bool:
        """Whether one of them is written to stdout, in place of the answer."""
        return STDOUT in (self.html, self.png, self.svg)

    def check(self) -> None:
        """Fail before the work if something cannot be made or written.

        Raises:
            OomDoctorError: a file cannot be written (exit 2), or a package is missing (exit 5).
        """
        for option, file in (("--html", self.html), ("--png", self.png), ("--svg", self.svg)):
            if file is not None and file != STDOUT:
                output.check_writable(file, option)
        if self.html is not None:
            from oomdoctor.render.formats.html_page import need_page

            need_page("--html")
        if self.png is not None or self.svg is not None:
            from oomdoctor.render.charts.drawing import need_matplotlib

            need_matplotlib("--png" if self.png is not None else "--svg")

    def write(self, report: Report) -> None:
        """Write them, and say so on stderr.

        Raises:
            OomDoctorError: there is no such rung (exit 2), the report has no numbers for the chart
                (exit 3), or a file cannot be written (exit 1).
        """
        made: list[tuple[Path, str | bytes]] = []
        rung = None
        if self.rung is not None:
            from oomdoctor.commands.export import result_at

            rung = result_at(report, self.rung, Path(report.run_dir or "latest").name).key
        if self.html is not None:
            from oomdoctor.render import render_report
            from oomdoctor.render.formats import Style

            made.append((self.html, render_report(report, "html", Style(rung=rung))))
        if self.png is not None or self.svg is not None:
            from oomdoctor.render.charts import drawing
            from oomdoctor.render.charts.choose import chart_named

            chart = chart_named(report, self.chart, rung)
            if self.png is not None:
                made.append((self.png, drawing.png(chart)))
            if self.svg is not None:
                made.append((self.svg, drawing.svg(chart)))
        for file, content in made:
            if file == STDOUT:
                output.print_content(content)
            else:
                output.write_file(file, content)
        written = " and ".join(str(file) for file, _ in made if file != STDOUT)
        if written:
            output.say(f"wrote {written}")


@dataclass(frozen=True, slots=True)
class Pictures:
    """The files to write, None for a picture that nobody asked for."""

    html: Path | None
    png: Path | None

    def check(self) -> None:
        """Fail before the work if a picture cannot be made.

        Raises:
            OomDoctorError: matplotlib is missing (exit 5).
        """
        if self.png is not None:
            from oomdoctor.render.snapshot.png import need_picture

            need_picture()

    def write(
        self, source: str, histories: Iterable[History], written_by: str | None, *, quiet: bool
    ) -> None:
        """Write them, and say so on stderr; for `written_by` see `timeline_of`.

        Raises:
            OomDoctorError: a file cannot be written (exit 1).
        """
        if self.html is None and self.png is None:
            return
        from oomdoctor.snapshot.timeline import timeline_of

        drawn = list(histories)
        events = sum(len(history.device.events) for history in drawn)
        if events > _MANY and not quiet:
            output.say_progress(f"{source}: drawing {events:,} events")
        timeline = timeline_of(source, drawn, written_by)
        if self.html is not None:
            from oomdoctor.package_data import page_parts
            from oomdoctor.render.snapshot.timeline_page import PARTS, page

            output.write_file(self.html, page(timeline, page_parts("timeline", PARTS)))
        if self.png is not None:
            from oomdoctor.render.snapshot.png import png

            output.write_file(self.png, png(timeline))
        if not quiet:
            written = " and ".join(str(file) for file in (self.html, self.png) if file is not None)
            output.say(f"wrote {written}")
