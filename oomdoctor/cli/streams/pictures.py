"""Writes pictures of a snapshot to files."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from oomdoctor.cli.streams import output

if TYPE_CHECKING:
    from collections.abc import Iterable

    from oomdoctor.snapshot.history import History


_MANY = 300_000  # events; drawing more takes a noticeable time


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
            from oomdoctor.render.timeline.png import need_matplotlib

            need_matplotlib()

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
            from oomdoctor.render.timeline.timeline_page import PARTS, page

            output.write_file(self.html, page(timeline, page_parts("timeline", PARTS)))
        if self.png is not None:
            from oomdoctor.render.timeline.png import png

            output.write_file(self.png, png(timeline))
        if not quiet:
            written = " and ".join(str(file) for file in (self.html, self.png) if file is not None)
            output.say(f"wrote {written}")
