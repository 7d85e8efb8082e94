"""From the lines of a log to its failures and facts, in one pass and bounded memory.

A line that may open a failure is kept until enough lines after it are known; then the message is
read, the traceback before it (of the same process) gives phase and place, and what follows tells
whether the run went on.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace

from oomdoctor.analysis.oom.dialect import Dialect
from oomdoctor.analysis.oom.dialects import Message, flatten, read_message
from oomdoctor.analysis.oom.facts import FactReader
from oomdoctor.analysis.oom.frames import frames_in, phase_of, recomputes, starts_traceback
from oomdoctor.analysis.oom.look_alikes import Found, find_look_alike
from oomdoctor.analysis.oom.ranks import Split, rank_in, split_line
from oomdoctor.analysis.oom.stream import Line
from oomdoctor.records.diagnosis import Frame, Incident, LogFacts, ReadPhase, Resource
from oomdoctor.records.result import OomEvent

_AHEAD = 24  # lines after an opening that may belong to it
_BEHIND = 3000  # lines before it that may be its traceback
_BUFFER_LINES = 6000
_BUFFER_CHARACTERS = 4_000_000
_MOST_READ = 400  # failures read in full; of more, only the last ones
_MOST_TRIED = 1500
_MOST_OTHERS = 600  # lines that may tell of another failure
_MOST_LATE = 40
_MESSAGE_CHARACTERS = 1800
_GAP = 60  # lines without a frame after which a traceback without a head is over
_QUOTE = 600
_SHORT_LOG = 40

# A word of every opening in the tables; a test holds that no row is missed.
_MEMORY_HINT = re.compile(
    r"ut of memory|total capac|ried to alloc|ceed allowed memory|No executable batch|llocat|ALLOC"
    r"|cuDNN algorithm|OUT_OF|CUDA (?:m|c)alloc|hared memory|system memory|cache blocks|max seq len"
    r"|Free memory on|ot enough memory|Attempting to|EXHAUSTED|OOM|ran out|cudaErrorMem|Error 2:"
    r"|out_of_memory|unable to|Bus error|No space left|illed|oom[-_]|low on memory|OutOfMemory"
    r"|memory pressure|emory limit|MEMLIMIT|bad_alloc|alloc of size|1455|MemoryError|137|-9\b"
    r"|SIGKILL|Out Of Memory|已杀死|earlyoom|signal 9|memory segment"
)
_FAILURE_HINT = re.compile(
    r"Error\b|Exception\b|Expired\b|OutOfResources|Failure\b|assert|Assertion|same device"
    r"|two devices|device type|memory access|misaligned|MMU Fault|resource: shared"
    r"|kernel image|ECC|fallen off"
    r"|NVIDIA driver|launch failure|Ampere|not implemented for|is (?:nan|NaN|inf)|nan loss|NaN loss"
    r"|nan values|'loss': '?nan|No space left|quota exceeded|DUE TO|PREEMPT|preempted|Xid|RUNLIMIT"
)
_EXCEPTION = re.compile(r"(?<![\w.])((?:[A-Za-z_][\w.]*\.)?[A-Z]\w*(?:Error|Exception))\b")
_FRAME_LIKE = re.compile(r'File "|:\d+,? in |, line \d|-> \d|❱|In ?\[|\.py,? (?:line|in) ')
_RANK_BESIDE = re.compile(r"^\s*rank\s*: (\d+)", re.MULTILINE)
_PINNED = re.compile(r"pin_memory|allocate_cpu_cache|cudaHostAlloc|cudaMallocHost|pinned")
_WSL = re.compile(r"\bWSL ?2?\b|microsoft-standard")


@dataclass(slots=True)
class _Finding:
    """An incident while the log is still being read."""

    incident: Incident
    last_number: int
    moves: int
    dialect: Dialect | None = None
    strong: bool = True
    key: tuple[object, ...] = field(default_factory=tuple)


def scan(lines: Iterable[Line | str]) -> tuple[tuple[Incident, ...], LogFacts]:
    """The failures of a log and what else it tells.

    Failures of memory come first, in the order of the log, then their consequences (the kill of a
    process that a report of the kernel explains), then strong look-alikes; only a log without a
    failure of memory has look-alikes of every kind.
    """
    return _Scanner().read(lines)


class _Scanner:
    """The lines around the present one and everything found so far."""

    def __init__(self) -> None:
        self._lines: deque[Line] = deque()
        self._splits: dict[int, Split] = {}
        self._base = 0  # index of the first buffered line
        self._characters = 0
        self._waiting: deque[int] = deque()
        self._late: deque[int] = deque(maxlen=_MOST_LATE)
        self._consumed: dict[str, int] = {}
        self._found: list[_Finding] = []
        self._tried = self._others = 0
        self._wsl = False
        self._facts = FactReader()
        self._moves_at: dict[int, tuple[int, int | None]] = {}

    def read(self, lines: Iterable[Line | str]) -> tuple[tuple[Incident, ...], LogFacts]:
        index, number = -1, 0
        for index, line in enumerate(lines):
            item = line if isinstance(line, Line) else Line(index + 1, line)
            number = item.number
            self._add(index, item)
        while self._waiting:
            self._try(self._waiting.popleft())
        for late in self._late:
            if late >= self._base:
                self._try(late)
        return self._result(index + 1), self._facts.facts(number)

    def _add(self, index: int, line: Line) -> None:
        text = line.text
        self._facts.feed(line.number, text)
        self._lines.append(line)
        self._characters += len(text)
        if not self._wsl and "WSL" in text and _WSL.search(text):
            self._wsl = True
        if _MEMORY_HINT.search(text) or _FAILURE_HINT.search(text):
            self._moves_at[index] = self._facts.moves, self._facts.step
            if self._tried < _MOST_TRIED and len(self._found) < _MOST_READ:
                self._waiting.append(index)
            else:
                if len(self._late) == _MOST_LATE:
                    self._moves_at.pop(self._late[0], None)
                self._late.append(index)
        while self._waiting and self._waiting[0] + _AHEAD <= index:
            self._try(self._waiting.popleft())
        while len(self._lines) > _BUFFER_LINES or self._characters > _BUFFER_CHARACTERS:
            if len(self._lines) <= _AHEAD + 1:
                break
            gone = self._lines.popleft()
            self._characters -= len(gone.text)
            self._splits.pop(self._base, None)
            self._base += 1

    def _split(self, index: int) -> Split:
        split = self._splits.get(index)
        if split is None:
            split = self._splits[index] = split_line(self._lines[index - self._base].text)
        return split

    def _try(self, index: int) -> None:
        self._tried += 1
        moves, step = self._moves_at.pop(index, (self._facts.moves, self._facts.step))
        split = self._split(index)
        if self._consumed.get(split.tag, -1) >= index:
            return
        text = self._lines[index - self._base].text
        if _MEMORY_HINT.search(text):
            flat, ends = self._message_from(index, split)
            message = read_message(flat, within=ends[0][1])
            if message is not None:
                last = next((i for i, end in ends if end >= message.end), ends[-1][0])
                told = [i for i, _ in ends if i <= last]
                for i in told:
                    self._consumed[self._split(i).tag] = i
                self._keep_memory(told, split, message, moves, step)
                return
        if self._others < _MOST_OTHERS and (_FAILURE_HINT.search(text) or "illed" in text):
            self._others += 1
            found = find_look_alike(self._few_lines(index, split))
            if found is not None:
                self._keep_look_alike(index, split, found, moves, step)

    def _message_from(self, index: int, split: Split) -> tuple[str, list[tuple[int, int]]]:
        """The text from a line on, of one process, flattened, and where each of its lines ends."""
        flat = ""
        ends: list[tuple[int, int]] = []
        for i in range(index, min(index + _AHEAD, self._end)):
            tag = self._split(i).tag
            # An author who wrapped the line left the rank on its first part only.
            if tag != split.tag and (tag or not ends or ends[-1][0] != i - 1):
                continue
            piece = flatten(self._split(i).text.strip()).strip()
            if i > index and (not piece or starts_traceback(piece) or len(flat) > 1700):
                break
            if i > index and "%|" in piece:
                continue
            flat = f"{flat} {piece[:_MESSAGE_CHARACTERS]}" if ends else piece
            ends.append((i, len(flat)))
        return flat, ends

    @property
    def _end(self) -> int:
        return self._base + len(self._lines)

    def _same(self, indices: Iterable[int], tag: str) -> Iterator[int]:
        return (i for i in indices if self._split(i).tag == tag)

    def _few_lines(self, index: int, split: Split) -> str:
        near = self._same(range(index, min(index + 4, self._end)), split.tag)
        return "\n".join(self._split(i).text for i in near)

    def _traceback(self, index: int, tag: str) -> tuple[Frame, ...]:
        """The frames of the traceback that ends at a line; after it where none stands before."""
        texts: list[str] = []
        seen, gap = False, 0
        for i in self._same(range(index - 1, max(self._base, index - _BEHIND) - 1, -1), tag):
            text = self._split(i).text
            texts.append(text)
            if starts_traceback(text):
                break
            if _FRAME_LIKE.search(text):
                seen, gap = True, 0
                continue
            gap += 1
            if gap > _GAP or (seen and _EXCEPTION.match(text) and gap > 1):
                break
        frames = frames_in(texts[::-1])
        if frames:
            return frames
        after = []
        for i in self._same(range(index + 1, min(index + _AHEAD, self._end)), tag):
            text = self._split(i).text
            if starts_traceback(text):
                break
            after.append(text)
        return frames_in(after)

    def _around(self, index: int, tag: str, before: int = 8, after: int = 6) -> str:
        near = range(max(self._base, index - before), min(index + after, self._end))
        return "\n".join(self._split(i).text[:2000] for i in self._same(near, tag))

    def _keep_memory(
        self, told: list[int], split: Split, message: Message, moves: int, step: int | None
    ) -> None:
        dialect, index = message.dialect, told[0]
        frames = () if dialect.hints_only else self._traceback(index, split.tag)
        around = self._around(index, split.tag)
        phase, where = phase_of(frames, around)
        if phase == "unknown":
            phase = _usual_phase(dialect.name)
        if dialect.lived_on and message.resource == "host":
            # The system reports a kill without a traceback: one that stands before it tells what
            # the program was busy with, not the line that asked for too much.
            frames, where = (), None
        line = self._lines[index - self._base]
        exception = _EXCEPTION.findall(line.text[:2000])
        rank = split.rank if split.rank is not None else rank_in(line.text)
        if rank is None and dialect.hints_only and (beside := _RANK_BESIDE.search(around)):
            rank = int(beside[1])
        quoted = tuple(self._lines[i - self._base].text.strip()[:_QUOTE] for i in told)
        name, resource = _really(message, frames, around, self._wsl)
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
        for i in range(told[-1] + 1, min(index + _AHEAD, self._end)):
            after = self._lines[i - self._base]
            self._facts.retried(after.number, after.text)
        number = self._lines[told[-1] - self._base].number
        self._fold(_Finding(incident, number, moves, dialect, True, _key(incident)))

    def _keep_look_alike(
        self, index: int, split: Split, found: Found, moves: int, step: int | None
    ) -> None:
        frames = self._traceback(index, split.tag)
        if not (frames or found.strong or self._end < _SHORT_LOG):
            return
        phase, where = phase_of(frames, self._around(index, split.tag))
        line = self._lines[index - self._base]
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
        self._fold(_Finding(incident, line.number, moves, None, found.strong, _key(incident)))

    def _fold(self, new: _Finding) -> None:
        """Add a finding, or fold it into the one that tells the same failure again."""
        for old in self._found:
            if old.key != new.key:
                continue
            had, has = old.incident, new.incident
            better = has if has.frames and not had.frames else had
            old.incident = replace(
                had,
                event=_filled(had.event, has.event, better.phase),
                frames=better.frames,
                phase=better.phase,
                where=better.where,
                recomputing=better.recomputing,
                lines=had.lines if len(had.lines) >= 6 else (*had.lines, *has.lines)[:6],
                exception=had.exception or has.exception,
                rank=had.rank if had.rank is not None else has.rank,
                repeats=had.repeats + 1,
            )
            old.last_number, old.moves = new.last_number, new.moves
            if old.dialect is not None and old.dialect.hints_only:
                old.dialect = new.dialect
            return
        self._found.append(new)

    def _result(self, count: int) -> tuple[Incident, ...]:
        for finding in self._found:
            finding.incident = replace(finding.incident, survived=self._survived(finding))
        memory = [f for f in self._found if f.dialect is not None]
        others = [f for f in self._found if f.dialect is None]
        told = [f for f in memory if f.dialect is not None and not f.dialect.hints_only]
        hints = [f for f in memory if f.dialect is not None and f.dialect.hints_only]
        causes = [f for f in others if not f.incident.consequence and not f.incident.survived]
        if hints and not told and causes:
            # The launcher kills what is left when one process fails.
            return tuple(f.incident for f in causes)[:3]
        if not memory:
            shown = causes or [f for f in others if not f.incident.consequence] or others
            return tuple(f.incident for f in shown[:3])
        _explain(told, hints)
        ordered = sorted(memory, key=lambda f: f.incident.consequence)
        strong = [f for f in causes if f.strong]
        return tuple(f.incident for f in (*ordered, *strong[:3]))

    def _survived(self, finding: _Finding) -> bool:
        facts, last = self._facts, finding.last_number
        if finding.dialect is not None and finding.dialect.hints_only:
            return False
        if finding.dialect is not None and not finding.dialect.lived_on:
            later = (f for f in self._found if f.dialect is not None and f.dialect.lived_on)
            if any(f.incident.line_number > last for f in later):
                return True
        return (
            facts.moves - finding.moves >= 2
            or facts.finished_line > last
            or last < facts.last_retry <= last + _AHEAD
        )


def _explain(told: list[_Finding], hints: list[_Finding]) -> None:
    """Mark what another failure of the log explains."""
    reports = [f for f in told if f.dialect is not None and f.dialect.lived_on]
    for finding in hints if told else ():
        finding.incident = replace(finding.incident, consequence=True)
    for finding in told:
        if finding.incident.event.dialect == "dataloader_worker" and reports:
            finding.incident = replace(finding.incident, consequence=True)
    # Several hints of one kill: the first tells it.
    for finding in hints[1:]:
        finding.incident = replace(finding.incident, consequence=True)
    slurm = any(f.incident.event.dialect == "slurm" for f in told)
    for finding in told:
        if slurm and finding.incident.event.dialect == "host_oom_killer":
            finding.incident = replace(finding.incident, consequence=True)


def _key(incident: Incident) -> tuple[object, ...]:
    """What two tellings of one failure have in common."""
    event = incident.event
    if event.dialect == "not_oom":
        return event.dialect, incident.look_alike, incident.exception
    if incident.resource != "gpu":
        return event.dialect, incident.resource, event.requested_bytes
    if event.requested_bytes is None and event.capacity_bytes is None:
        return event.dialect, incident.rank
    return (
        event.dialect,
        incident.rank,
        event.requested_bytes,
        event.capacity_bytes,
        event.free_bytes,
        event.allocated_bytes,
    )


def _filled(had: OomEvent, has: OomEvent, phase: ReadPhase) -> OomEvent:
    process = had.process_bytes if had.process_bytes is not None else has.process_bytes
    return replace(had, phase=phase, process_bytes=process)


def _usual_phase(dialect: str) -> ReadPhase:
    if dialect.startswith("dataloader_"):
        return "data"
    return "init" if dialect == "vllm" else "unknown"


def _really(
    message: Message, frames: tuple[Frame, ...], around: str, wsl: bool
) -> tuple[str, Resource]:
    """The dialect and the resource; the driver says "out of memory" of pinned host memory too."""
    name = message.dialect.name
    if name == "cuda_driver":
        called = " ".join(f"{f.function} {f.code or ''}" for f in frames[-3:])
        if _PINNED.search(called) or (not frames and _PINNED.search(around)):
            return ("wsl_pinned" if wsl else name), "host"
    return name, message.resource
