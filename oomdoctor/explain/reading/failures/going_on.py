"""Reads whether a run went on after a failure: its end, a saved model, progress, words of a retry.

A text may hold several runs, one after another or side by side. What shows that a run went on must
be of the same run and the same process as the failure, and the process must not have died before.
"""

from __future__ import annotations

import re
import sys
from collections import deque
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from oomdoctor.explain.reading.failures.runs_apart import Starts, died, restarted, sets_up
from oomdoctor.explain.reading.lines.prefixes import process_of
from oomdoctor.explain.reading.patterns import patterns

_RE = patterns("going_on")
MEMORY = re.compile(r"\bOOM\b|out of memory|ran out of|memory error", re.IGNORECASE)
_MOST = 64
_MOST_RUNS = 1024
_MOST_PROCESSES = 256
_OTHERS = "others"  # the processes that are too many to count
LONGEST_QUOTE = 400


class Report(NamedTuple):
    """Where a failure is reported: by which process, in which run of the text, and its last line.

    `moves` counts the signs of progress of the process before it, and `step` is its last one. If
    the run is `over`, it had said that it finished.
    """

    process: str
    run: int
    moves: int
    last: int
    over: bool
    step: int | None = None


class _End(NamedTuple):
    """Where a run of the text ends, or one of its processes with an error.

    `moves` says how far each process came: the count and the last line.
    """

    line: int
    moves: dict[str, tuple[int, str]]
    text: str = ""


class GoingOn:
    """Collects the signs that a run goes on: `feed` every line, then ask `after`."""

    def __init__(self) -> None:
        self.run = 0  # how many other runs began before
        self.over = False  # the run said that it finished, and there was no progress since then
        self._starts = Starts()
        self._asked = False  # a failure may have been reported in this run
        self._named = False  # a failure names its process: from then on, whose progress matters
        self._moves: dict[str, tuple[int, str]] = {}
        self._ends: deque[tuple[int, str]] = deque(maxlen=_MOST)
        self._saved: deque[tuple[int, str]] = deque(maxlen=_MOST)
        self._retries: deque[tuple[int, str]] = deque(maxlen=_MOST)
        self._deaths: deque[_End] = deque(maxlen=_MOST)
        self._runs: deque[_End] = deque(maxlen=_MOST_RUNS)
        self._last_report = self._set_up = 0
        # After each report, the first line that a program prints as it starts.
        self._set_ups: deque[_End] = deque(maxlen=_MOST_RUNS)
        self._forgotten = 0  # the last line of the runs that are not kept

    def feed(self, number: int, text: str) -> None:
        """Read one line."""
        finishes = _may_finish(text) and _finishes(text)
        if self._starts.begins(text, settled=not self._asked, finishes=finishes):
            self._begin(number)
        if self._asked and self._set_up <= self._last_report and sets_up(text):
            self._set_up = number
            self._set_ups.append(_End(number, dict(self._moves)))
        if finishes:
            self._ends.append((number, text.strip()[:LONGEST_QUOTE]))
            self.over = True
        elif ("sav" in text or "Sav" in text) and _said(_RE["saved"], _RE["not_saved"], text):
            self._saved.append((number, text.strip()[:LONGEST_QUOTE]))
        elif died(text):
            self._deaths.append(_End(number, dict(self._moves), text.strip()[:LONGEST_QUOTE]))
        elif restarted(text):
            self._deaths.clear()

    def _begin(self, number: int) -> None:
        self.run += 1
        self.over = False
        if self._asked:
            if len(self._runs) == _MOST_RUNS:
                self._forgotten = self._runs[0].line
            self._runs.append(_End(number, dict(self._moves)))
        self._asked = False

    def moved(self, text: str) -> None:
        """Note a line that shows progress."""
        self.over = False
        process = process_of(text) if self._named else ""
        if process not in self._moves and len(self._moves) >= _MOST_PROCESSES:
            process = _OTHERS
        count = self._moves.pop(process, (0, ""))[0]
        self._moves[process] = (count + 1, text.strip()[:LONGEST_QUOTE])

    def retried(self, number: int, text: str) -> None:
        """Note whether a line near a failure says that the run tries again or skips something."""
        if _said(_RE["retried"], _RE["no_retry"], text):
            self._retries.append((number, text.strip()[:LONGEST_QUOTE]))

    def report(self, number: int, text: str) -> Report:
        """Where the log has come at a line that reports a failure."""
        self._asked, self._last_report = True, number
        process = process_of(text)
        self._named = self._named or bool(process)
        moves = _progress(self._moves, process)[0]
        return Report(process, self.run, moves, number, self.over)

    @property
    def finished_line(self) -> int:
        """The last line that says that the run finished; 0 if none does."""
        return self._ends[-1][0] if self._ends else 0

    @property
    def evidence(self) -> dict[str, tuple[str, ...]]:
        """The line that says that the run finished, if there is one."""
        return {"finished": (self._ends[-1][1],)} if self._ends else {}

    def after(
        self,
        report: Report,
        near: int,
        lines: tuple[str, ...],
        until: int | None,
        *,
        uncaught: bool = False,
    ) -> str | None:
        """The line that shows that the run continued after a failure; None if none does.

        `lines` report it. A retry is said at most `near` lines after it. From the line `until` on,
        another failure is reported, so a later end need not be this run's. If the error was
        `uncaught`, the run ends where a program starts, unless it is a retry.
        """
        run = self._run_after(report.last)
        if uncaught:
            starts = (start for start in self._set_ups if report.last < start.line < run.line)
            run = next(starts, run)
        deaths = (
            death
            for death in self._deaths
            if report.last < death.line < run.line and _same(death.text, report.process, lines)
        )
        death = next(deaths, None)
        end = death or run
        stop = end.line if until is None else min(end.line, until)

        def of_the_run(signs: Iterable[tuple[int, str]]) -> Iterator[str]:
            for number, text in signs:
                if report.last < number < stop and _same(text, report.process, lines):
                    yield text

        for text in of_the_run(self._ends):
            # Where one process exits with an error, that another exits without one says nothing.
            if death is None or not _RE["code"].search(text):
                return text
        soon = min(report.last + near, run.line)
        for number, text in self._retries:
            if report.last <= number <= soon:
                return text
        count, moved = _progress(end.moves, report.process)
        return moved if count - report.moves >= 2 else next(of_the_run(self._saved), None)

    def _run_after(self, number: int) -> _End:
        """Where the run that a line belongs to ends."""
        if number < self._forgotten:
            return _End(number, {})
        now = _End(sys.maxsize, self._moves)
        return next((run for run in self._runs if run.line > number), now)


