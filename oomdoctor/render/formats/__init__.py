"""The formats of a report, one row each. A new format is a row here and a module beside this one.

The module has a function `render(report, style) -> str` and is imported when its format is asked
for, so that no command pays for the others.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from oomdoctor.render.blocks import Look


@dataclass(frozen=True, slots=True)
class Style:
    """How the reader wants the page.

    `terminal`, `width` and `color` concern the table only: without a terminal it has full-width
    plain rows. `verbose` concerns the table and markdown; JSON and CSV always hold everything.
    Without `signs` the page is ASCII. `rung` is the key of the rung whose charts come first.
    `moving`: the cursor of the terminal can move.
    """

    terminal: bool = False
    width: int = 100
    color: bool = False
    verbose: bool = False
    signs: bool = True
    rung: str | None = None
    moving: bool = False

    @property
    def look(self) -> Look:
        """What of this concerns the content of the page."""
        from oomdoctor.render.blocks import Look

        return Look(self.verbose, self.signs)


@dataclass(frozen=True, slots=True)
class Format:
    """A format: its name on the command line, the file endings that choose it, and its module.

    Lists, such as that of `runs`, have no `page` for a browser.
    """

    name: str
    endings: tuple[str, ...]
    module: str
    page: bool = False


FORMATS = (
    Format("table", (), "oomdoctor.render.formats.table"),
    Format("markdown", (".md",), "oomdoctor.render.formats.markdown"),
    Format("csv", (".csv",), "oomdoctor.render.formats.csv_rows"),
    Format("json", (".json",), "oomdoctor.render.formats.json_document"),
    Format("html", (".html", ".htm"), "oomdoctor.render.formats.html_page", page=True),
)


def format_names(*, pages: bool = True) -> tuple[str, ...]:
    """The names that `--format` takes; those of `pages` only where there are any."""
    return tuple(row.name for row in FORMATS if pages or not row.page)


def format_endings(*, pages: bool = True) -> tuple[str, ...]:
    """The file endings that choose a format."""
    return tuple(ending for row in FORMATS if pages or not row.page for ending in row.endings)


def format_of_file(name: str) -> str | None:
    """The format that the ending of a file name chooses; None where it chooses none."""
    lower = name.lower()
    return next((row.name for row in FORMATS if lower.endswith(row.endings or ("\0",))), None)
