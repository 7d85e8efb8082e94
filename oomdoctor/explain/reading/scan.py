"""Reads the lines of a log into failures and facts, in one pass and bounded memory.

A line that may start a failure waits until enough lines after it are known. Then the message is
read, the traceback before it (of the same process) gives the phase and the place, and the lines
after it show whether the run continued.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any

from oomdoctor.analysis.frames import moment_of, phase_of, recomputes, told_phase
from oomdoctor.explain.reading.failures.claims import claim_in, claiming, is_title, may_claim
from oomdoctor.explain.reading.failures.going_on import MEMORY, Report
from oomdoctor.explain.reading.failures.incidents import (
    Finding,
    fold,
    incidents_of,
    next_failure,
    with_rank,
)
from oomdoctor.explain.reading.failures.look_alikes import (
    MAY_FAIL,
    QUOTED,
    SHUTDOWN,
    Found,
    find_look_alike,
)
from oomdoctor.explain.reading.failures.quoted import NEAR, Place, quoted
from oomdoctor.explain.reading.lines.clean import Line
from oomdoctor.explain.reading.lines.prefixes import Split, number_in, rank_in
from oomdoctor.explain.reading.lines.traceback import EXCEPTION, starts_traceback
from oomdoctor.explain.reading.lines.window import AHEAD, Read, Window
from oomdoctor.explain.reading.log_facts import FactReader
from oomdoctor.explain.reading.logged_settings import MEMORY_LIMIT
from oomdoctor.explain.reading.parse import MAY_OPEN, Message, figure, printed_size
from oomdoctor.explain.reading.patterns import patterns
from oomdoctor.explain.reading.printed_sizes import size_bytes
from oomdoctor.records.job.measurement import OomEvent
from oomdoctor.records.report.diagnosis import Frame, Incident, LogFacts, ReadPhase

_RE = patterns("scan")

_MOST_READ = 400  # failures read in full; beyond that, only the last ones
_MOST_TRIED = 1500
_MOST_OTHERS = 600  # lines that may report another failure
_MOST_LATE = 40
_QUOTE = 600
_SHORT_LOG = 40
_LOOK_BACK = 60  # lines before a message that may show which moment of a program it was
_NEAR = 8  # lines before a message that may have words of a phase
_BESIDE = 120, 24  # lines before and after a message that may print its figures
_OUTERMOST = ("<module>", "_run_module_as_main")  # functions where a program begins
_LONGEST = 600  # characters of a line that may show that it is quoted
_MOST_TOLD = 2_000  # lines in which a person may tell of a failure; a longer text is a log
_MOST_CLAIMS = 40
_LESS_THAN_A_CLAIM = {"other", QUOTED, SHUTDOWN.name}


def scan(lines: Iterable[Line | str]) -> tuple[tuple[Incident, ...], LogFacts]:
    """The failures of a log, and its facts.

    Memory failures come first, in the order of the log; then their consequences, such as a kill
    that the kernel's report explains; then strong look-alikes. Weak look-alikes are reported only
    if the log has no memory failure.
    """
    return _Scanner().read(lines)


def _within(limit: int, incident: Incident) -> Incident:
    """The incident with the limit on host memory that the text states beside it."""
    event = incident.event
    if incident.resource != "host" or event.allowed_bytes is not None:
        return incident
    return replace(incident, event=replace(event, allowed_bytes=limit))


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
        self._reports: dict[int, Report] = {}
        self._quoted: Incident | None = None
        self._claims: list[int] = []
        self._opening: int | None = None  # the first line that is not blank

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
        incidents = incidents_of(self._found, self._went_on)
        if not any(incident.look_alike is None for incident in incidents):
            incidents = self._told(incidents)
        else:
            incidents = self._with_cut_traceback(incidents)
        incidents = tuple(map(self._with_told_phase, incidents))
        if not incidents and self._quoted is not None:
            incidents = (self._quoted,)
        facts = self._facts.facts(number)
        if not incidents and (error := self._window.last(_RE["error"])) is not None:
            told = {"last_error": (error.strip()[:_QUOTE],)}
            facts = replace(facts, evidence={**facts.evidence, **told})
        limit = facts.settings.get(MEMORY_LIMIT)
        if isinstance(limit, int):
            incidents = tuple(_within(limit, incident) for incident in incidents)
        return with_rank(incidents, self._facts.failed_rank), facts

    def _add(self, index: int, line: Line) -> None:
        text = line.text
        self._facts.feed(line.number, text)
        self._window.add(line)
        if self._opening is None and text.strip():
            self._opening = index
        if len(self._claims) < _MOST_CLAIMS and index < _MOST_TOLD and may_claim(text[:_LONGEST]):
            self._claims.append(index)
        if not self._wsl and "WSL" in text and _RE["wsl"].search(text):
            self._wsl = True
        if MAY_OPEN.search(text) or MAY_FAIL.search(text):
            self._reports[index] = self._facts.report(line.number, text)
            if self._tried < _MOST_TRIED and len(self._found) < _MOST_READ:
                self._waiting.append(index)
            else:
                if len(self._late) == _MOST_LATE:
                    self._reports.pop(self._late[0], None)
                self._late.append(index)
        while self._waiting and self._waiting[0] + AHEAD <= index:
            self._try(self._waiting.popleft())

    def _told(self, others: tuple[Incident, ...]) -> tuple[Incident, ...]:
        """The failures of a text without a message about memory, which a person may tell of.

        A failure of another kind that the text shows is what ended the run.
        """
        sure = [i for i in others if not (i.consequence or i.look_alike in _LESS_THAN_A_CLAIM)]
        shown = [i for i in others if i.frames and not i.consequence]
        if sure or shown or self._window.end > _MOST_TOLD or self._window.start > 0:
            return others
        taken = {incident.line_number for incident in others if incident.look_alike == "other"}
        lines = (i for i in self._claims if self._window.line(i).number not in taken)
        told = [made for i in lines if (made := self._claimed(i)) is not None]
        if not told:
            return others
        vague, incident = told[0]
        of_host = (made for _, made in told if made.resource != "gpu")
        return (next(of_host, incident) if vague else incident,)

    def _claimed(self, index: int) -> tuple[bool, Incident] | None:
        """The memory failure that a line tells of, and whether it is vague, or None."""
        line = self._window.line(index)
        text = line.text[:_LONGEST]
        title = is_title(text)
        claim = claim_in(text, title=title) if not self._window.split(index).tag else None
        if claim is None:
            return None
        flat = Place(text, text[: claim.start], text[claim.start : claim.end], text[claim.end :])
        posted = title and index == self._opening  # the title of a thread
        if not posted and quoted(self._surrounded(index, flat), False):
            return None
        frames = self._window.unfinished_traceback() if claim.resource == "gpu" else ()
        phase, where = phase_of(frames)
        if phase == "unknown" and not frames:
            lines = self._window.before(self._window.end - 1, None, _LOOK_BACK)
            phase = moment_of(lines, text)
        event = OomEvent(self._quote(index), claim.dialect, phase)
        return claim.vague, Incident(
            event,
            resource=claim.resource,
            frames=frames,
            phase=phase,
            where=where,
            lines=(self._quote(index),),
            line_number=line.number,
            recomputing=recomputes(frames),
        )

    def _with_cut_traceback(self, incidents: tuple[Incident, ...]) -> tuple[Incident, ...]:
        """The incidents; if none has a traceback, the first gets the one that is left open."""
        ended = [i for i in incidents if i.look_alike is None and not i.consequence]
        if not ended or any(i.frames or i.resource != "gpu" for i in ended):
            return incidents
        incident = ended[0]  # ranks that fail together do so at the same place
        if incident.survived or self._window.end > _MOST_TOLD or self._window.start > 0:
            return incidents
        frames = self._window.unfinished_traceback()
        phase, where = phase_of(frames)
        if phase == "unknown":
            return incidents
        phase = phase if incident.phase == "unknown" else incident.phase
        event = replace(incident.event, phase=phase)
        whole = replace(incident, event=event, frames=frames, phase=phase, where=where)
        return tuple(whole if i is incident else i for i in incidents)

    def _with_told_phase(self, incident: Incident) -> Incident:
        """The incident with the phase that a person tells, where nothing else shows it."""
        if incident.phase != "unknown" or incident.look_alike is not None:
            return incident
        if self._window.end > _MOST_TOLD or self._window.start > 0:
            return incident
        for index in self._telling():
            text = self._window.line(index).text[:_LONGEST]
            if (phase := told_phase(claiming(text))) != "unknown":
                event = replace(incident.event, phase=phase)
                lines = tuple(dict.fromkeys((*incident.lines, self._quote(index))))
                return replace(incident, phase=phase, event=event, lines=lines)
        return incident

    def _telling(self) -> Iterator[int]:
        """The lines in which a person may tell of the failure, those that name it first."""
        claims = [
            index
            for index in self._claims
            if claim_in(text := self._window.line(index).text[:_LONGEST], title=is_title(text))
        ]
        yield from claims
        if self._opening is not None and is_title(self._window.line(self._opening).text):
            yield self._opening
        for index in claims[:3]:
            yield from range(index - 1, max(index - 4, -1), -1)

    def _try(self, index: int) -> None:
        self._tried += 1
        report = self._reports.pop(index)
        split = self._window.split(index)
        if self._consumed.get(split.tag, -1) >= index:
            return
        text = self._window.line(index).text
        if MAY_OPEN.search(text):
            read = self._window.message(index, split.tag)
            if read is not None and self._keep(index, split, read, report):
                return
        if self._others < _MOST_OTHERS and (MAY_FAIL.search(text) or "illed" in text):
            self._others += 1
            alike = find_look_alike(self._window.around(index, split.tag, before=0, after=4))
            if alike is not None:
                self._keep_look_alike(index, split, alike, report)

    def _keep(self, index: int, split: Split, read: Read, report: Report) -> bool:
        """Keep what a message says; False if its traceback shows that it means something else."""
        message, told, flat = read
        looks = not message.dialect.hints_only or message.dialect.in_frames is not None
        frames = self._window.traceback(index, split.tag) if looks else ()
        if not message.dialect.applies_to(frames):
            return False
        for i in told:
            self._consumed[self._window.split(i).tag] = i
        if self._is_quoted(index, message, flat):
            if self._quoted is None:
                self._quoted = self._not_memory(index, self._quote(index), QUOTED)
            return True
        if self._over(index, message, report):
            shutdown = Found(SHUTDOWN.name, None, self._quote(index), True, False)
            self._keep_look_alike(index, split, shutdown, report)
        else:
            self._keep_memory(told, split, message, report, frames)
            self._note_retry(told)
        self._window.end_traceback(told[-1], split.tag)
        return True

    def _is_quoted(self, index: int, message: Message, flat: str) -> bool:
        """Whether the line at an index only quotes a message; the title of a thread does not."""
        if index == self._opening and is_title(self._window.line(index).text):
            return False
        place = Place(
            raw=self._window.line(index).text[:_LONGEST],
            lead=flat[: message.start][-_LONGEST:],
            words=flat[message.start : message.end],
            tail=flat[message.end :][:_LONGEST],
        )
        return quoted(self._surrounded(index, place), message.event.capacity_bytes is not None)

    def _surrounded(self, index: int, place: Place) -> Place:
        """The place, with the lines around it."""
        window = self._window
        first, last = max(window.start, index - NEAR), min(index + NEAR, window.end)
        return place._replace(
            before=[window.line(i).text[:_LONGEST] for i in range(first, index)],
            after=[window.line(i).text[:_LONGEST] for i in range(index + 1, last)],
        )

    def _quote(self, index: int) -> str:
        return self._window.line(index).text.strip()[:_QUOTE]

    def _not_memory(
        self, index: int, message: str, look_alike: str, phase: ReadPhase = "unknown"
    ) -> Incident:
        """What a line reports that is no memory failure, or only quoted."""
        event = OomEvent(message, "not_oom", phase)
        lines, number = (self._quote(index),), self._window.line(index).number
        return Incident(event, look_alike, phase=phase, lines=lines, line_number=number)

    def _over(self, index: int, message: Message, report: Report) -> bool:
        """Whether a worker was killed after the training, or when its loader was cleaned up."""
        if message.dialect.name != "dataloader_worker":
            return False
        if report.over:
            return True
        window = self._window
        near = range(max(window.start, index - 8), min(index + 6, window.end))
        cleaned = any(_RE["clean_up"].search(window.line(i).text) for i in near)
        return not self._found and (cleaned or self._ignored(index))

    def _ignored(self, index: int) -> bool:
        """Whether Python ignored the exception at a line, as it does in `__del__`."""
        for i in range(index - 1, max(self._window.start, index - NEAR) - 1, -1):
            text = self._window.split(i).text
            if text.startswith("Exception ignored in"):
                return True
            indented = self._window.line(i).text.startswith(" ") or text.startswith((" ", "File "))
            if text and not indented and not starts_traceback(text):
                return False
        return False

    def _keep_memory(
        self,
        told: list[int],
        split: Split,
        message: Message,
        report: Report,
        frames: tuple[Frame, ...],
    ) -> None:
        dialect, index = message.dialect, told[0]
        around = self._window.around(index, split.tag)
        phase, where = phase_of(frames)
        if phase == "unknown":
            # A launcher, the system and a library write without the name of the process.
            own = None if dialect.hints_only or dialect.lived_on else split.tag
            lines = self._window.before(told[-1], own, _LOOK_BACK)
            near = self._window.before(index, split.tag or None, _NEAR)
            shown = [line for line in near if not is_title(line)]
            phase = moment_of(lines, "\n".join((around, *shown)))
        if phase == "unknown" and split.tag:
            # Other workers of the program, and bars, which name no process.
            near = self._window.before(min(told[-1] + _NEAR, self._window.end - 1), None, 2 * _NEAR)
            phase = moment_of((), "\n".join(line for line in near if not is_title(line)))
        if phase == "unknown":
            phase = dialect.phase
        if dialect.lived_on and message.resource == "host":
            # The system reports a kill without a traceback. A traceback before it shows what the
            # program was doing, not which line allocated too much.
            frames, where = (), None
        line = self._window.line(index)
        exception = EXCEPTION.findall(line.text[:2000])
        rank = self._rank(split, line)
        if rank is None and dialect.hints_only and (beside := _RE["rank_beside"].search(around)):
            rank = int(beside[1])
        name, resource = dialect.name, message.resource
        called = " ".join(f"{f.function} {f.code or ''}" for f in frames[-3:]) or around
        if name == "cuda_driver" and _RE["pinned"].search(called):  # pinned memory of the host
            name, resource = "wsl_pinned" if self._wsl else name, "host"
        event = replace(self._with_figures(message, index, split.tag), phase=phase, dialect=name)
        incident = Incident(
            event,
            resource=resource,
            frames=frames,
            phase=phase,
            where=where,
            lines=tuple(map(self._quote, told)),
            rank=rank,
            line_number=line.number,
            step=report.step,
            listed_processes=message.listed_processes,
            exception=exception[-1] if exception else None,
            recomputing=recomputes(frames),
            tensor_shape=message.tensor_shape,
            tensor_dtype=message.tensor_dtype,
        )
        report = report._replace(last=self._window.line(told[-1]).number)
        fold(self._found, Finding(incident, [report], dialect))

    def _with_figures(self, message: Message, index: int, tag: str) -> OomEvent:
        """What a message says, with the figures that its program prints on lines beside it."""
        event, dialect = message.event, message.dialect
        wanted = {name: p for name, p in dialect.beside.items() if getattr(event, name) is None}
        if not wanted:
            return event
        lines = self._window.around(index, tag, *_BESIDE).split("\n")
        figures: dict[str, Any] = {}
        for name, pattern in wanted.items():
            matches = (figure(pattern).search(line.strip()) for line in lines)
            match = next((match for match in matches if match is not None), None)
            if match is not None:
                figures[name] = size_bytes(printed_size(match), dialect.binary_units)
        return replace(event, **figures)

    def _note_retry(self, told: list[int]) -> None:
        """Look for words beside a message that say that the program goes on."""
        for i in range(max(self._window.start, told[0] - 2), told[0]):
            before = self._window.line(i)
            if MEMORY.search(before.text):
                self._facts.going_on.retried(self._window.line(told[-1]).number, before.text)
        own = self._window.line(told[-1])
        self._facts.going_on.retried(own.number, own.text)
        for i in self._window.after(told[-1]):
            after = self._window.line(i)
            if starts_traceback(after.text):
                break
            self._facts.going_on.retried(after.number, after.text)

    def _rank(self, split: Split, line: Line) -> int | None:
        """The rank that wrote a line, by its prefix, its words or the process that was spawned."""
        if split.rank is not None:
            return split.rank
        told = rank_in(line.text)
        if told is None and split.tag:
            told = number_in(split.tag, self._window.tags())
        return self._facts.spawned_before(line.number) if told is None else told

    def _keep_look_alike(self, index: int, split: Split, alike: Found, report: Report) -> None:
        frames = self._window.traceback(index, split.tag)
        if not (frames or alike.strong or self._window.end < _SHORT_LOG):
            return
        phase, where = phase_of(frames)
        if phase == "unknown":
            phase = moment_of((), self._window.around(index, split.tag))
        incident = replace(
            self._not_memory(index, alike.message, alike.name, phase),
            frames=frames,
            where=where,
            rank=self._rank(split, self._window.line(index)),
            step=report.step,
            exception=alike.exception,
            consequence=alike.consequence,
        )
        fold(self._found, Finding(incident, [report], strong=alike.strong))

    def _went_on(self, finding: Finding, report: Report) -> str | None:
        """The line that shows that the run went on: steps, its end, a saved model or a retry."""
        until = next_failure(finding, report, self._found)
        incident = finding.incident
        # Python prints such a traceback when nothing caught the error: the process ended with it.
        uncaught = bool(incident.frames) and incident.frames[0].function in _OUTERMOST
        return self._facts.going_on.after(report, AHEAD, incident.lines, until, uncaught=uncaught)