def _progress(moves: dict[str, tuple[int, str]], process: str) -> tuple[int, str]:
    """How often a process moved, with lines that name no process, and the last such line."""
    if not process:
        return sum(count for count, _ in moves.values()), next(reversed(moves.values()), (0, ""))[1]
    own, any_of = moves.get(process), moves.get("")
    told = [move for move in (own, any_of) if move is not None]
    return sum(count for count, _ in told), told[0][1] if told else ""


def _same(text: str, process: str, lines: tuple[str, ...]) -> bool:
    """Whether a line is about the process that failed; a line that names none may be."""
    ended = _RE["container"].match(text)
    if ended is not None:
        return any(line.startswith(ended[1]) for line in lines)
    other = process_of(text)
    return not other or not process or other == process


def _finishes(text: str) -> bool:
    """Whether a program says in a line that it has finished; not a person who writes about it."""
    match = None if _RE["not_said"].search(text) else _RE["finished"].search(text)
    if match is None or _RE["told_before"].search(text[: match.start()]):
        return False
    return _RE["told_after"].search(text, match.end()) is None


def _may_finish(text: str) -> bool:
    """Whether a word of `_RE["finished"]` is in a line; faster than the pattern, or a loop."""
    return (
        "rain" in text
        or "xit" in text
        or "inished" in text
        or "ompleted" in text
        or "COMPLETED" in text
        or "All done" in text
        or (not text.isascii() and "训练" in text)
    )


def _said(pattern: re.Pattern[str], unless: re.Pattern[str], text: str) -> bool:
    """Whether a line says something itself: no heading, no source line that prints it."""
    if _RE["not_said"].search(text) or pattern.search(text) is None:
        return False
    return unless.search(text) is None
