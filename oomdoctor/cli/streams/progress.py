"""A survey's progress on stderr: one line per rung, and on a terminal one line that moves.

Above that line, a plan has a table: what each rung needs at least, until its simulation ends. A
search or a sweep, which simulates each rung many times, has the latest results there.

Where the answer follows on the same terminal, it takes the place of these lines.

In a pipe, a rung's line comes when the rung is finished: a batch log has one line per rung.
"""

from __future__ import annotations

import sys
import threading
import time
from typing import TYPE_CHECKING, Self

from oomdoctor.cli.streams.moving_line import Status, line_of, table_lines
from oomdoctor.cli.streams.output import say_progress, screen
from oomdoctor.records.job.result import OUTCOME_WORDS
from oomdoctor.records.report.earlier_runs import lacks_package
from oomdoctor.render.words import counted
from oomdoctor.units import format_bytes, format_seconds

if TYPE_CHECKING:
    from oomdoctor.cli.streams.moving_line import MovingLine
    from oomdoctor.commands.events import SurveyEvent
    from oomdoctor.records.job.result import Attempt


_LATEST = 8  # results above the line where there is no table
# Fewer finished pieces say too little about the others.
_EVIDENCE = 2
# Quicker pieces were not worked on: they were known, skipped or refused.
_AT_ONCE_S = 0.2
# A piece that takes longer than the others did goes on for about this share of its time so far.
_OVERDUE = 0.3


class Progress:
    """Prints what a survey does; `on_event` is its listener.

    A context manager, because the moving line must be removed at the end. The line is drawn by
    another thread, which reads what is kept here and takes no lock.
    """

    def __init__(self, *, quiet: bool) -> None:
        self._quiet = quiet
        self._line: MovingLine | None = None
        self._lock = threading.Lock()
        self._began = time.monotonic()
        self._now: Status | None = None
        self._since = self._began  # the start of the rung
        self._rung: int | None = None
        self._prefix = self._label = ""
        self._attempts: list[Attempt] = []
        self._paces = {"simulation": Pace(), "config": Pace()}
        self._simulated = 0
        # By label; replaced as a whole, because another thread reads them.
        self._least: dict[str, str] = {}
        self._ended: dict[str, str] = {}

    def __enter__(self) -> Self:
        if screen(sys.stderr).moving and not self._quiet:
            from oomdoctor.cli.streams.moving_line import MovingLine

            self._line = MovingLine(self._moving_text)
            self._line.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        with self._lock:
            self._finish_rung()
        if self._line is not None:  # the answer says all of it, unless it goes elsewhere
            erase = kind is None and screen(sys.stdout).moving
            ended, self._least, self._ended = self._ended, {}, {}
            for name, text in {} if erase else ended.items():
                self._print(f"{name}: {text}")
            self._line.stop(erase=erase)

    def on_event(self, event: SurveyEvent) -> None:
        """Show an event of the survey."""
        with self._lock:
            self._take(event)
        if self._line is not None:
            self._line.refresh()

    def _take(self, event: SurveyEvent) -> None:
        if event.kind in ("note", "waiting"):
            self._print(event.message or event.kind)
        elif event.kind == "inspecting":
            self._start("inspecting", event.message or "the model")
        elif event.kind == "bounded" and event.rung is not None:
            if self._line is not None:
                self._least = {**self._least, event.rung.label: event.message or ""}
        elif event.kind == "searching":
            self._now = Status("looking for changes that help", "", ())
        elif event.kind == "counting":
            self._start("counting the tokens of", event.message or "the file", event.phase)
        elif event.kind in ("simulating", "simulated", "predicted"):
            self._take_simulation(event)
        elif event.kind == "done":
            self._finish_rung()
        else:
            self._take_rung(event)

    def _take_rung(self, event: SurveyEvent) -> None:
        """A try of a rung, or a rung that is skipped."""
        if event.kind in ("trying", "skipped") and event.index != self._rung:
            self._finish_rung()
            self._rung, self._since = event.index, time.monotonic()
            self._label = event.rung.label if event.rung else ""
            self._prefix = f"[{event.index:>{len(str(event.total))}}/{event.total}]"
        if event.kind == "skipped":
            reason = event.message or "no reason given"
            self._print(f"{self._prefix} {self._label}: skipped: {reason}")
            self._rung = None
        elif event.kind == "tried" and event.attempt is not None:
            self._attempts.append(event.attempt)
        elif event.kind in ("trying", "phase"):
            if event.kind == "trying" and not self._attempts:
                self._paces["config"].start(self._label, self._since)
            size = f"micro-batch {event.micro_batch_size}" if event.micro_batch_size else ""
            self._now = Status(
                self._prefix,
                self._label,
                (size, event.phase or "starting"),
                left=None if event.left is None else 1 + event.left,
            )

    def _start(self, doing: str, name: str, phase: str | None = None) -> None:
        """Begin a step that has no line at its end: without a moving line, print it now."""
        first = self._now is None or self._now.doing != doing
        self._now = Status(doing, name, (phase or "",))
        if self._line is None and first:
            self._print(f"{doing} {name}")

    def _take_simulation(self, event: SurveyEvent) -> None:
        """Simulations run side by side; `simulated` ones are followed by measurements."""
        label, now = event.rung.label if event.rung else "", time.monotonic()
        pace = self._paces["simulation"]
        if event.kind == "simulating":
            self._finish_rung()  # a probe simulates changes after its ladder
            if self._line is None and not pace.running and not self._simulated:
                self._print(f"simulating {counted(event.total, 'configuration')}")
            pace.start(label, now)
        else:
            pace.end(label, now)
            self._simulated = event.index
        if event.kind == "predicted":
            digits = len(str(event.total))
            is_row = label in self._least
            attempts = list(event.attempts)
            brief = self._line is not None
            text = summary(attempts, brief=brief) if attempts else event.message
            if is_row:
                self._ended = {**self._ended, label: text or "no result"}
            else:
                name, text = f"[{event.index:>{digits}}/{event.total}] {label}", text or "no result"
                if self._line is None:
                    self._print(f"{name}: {text}")
                else:
                    self._ended = {**self._ended, name: text}
        if event.index and event.index == event.total:
            self._simulated = 0
            self._now = Status("finishing", "", ())
            return
        self._now = Status(
            "simulating",
            ", ".join(pace.running),
            (),
            unit="simulation",
            left=event.total - self._simulated,
            until="until measuring" if event.kind == "simulated" else "left",
        )

    def _finish_rung(self) -> None:
        if self._rung is not None and self._attempts:
            now = time.monotonic()
            self._paces["config"].end(self._label, now)
            spent = format_seconds(now - self._since)
            tries = f"{len(self._attempts)} attempts, " if len(self._attempts) > 1 else ""
            self._print(
                f"{self._prefix} {self._label}: {summary(self._attempts)}  ({tries}{spent})"
            )
        self._rung, self._attempts, self._now = None, [], None

    def _print(self, text: str) -> None:
        if self._line is not None:
            self._line.print_above(text)
        elif not self._quiet:
            say_progress(text)

    def _moving_text(self, width: int) -> str:
        status = self._now
        if status is None:
            return ""
        latest = self._ended if self._least else dict(list(self._ended.items())[-_LATEST:])
        rows = table_lines(self._least | latest, width)
        now = time.monotonic()
        rest = None
        if status.left is not None:
            rest = self._paces[status.unit].remaining_s(status.left, now)
        return "\n".join([*rows, line_of(status, now - self._began, rest, width)])


