"""A survey's progress on stderr: one line per rung, and on a terminal one line that moves.

In a pipe, a rung's line comes when the rung is finished: a batch log has one line per rung.
"""

from __future__ import annotations

import sys
import threading
import time
from types import TracebackType
from typing import TYPE_CHECKING, Self

from oomdoctor.cli.streams.output import say, screen
from oomdoctor.records.facts.outcomes import OUTCOME_WORDS
from oomdoctor.units import format_bytes, format_seconds

if TYPE_CHECKING:
    from oomdoctor.cli.streams.moving_line import MovingLine
    from oomdoctor.records.result import Attempt
    from oomdoctor.runs.events import SurveyEvent


class Progress:
    """Prints what a survey does; `on_event` is its listener.

    A context manager, because the moving line must be removed at the end.
    """

    def __init__(self, *, quiet: bool) -> None:
        self._quiet = quiet
        self._line: MovingLine | None = None
        self._lock = threading.Lock()
        self._now = ""
        self._since = time.monotonic()
        self._rung: int | None = None
        self._prefix = ""
        self._attempts: list[Attempt] = []
        self._running: list[str] = []  # simulations that run side by side
        self._ended = 0

    def __enter__(self) -> Self:
        if screen(sys.stderr).moving and not self._quiet:
            from oomdoctor.cli.streams.moving_line import MovingLine

            self._line = MovingLine(self._moving_text)
            self._line.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        with self._lock:
            self._finish_rung()
        if self._line is not None:
            self._line.stop()

    def on_event(self, event: SurveyEvent) -> None:
        """Show an event of the survey."""
        with self._lock:
            self._take(event)
        if self._line is not None:
            self._line.refresh()

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
            self._start(f"inspecting {event.message or 'the model'}")
        elif event.kind == "counting":
            counting = f"counting the tokens of {event.message}"
            if event.phase:
                self._now = f"{counting}  {event.phase}"
            else:
                self._start(counting)
        elif event.kind in ("trying", "phase"):
            size = f"  micro-batch {event.micro_batch_size}" if event.micro_batch_size else ""
            self._now = f"{self._prefix}{size}  {event.phase or 'starting'}"
        elif event.kind == "tried" and event.attempt is not None:
            self._attempts.append(event.attempt)
        elif event.kind == "skipped":
            self._print(f"{self._prefix}: skipped: {event.message or 'no reason given'}")
            self._rung = None
        elif event.kind in ("simulating", "simulated", "predicted"):
            self._take_simulation(event)
        elif event.kind == "done":
            self._finish_rung()

    def _start(self, now: str) -> None:
        """Begin a step that has no line at its end: without a moving line, print it now."""
        self._now, self._since = now, time.monotonic()
        if self._line is None:
            self._print(now)

    def _take_simulation(self, event: SurveyEvent) -> None:
        label = event.rung.label if event.rung else ""
        if event.kind == "simulating":
            if self._line is None and not self._running and not self._ended:
                self._print(f"simulating {event.total} configurations")
            self._running.append(label)
        elif event.kind == "simulated":
            self._running.remove(label)
            self._ended = event.index
        else:
            self._running.remove(label)
            digits = len(str(event.total))
            text = summary(list(event.attempts)) if event.attempts else event.message
            self._print(f"[{event.index:>{digits}}/{event.total}] {label}: {text or 'no result'}")
            self._ended = event.index
        self._now = f"simulating {', '.join(self._running)}  [{self._ended}/{event.total} done]"

    def _finish_rung(self) -> None:
        if self._rung is not None and self._attempts:
            spent = format_seconds(time.monotonic() - self._since)
            tries = f"{len(self._attempts)} attempts, " if len(self._attempts) > 1 else ""
            self._print(f"{self._prefix}: {summary(self._attempts)}  ({tries}{spent})")
        self._rung, self._attempts, self._now = None, [], ""

    def _print(self, text: str) -> None:
        if self._line is not None:
            self._line.print_above(text)
        elif not self._quiet:
            say(text)

    def _moving_text(self) -> str:
        if not self._now:
            return ""
        return f"{self._now}  {format_seconds(time.monotonic() - self._since)}"


def summary(attempts: list[Attempt]) -> str:
    """One clause about a rung's attempts: the largest micro-batch that fits, or how it failed."""
    fitting = [
        (int(a.config.micro_batch_size), a.measurement.deciding_peak_bytes())
        for a in attempts
        if a.outcome == "fits" and a.measurement is not None
    ]
    if fitting:
        size, peak = max(fitting)
        return f"fits, micro-batch {size}, peak {format_bytes(peak)}"
    least = min(attempts, key=lambda attempt: int(attempt.config.micro_batch_size))
    reason = least.reason or (least.failure.message if least.failure else None)
    words = OUTCOME_WORDS[least.outcome]
    if least.outcome != "unsupported":  # that does not depend on the micro-batch size
        words += f" at micro-batch {least.config.micro_batch_size}"
    return f"{words}: {reason.splitlines()[0]}" if reason else words
