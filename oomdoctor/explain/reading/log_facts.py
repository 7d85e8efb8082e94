"""Reads what a log says besides its failures: settings, steps, and memory over time.

It takes one line at a time and uses bounded memory, however long the log is.
"""

from __future__ import annotations

from collections import deque

from oomdoctor.explain.reading.failures.going_on import LONGEST_QUOTE, GoingOn, Report
from oomdoctor.explain.reading.logged_settings import SettingsReader
from oomdoctor.explain.reading.patterns import patterns
from oomdoctor.explain.reading.printed_sizes import size_bytes
from oomdoctor.explain.reading.programs import MentionReader
from oomdoctor.records.report.diagnosis import LogFacts, MemorySample

_RE = patterns("log_facts")
_STEP_WORDS = ("tep", "oss", "em", "ter", "atch")  # parts of step, loss, mem, iteration, batch
_MOST_SAMPLES = 64
_LONGEST_LINE = 20_000


class FactReader:
    """Collects the facts of one log: `feed` every line, then call `facts`."""

    def __init__(self) -> None:
        self._set_up = SettingsReader()
        self._named = MentionReader()
        self._evidence: dict[str, tuple[str, ...]] = {}
        self._first: list[MemorySample] = []
        # Parsed only at the end: in a long log, later lines push out most of these.
        self._late: deque[tuple[int | None, str]] = deque(maxlen=8 * _MOST_SAMPLES)
        self._readings: list[MemorySample] = []
        self.step: int | None = None
        self.total: int | None = None
        self._epoch = ""
        self.going_on = GoingOn()
        self.failed_rank: int | None = None  # that torchrun names as the first that failed
        self._root_cause = False
        self._spawned: deque[tuple[int, int]] = deque(maxlen=_MOST_SAMPLES)

    def feed(self, number: int, text: str) -> None:
        """Read one line."""
        if len(text) > _LONGEST_LINE:
            text = text[:_LONGEST_LINE]
        if "%|" in text:
            self._bar(text)
        if any(word in text for word in _STEP_WORDS) and "Tried to" not in text:
            self._steps(text)
        if "poch" in text and (match := _RE["epoch"].search(text)) and match[1] != self._epoch:
            self._epoch = match[1]
            self.going_on.moved(text)
        if "MiB" in text and (match := _RE["nvidia_smi"].search(text)):
            used = int(match[1]) * 1024**2
            quote = text.strip()[:LONGEST_QUOTE]
            self._readings.append(MemorySample(self.step, used, "nvidia_smi", quote))
            del self._readings[_MOST_SAMPLES:-_MOST_SAMPLES]  # the first and the last ones stay
        self.going_on.feed(number, text)
        if "Process " in text and (match := _RE["spawned"].search(text)):
            self._spawned.append((number, int(match[1])))
        if "Root Cause" in text:
            self._root_cause = self.failed_rank is None
        elif self._root_cause and (match := _RE["rank"].search(text)):
            self.failed_rank, self._root_cause = int(match[1]), False
        self._set_up.feed(text)
        self._named.feed(text)

    def spawned_before(self, number: int) -> int | None:
        """The process of `torch.multiprocessing.spawn` whose failure is reported from a line on."""
        return next((rank for at, rank in reversed(self._spawned) if at < number), None)

    def report(self, number: int, text: str) -> Report:
        """How far the log has come at a line that may report a failure."""
        return self.going_on.report(number, text)._replace(step=self.step)

    def facts(self, line_count: int) -> LogFacts:
        """Everything learned from the lines."""
        told = self._set_up
        late = [sample for at, text in self._late if (sample := _sample(at, text)) is not None]
        world = told.settings.get("world_size", told.settings.get("num_processes"))
        return LogFacts(
            settings=dict(told.settings),
            model_id=told.model,
            step_memory=(*self._first, *late[-_MOST_SAMPLES:]),
            last_step=self.step,
            total_steps=self.total,
            gpu_readings=tuple(self._readings),
            evidence={**told.evidence, **self._evidence, **self.going_on.evidence},
            finished=self.going_on.finished_line > 0,
            finished_line=self.going_on.finished_line or None,
            line_count=line_count,
            gpu_name=told.gpu,
            versions=dict(told.versions),
            mentions=dict(self._named.mentions),
            world_size=world if isinstance(world, int) and not isinstance(world, bool) else None,
        )

    def _bar(self, text: str) -> None:
        for match in _RE["tqdm"].finditer(text):
            if _RE["quiet_bars"].search(text[max(0, match.start() - 120) : match.start()]):
                continue
            self._progress(int(match[1]), int(match[2]), text)

    def _steps(self, text: str) -> None:
        at = self.step
        if (match := _RE["step"].search(text)) is not None:
            at = int(match[1])
            total = int(match[2]) if match[2] else None
            if total is not None or _RE["loss"].search(text):
                self._progress(at, total, text)
        elif "'loss': " in text:
            self.going_on.moved(text)
        if "iB" in text or "GB" in text or "MB" in text:
            if len(self._first) >= _MOST_SAMPLES:
                self._late.append((at, text[:LONGEST_QUOTE]))
            elif (sample := _sample(at, text)) is not None:
                self._first.append(sample)

    def _progress(self, step: int, total: int | None, text: str) -> None:
        moved = step != self.step or (total is not None and total != self.total)
        if moved:
            self.going_on.moved(text)
            self._evidence["last_step"] = (text.strip()[:LONGEST_QUOTE],)
        self.step = step
        if total is not None:
            self.total = total


def _sample(step: int | None, text: str) -> MemorySample | None:
    memory = _RE["memory"].search(text)
    if memory is None:
        return None
    unit = memory[2].upper()
    size = size_bytes(f"{memory[1]} {unit if len(unit) > 1 else unit + 'iB'}")
    quote = text.strip()[:LONGEST_QUOTE]
    return None if size is None else MemorySample(step, size, "step_line", quote)
