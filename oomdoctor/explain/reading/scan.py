"""Reads the lines of a log into failures and facts, in one pass and bounded memory.

A line that may start a failure waits until enough lines after it are known. Then the message is
read, the traceback before it (of the same process) gives the phase and the place, and the lines
after it show whether the run continued.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterable
from dataclasses import fields, replace

from oomdoctor.explain.reading.clean import Line
from oomdoctor.explain.reading.dialects.parse import MAY_OPEN, Message, read_message
from oomdoctor.explain.reading.frames.phase import phase_of, recomputes
from oomdoctor.explain.reading.incidents import Finding, fold, incidents_of
from oomdoctor.explain.reading.log_facts import FactReader
from oomdoctor.explain.reading.look_alikes import MAY_FAIL, Found, find_look_alike
from oomdoctor.explain.reading.prefixes import Split, rank_in
from oomdoctor.explain.reading.window import AHEAD, Reading, Window
from oomdoctor.records.diagnosis import Frame, Incident, LogFacts, Numbers, Resource
from oomdoctor.records.measurement import OomEvent

_MOST_READ = 400  # failures read in full; beyond that, only the last ones
_MOST_TRIED = 1500
_MOST_OTHERS = 600  # lines that may report another failure
_MOST_LATE = 40
_QUOTE = 600
_SHORT_LOG = 40

_EXCEPTION = re.compile(r"(?<![\w.])((?:[A-Za-z_][\w.]*\.)?[A-Z]\w*(?:Error|Exception))\b")
_RANK_BESIDE = re.compile(r"^\s*rank\s*: (\d+)", re.MULTILINE)
_PINNED = re.compile(r"pin_memory|allocate_cpu_cache|cudaHostAlloc|cudaMallocHost|pinned")
_WSL = re.compile(r"\bWSL ?2?\b|microsoft-standard")


def scan(lines: Iterable[Line | str]) -> tuple[tuple[Incident, ...], LogFacts]:
    """The failures of a log, and its facts.

    Memory failures come first, in the order of the log; then their consequences, such as a kill
    that the kernel's report explains; then strong look-alikes. Weak look-alikes are reported only
    if the log has no memory failure.
    """
    return _Scanner().read(lines)


class _Scanner:
    """The lines around the current one, and everything found so far."""

    def __init__(self) -> None:
        self._window = Window()
        self._waiting: deque[int] = deque()
        self._late: deque[int] = deque(maxlen=_MOST_LATE)
        self._consumed: dict[str, int] = {}
        self._found: list[Finding] = []
        self._tried = self._others = 0
        self._wsl = False
        self._facts = FactReader()
        self._moves_at: dict[int, tuple[int, int | None]] = {}

    def read(self, lines: Iterable[Line | str]) -> tuple[tuple[Incident, ...], LogFacts]:
        number = 0
        for index, line in enumerate(lines):
            item = line if isinstance(line, Line) else Line(index + 1, line)
            number = item.number
            self._add(index, item)
        while self._waiting:
            self._try(self._waiting.popleft())
        for late in self._late:
            if late >= self._window.start:
                self._try(late)
        return incidents_of(self._found, self._went_on), self._facts.facts(number)

    def _add(self, index: int, line: Line) -> None:
        text = line.text
        self._facts.feed(line.number, text)
        self._window.add(line)
        if not self._wsl and "WSL" in text and _WSL.search(text):
            self._wsl = True
        if MAY_OPEN.search(text) or MAY_FAIL.search(text):
            self._moves_at[index] = self._facts.moves, self._facts.step
            if self._tried < _MOST_TRIED and len(self._found) < _MOST_READ:
                self._waiting.append(index)
            else:
                if len(self._late) == _MOST_LATE:
                    self._moves_at.pop(self._late[0], None)
                self._late.append(index)
        while self._waiting and self._waiting[0] + AHEAD <= index:
            self._try(self._waiting.popleft())

    def _try(self, index: int) -> None:
        self._tried += 1
        moves, step = self._moves_at.pop(index, (self._facts.moves, self._facts.step))
        split = self._window.split(index)
        if self._consumed.get(split.tag, -1) >= index:
            return
        text = self._window.line(index).text
        if MAY_OPEN.search(text):
            read = _best(self._window.readings(index, split.tag))
            if read is not None:
                message, told = read
                for i in told:
                    self._consumed[self._window.split(i).tag] = i
                self._keep_memory(told, split, message, moves, step)
                self._window.end_traceback(told[-1], split.tag)
                return
        if self._others < _MOST_OTHERS and (MAY_FAIL.search(text) or "illed" in text):
            self._others += 1
            found = find_look_alike(self._window.around(index, split.tag, before=0, after=4))
            if found is not None:
                self._keep_look_alike(index, split, found, moves, step)

    def _keep_memory(
        self, told: list[int], split: Split, message: Message, moves: int, step: int | None
    ) -> None:
        dialect, index = message.dialect, told[0]
        frames = () if dialect.hints_only else self._window.traceback(index, split.tag)
        around = self._window.around(index, split.tag)
        phase, where = phase_of(frames, around)
        if phase == "unknown":
            phase = dialect.phase
        if dialect.lived_on and message.resource == "host":
            # The system reports a kill without a traceback. A traceback before it shows what the
            # program was doing, not which line allocated too much.
            frames, where = (), None
        line = self._window.line(index)
        exception = _EXCEPTION.findall(line.text[:2000])
        rank = split.rank if split.rank is not None else rank_in(line.text)
        if rank is None and dialect.hints_only and (beside := _RANK_BESIDE.search(around)):
            rank = int(beside[1])
        quoted = tuple(self._window.line(i).text.strip()[:_QUOTE] for i in told)
        name, resource = _dialect_and_resource(message, frames, around, self._wsl)
        event = replace(message.event, phase=phase, dialect=name)
        incident = Incident(
            event=event,
            look_alike=None,
            resource=resource,
            frames=frames,
            phase=phase,
            where=where,
            lines=quoted,
            rank=rank,
            line_number=line.number,
            step=step,
            survived=False,
            listed_processes=message.listed_processes,
            exception=exception[-1] if exception else None,
            recomputing=recomputes(frames),
            tensor_shape=message.tensor_shape,
            tensor_dtype=message.tensor_dtype,
        )
        for i in self._window.after(told[-1]):
            after = self._window.line(i)
            self._facts.retried(after.number, after.text)
        number = self._window.line(told[-1]).number
        fold(self._found, Finding(incident, number, moves, dialect))

    def _keep_look_alike(
        self, index: int, split: Split, found: Found, moves: int, step: int | None
    ) -> None:
        frames = self._window.traceback(index, split.tag)
        if not (frames or found.strong or self._window.end < _SHORT_LOG):
            return
        phase, where = phase_of(frames, self._window.around(index, split.tag))
        line = self._window.line(index)
        incident = Incident(
            event=OomEvent(message=found.message, dialect="not_oom", phase=phase),
            look_alike=found.name,
            resource="none",
            frames=frames,
            phase=phase,
            where=where,
            lines=(line.text.strip()[:_QUOTE],),
            rank=split.rank,
            line_number=line.number,
            step=step,
            survived=False,
            exception=found.exception,
            consequence=found.consequence,
        )
        fold(self._found, Finding(incident, line.number, moves, strong=found.strong))

    def _went_on(self, finding: Finding) -> bool:
        """Whether steps, the end of the training or a retry follow a failure."""
        facts, last = self._facts, finding.last_number
        return (
            facts.moves - finding.moves >= 2
            or facts.finished_line > last
            or last < facts.last_retry <= last + AHEAD
        )


def _best(readings: Iterable[Reading]) -> tuple[Message, list[int]] | None:
    """The message of the reading with the most figures, and its lines."""
    best: tuple[int, Message, list[int]] | None = None
    for reading in readings:
        message = read_message(reading.flat, within=reading.ends[0][1])
        if message is None:
            continue
        told = sum(getattr(message.event, figure.name) is not None for figure in fields(Numbers))
        if best is None or told > best[0]:
            best = told, message, reading.lines_to(message.end)
    return None if best is None else best[1:]


def _dialect_and_resource(
    message: Message, frames: tuple[Frame, ...], around: str, wsl: bool
) -> tuple[str, Resource]:
    """The dialect and the resource: the driver's "out of memory" may mean pinned host memory."""
    name = message.dialect.name
    if name == "cuda_driver":
        called = " ".join(f"{f.function} {f.code or ''}" for f in frames[-3:])
        if _PINNED.search(called) or (not frames and _PINNED.search(around)):
            return ("wsl_pinned" if wsl else name), "host"
    return name, message.resource
