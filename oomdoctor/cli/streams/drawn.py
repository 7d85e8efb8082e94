"""Writes a report as a page, and a chart of it as a picture."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from oomdoctor.cli.streams import output
from oomdoctor.errors import usage_error

if TYPE_CHECKING:
    from oomdoctor.records.report import Report

STDOUT = Path("-")


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
    def takes_stdout(self) -> bool:
        """Whether one of them is written to stdout, in place of the answer."""
        return STDOUT in (self.html, self.png, self.svg)

    def check(self) -> None:
        """Fail before the work if something cannot be made or written.

        Raises:
            OomDoctorError: two files are stdout or a file cannot be written (exit 2), or a package
                is missing (exit 5).
        """
        if [self.html, self.png, self.svg].count(STDOUT) > 1:
            raise usage_error("bad_option", "only one file can be -, which is stdout")
        for option, file in (("--html", self.html), ("--png", self.png), ("--svg", self.svg)):
            if file is not None and file != STDOUT:
                output.check_writable(file, option)
        if self.html is not None:
            from oomdoctor.render.html.html_page import need_page

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
            from oomdoctor.runs.files.exported import result_at

            rung = result_at(report, self.rung, Path(report.run_dir or "latest").name).key
        if self.html is not None:
            from oomdoctor.render import render_report

            text = render_report(
                report, "html", terminal=False, width=0, color=False, verbose=False, rung=rung
            )
            made.append((self.html, text))
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