def summary(attempts: list[Attempt], *, brief: bool = False) -> str:
    """One clause about a rung's attempts: the largest micro-batch that fits, or how it failed.

    A `brief` one gives only the reason, as the row of a table does.
    """
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
    if not reason:
        return words
    first = reason.splitlines()[0]
    return first if brief or lacks_package(least.outcome, reason) else f"{words}: {first}"


class Pace:
    """The times of pieces of work, some of which run side by side.

    Invariant: `_running` holds the pieces that have started and not ended, by name.
    """

    def __init__(self) -> None:
        self._running: dict[str, float] = {}
        self._took: list[float] = []
        self._side_by_side = 1

    @property
    def running(self) -> tuple[str, ...]:
        """The names of what is running, in the order in which it started."""
        return tuple(self._running)

    def start(self, name: str, now: float) -> None:
        """A piece begins."""
        self._running[name] = now
        self._side_by_side = max(self._side_by_side, len(self._running))

    def end(self, name: str, now: float) -> None:
        """A piece ends; one that never began was known before."""
        began = self._running.pop(name, now)
        if now - began >= _AT_ONCE_S:
            self._took.append(now - began)

    def remaining_s(self, left: int, now: float) -> float | None:
        """Seconds until all is done, if `left` pieces have not ended; None if unknown."""
        if len(self._took) < _EVIDENCE or not left:
            return None
        mean, waiting = sum(self._took) / len(self._took), max(left - len(self._running), 0)
        spent = [now - began for began in list(self._running.values())]
        rest = [max(mean - seconds, seconds * _OVERDUE) for seconds in spent]
        return max([(waiting * mean + sum(rest)) / self._side_by_side, *rest])
