"""A survey's progress on stderr: one line a rung, and on a terminal one line that moves.

In a pipe a rung's line comes when the rung is finished, so a batch log stays as long as the ladder.
"""

from __future__ import annotations

import sys
import threading
import time
from contextlib import suppress
from types import TracebackType
from typing import TYPE_CHECKING, Self

from oomdoctor.cli.streams.output import say, screen
from oomdoctor.render.text import escape
from oomdoctor.units import format_bytes, format_seconds

if TYPE_CHECKING:
    from oomdoctor.records.result import Attempt
    from oomdoctor.runs.events import SurveyEvent

TICK_S = 0.5
_WORDS = {
    "fits": "fits",
    "oom": "out of memory",
    "host_oom": "out of host memory",
    "unsupported": "unsupported",
    "failed": "failed",
    "crashed": "crashed",
    "timed_out": "timed out",
    "skipped": "skipped",
}
_CLEAR = "\r\x1b[K"


class Progress:
    """Listens to a survey (`on_event`) and tells it; a context manager, because a line may be open.

    A thread redraws the moving line, so that a long phase is seen to live; it exists on a terminal
    only.
    """

    def __init__(self, *, quiet: bool) -> None:
        style = screen(sys.stderr)
        self._quiet = quiet
        self._live = style.moving and not quiet
        self._width = style.width
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._ticker: threading.Thread | None = None
        self._now = ""
        self._since = time.monotonic()
        self._rung: int | None = None
        self._prefix = ""
        self._attempts: list[Attempt] = []
        self._running: list[str] = []  # simulations side by side
        self._ended = 0

    def __enter__(self) -> Self:
        if self._live:
            self._ticker = threading.Thread(target=self._tick, daemon=True)
            self._ticker.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stop.set()
        if self._ticker is not None:
            self._ticker.join()
        with self._lock:
            self._finish_rung()
            self._erase()

    def on_event(self, event: SurveyEvent) -> None:
        """Take note of what the survey does."""
        with self._lock:
            self._take(event)
            self._draw()

    def _take(self, event: SurveyEvent) -> None:
        if event.kind in ("trying", "skipped") and event.index != self._rung:
            self._finish_rung()
            self._rung, self._since = event.index, time.monotonic()
            label = event.rung.label if event.rung else ""
            digits = len(str(event.total))
            self._prefix = f"[{event.index:>{digits}}/{event.total}] {label}"
        if event.kind in ("note", "waiting"):
            self._print(event.message or event.kind)
        elif event.kind == "inspecting":
            self._now = f"inspecting {event.message or 'the model'}"
            self._since = time.monotonic()
            if not self._live:
                self._print(self._now)
        elif event.kind == "counting":
            self._take_counting(event)
        elif event.kind in ("trying", "phase"):
            size = f"  micro-batch {event.micro_batch_size}" if event.micro_batch_size else ""
            self._now = f"{self._prefix}{size}  {event.phase or 'starting'}"
        elif event.kind == "tried" and event.attempt is not None:
            self._attempts.append(event.attempt)
        elif event.kind == "skipped":
            self._print(f"{self._prefix}: skipped: {event.message or 'no reason given'}")
            self._rung = None
        elif event.kind in ("simulating", "predicted"):
            self._take_simulation(event)
        elif event.kind == "done":
            self._finish_rung()

    def _take_counting(self, event: SurveyEvent) -> None:
        self._now = f"counting the tokens of {event.message}"
        if event.phase:
            self._now += f"  {event.phase}"
        else:
            self._since = time.monotonic()
            if not self._live:
                self._print(self._now)

    def _take_simulation(self, event: SurveyEvent) -> None:
        label = event.rung.label if event.rung else ""
        if event.kind == "simulating":
            self._running.append(label)
        else:
            self._running.remove(label)
            digits = len(str(event.total))
            told = summary(list(event.attempts)) if event.attempts else event.message
            self._print(f"[{event.index:>{digits}}/{event.total}] {label}: {told or 'no answer'}")
            self._ended = event.index
        self._now = f"simulating {', '.join(self._running)}  [{self._ended}/{event.total} done]"

    def _finish_rung(self) -> None:
        if self._rung is not None and self._attempts:
            spent = format_seconds(time.monotonic() - self._since)
            tries = f"{len(self._attempts)} tries, " if len(self._attempts) > 1 else ""
            self._print(f"{self._prefix}: {summary(self._attempts)}  ({tries}{spent})")
        self._rung, self._attempts, self._now = None, [], ""

    def _print(self, line: str) -> None:
        if not self._quiet:
            self._erase()
            say(line)

    def _tick(self) -> None:
        while not self._stop.wait(TICK_S):
            with self._lock:
                self._draw()

    def _draw(self) -> None:
        if self._live and self._now:
            line = f"{self._now}  {format_seconds(time.monotonic() - self._since)}"
            self._write(_CLEAR + escape(line)[: self._width - 1])

    def _erase(self) -> None:
        if self._live:
            self._write(_CLEAR)

    def _write(self, text: str) -> None:
        with suppress(OSError, ValueError):
            sys.stderr.write(text)
            sys.stderr.flush()


def summary(attempts: list[Attempt]) -> str:
    """One clause on the tries of a rung: the largest micro-batch that fits, or how it ended."""
    fitting = [
        (int(a.config.micro_batch_size), a.measurement.deciding_peak_bytes())
        for a in attempts
        if a.outcome == "fits" and a.measurement is not None
    ]
    if fitting:
        size, peak = max(fitting)
        return f"fits, micro-batch {size}, peak {format_bytes(peak)}"
    least = min(attempts, key=lambda attempt: int(attempt.config.micro_batch_size))
    told = least.reason or (least.failure.message if least.failure else None)
    words = _WORDS[least.outcome]
    if least.outcome != "unsupported":  # which no other micro-batch would be
        words += f" at micro-batch {least.config.micro_batch_size}"
    return f"{words}: {told.splitlines()[0]}" if told else words
