"""Writes a report or a snapshot as a page, and charts of them as pictures."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from oomdoctor.cli.streams import output
from oomdoctor.errors import usage_error

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from oomdoctor.records.report.report import Report
    from oomdoctor.snapshot.history import History

STDOUT = Path("-")
_MANY = 300_000  # events; drawing more takes a noticeable time


def leaves_answer(files: Iterable[Path | None], form: str, output_file: Path | None) -> bool:
    """Whether the answer in this form has a place, which the files may take from it: stdout.

    Raises:
        OomDoctorError: both were asked for on stdout (exit 2).
    """
    if STDOUT not in files:
        return True
    if form != "table" or output_file is not None:  # which prints the table, too
        message = "a page or picture and the answer cannot both go to stdout"
        raise usage_error("bad_option", message, "name a file for the page or picture")
    return False


def check_drawn(files: Mapping[str, Path]) -> None:
    """Fail before the work if one of the files of `show` cannot be made or written.

    Raises:
        OomDoctorError: a file cannot be written (exit 2), or a package is missing (exit 5).
    """
    for kind, file in files.items():
        if file != STDOUT:
            output.check_writable(file, f"--{kind}")
    if "html" in files:
        from oomdoctor.render.formats.html_page import need_page

        need_page("--html")
    picture = next((kind for kind in ("png", "svg") if kind in files), None)
    if picture is not None:
        from oomdoctor.render.charts.drawing import need_matplotlib

        need_matplotlib(f"--{picture}")


def write_drawn(report: Report, files: Mapping[str, Path], chart: str, place: str | None) -> None:
    """Write the files of `show`, and say so on stderr.

    `chart` is that of the pictures, and `place` is the place of the rung whose step is drawn, None
    for the best.

    Raises:
        OomDoctorError: there is no such rung (exit 2), the report has no numbers for the chart
            (exit 3), or a file cannot be written (exit 1).
    """
    made: list[tuple[Path, str | bytes]] = []
    rung = None
    if place is not None:
        from oomdoctor.commands.export import result_at

        rung = result_at(report, place, Path(report.run_dir or "latest").name).key
    if "html" in files:
        from oomdoctor.render import render_report
        from oomdoctor.render.formats import Style

        made.append((files["html"], render_report(report, "html", Style(rung=rung))))
    if "png" in files or "svg" in files:
        from oomdoctor.render.charts import drawing
        from oomdoctor.render.charts.choose import chart_named

        drawn = chart_named(report, chart, rung)
        if "png" in files:
            made.append((files["png"], drawing.png(drawn)))
        if "svg" in files:
            made.append((files["svg"], drawing.svg(drawn)))
    _put(made)


def _put(made: Sequence[tuple[Path, str | bytes]], *, quiet: bool = False) -> None:
    """Write files, or to stdout what is for it, and say so on stderr unless `quiet`."""
    for file, content in made:
        if file == STDOUT:
            output.print_content(content)
        else:
            output.write_file(file, content)
    written = " and ".join(str(file) for file, _ in made if file != STDOUT)
    if written and not quiet:
        output.say(f"wrote {written}")


def write_pictures(
    source: str,
    histories: Iterable[History],
    written_by: str | None,
    *,
    html: Path | None,
    png: Path | None,
    quiet: bool,
) -> None:
    """Write those of a snapshot, and say so on stderr; for `written_by` see `timeline_of`.

    Raises:
        OomDoctorError: a file cannot be written (exit 1).
    """
    if html is None and png is None:
        return
    from oomdoctor.snapshot.timeline import timeline_of

    drawn = list(histories)
    events = sum(len(history.device.events) for history in drawn)
    if events > _MANY and not quiet:
        output.say_progress(f"{source}: drawing {events:,} events")
    timeline = timeline_of(source, drawn, written_by)
    made: list[tuple[Path, str | bytes]] = []
    if html is not None:
        from oomdoctor.package_data import page_parts
        from oomdoctor.render.snapshot.timeline_page import PARTS, page

        made.append((html, page(timeline, page_parts("timeline", PARTS))))
    if png is not None:
        from oomdoctor.render.snapshot import png as picture

        made.append((png, picture.png(timeline)))
    _put(made, quiet=quiet)
