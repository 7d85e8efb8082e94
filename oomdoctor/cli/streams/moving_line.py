"""The line that moves at the bottom of a terminal, drawn by rich. Imported only on a terminal."""

from __future__ import annotations

import sys
from collections.abc import Callable
from io import TextIOBase
from typing import TYPE_CHECKING, cast

from oomdoctor.cli.streams.output import write_patiently
from oomdoctor.render.text import escape

if TYPE_CHECKING:
    from typing import IO

    from rich.text import Text

REFRESHES_PER_S = 2.0


class MovingLine:
    """Draws `text()` below whatever is printed above it, twice a second, until `stop`."""

    def __init__(self, text: Callable[[], str]) -> None:
        from rich.console import Console
        from rich.live import Live

        self._text = text
        self._console = Console(
            file=cast("IO[str]", _Stderr()),
            force_terminal=True,
            color_system=None,
            markup=False,
            highlight=False,
            emoji=False,
        )
        self._live = Live(
            console=self._console,
            get_renderable=self._render,
            refresh_per_second=REFRESHES_PER_S,
            transient=True,
            redirect_stdout=False,
            redirect_stderr=False,
        )

    def start(self) -> None:
        """Draw the line from now on."""
        self._live.start()

    def stop(self) -> None:
        """Remove the line."""
        self._live.stop()

    def refresh(self) -> None:
        """Draw the line now."""
        self._live.refresh()

    def print_above(self, text: str) -> None:
        """Print a line that stays, in full."""
        self._console.print(escape(text), soft_wrap=True)

    def _render(self) -> Text:
        from rich.text import Text

        return Text(escape(self._text()), no_wrap=True, overflow="crop")


class _Stderr(TextIOBase):
    """stderr as rich may use it: rich ends the process if nobody reads what it writes."""

    def write(self, text: str) -> int:
        write_patiently(text)
        return len(text)

    def flush(self) -> None:
        """Nothing to do: each write is flushed."""

    @property
    def encoding(self) -> str:  # type: ignore[override]
        return sys.stderr.encoding or "utf-8"
