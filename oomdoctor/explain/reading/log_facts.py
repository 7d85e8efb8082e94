"""Reads what a log says besides its failures: settings, steps, and memory over time.

It takes one line at a time and uses bounded memory, however long the log is.
"""

from __future__ import annotations

import re
from collections import deque

from oomdoctor.explain.reading.printed_sizes import size_bytes
from oomdoctor.explain.reading.settings.logged import SettingsReader
from oomdoctor.records.diagnosis import LogFacts, MemorySample

_TQDM = re.compile(r"\d+%\|.{0,80}?\| ?(\d+)/(\d+) \[")
_QUIET_BARS = re.compile(
    r"(?:Loading|Map|Filter|Download|Fetching|Generating|Tokeniz|Casting|Saving|Saver|Extract|Packing"
    r"|Creating|Resolving|Upload|Adding|Truncat|Applying|Converting|Formatting|Converting)"
)
_STEP = re.compile(
    r"\b(?:[Gg]lobal[ _])?(?:[Ss]teps?|[Ii]ter(?:ation)?s?|[Bb]atch)\b['\"]?\s*[=:#\[(]?\s*\[?"
    r"(\d{1,9})(?:\s*(?:/|of)\s*(\d{1,9}))?"
)
_LOSS = re.compile(r"\b[Ll]oss\b|\bLOSS\b")
_MEMORY = re.compile(
    r"\b(?:max[_ ]?)?(?:gpu|cuda|vram|peak|allocated|reserved|mem(?:ory)?)[\w /()]{0,24}"
    r"['\"]?[=: ]+\s?"
    r"(\d+(?:\.\d+)?)\s?(GiB|MiB|GB|MB|G|M)\b",
    re.IGNORECASE,
)
_NVIDIA_SMI = re.compile(r"(\d+)MiB ?/ ?(\d+)MiB")
_FINISHED = re.compile(
    r"'train_runtime'|Training completed|[Tt]raining (?:is )?(?:finished|complete[d!.]|done)"
    r"|Finished training|All done|train_runtime\s*="
)
_RETRIED = re.compile(
    r"[Rr]etry(?:ing)?|[Ss]kipp(?:ing|ed) (?:the |this )?(?:batch|step|sample|iteration)"
    r"|[Dd]ecreasing batch size|[Rr]educ(?:ing|ed) (?:the )?batch|[Rr]ecover(?:ing|ed)|Resuming"
    r"|falling back|fallback|trying again|halving"
)
_STEP_WORDS = ("tep", "oss", "em", "ter", "atch")  # parts of step, loss, mem, iteration, batch
_MOST_SAMPLES = 64
_LONGEST_QUOTE = 400
_LONGEST_LINE = 20_000


class FactReader:
    """Collects the facts of one log: `feed` every line, then call `facts`."""

    def __init__(self) -> None:
        self._set_up = SettingsReader()
        self._evidence: dict[str, tuple[str, ...]] = {}
        self._first: list[MemorySample] = []
        # Parsed only at the end: in a long log, later lines push out most of these.
        self._late: deque[tuple[int | None, str]] = deque(maxlen=8 * _MOST_SAMPLES)
        self._readings: list[MemorySample] = []
        self._late_readings: deque[MemorySample] = deque(maxlen=_MOST_SAMPLES)
        self.step: int | None = None
        self.total: int | None = None
        self.moves = 0  # how many lines showed progress
        self.last_retry = 0
        self.finished = False
        self.finished_line = 0

    def feed(self, number: int, text: str) -> None:
        """Read one line."""
        if len(text) > _LONGEST_LINE:
            text = text[:_LONGEST_LINE]
        if "%|" in text:
            self._bar(text)
        if any(word in text for word in _STEP_WORDS) and "Tried to" not in text:
            self._steps(text)
        if "MiB" in text and (match := _NVIDIA_SMI.search(text)):
            used = int(match[1]) * 1024**2
            self._reading(
                MemorySample(self.step, used, "nvidia_smi", text.strip()[:_LONGEST_QUOTE])
            )
        if "rain" in text and _FINISHED.search(text):
            self.finished, self.finished_line = True, number
            self._quote("finished", text)
        self._set_up.feed(text)

    def retried(self, number: int, text: str) -> None:
        """Note whether a line near a failure says that the run tries again."""
        if _RETRIED.search(text):
            self.last_retry = number

    def facts(self, line_count: int) -> LogFacts:
        """Everything learned from the lines."""
        told = self._set_up
        late = [found for at, text in self._late if (found := _sample(at, text)) is not None]
        world = told.settings.get("world_size", told.settings.get("num_processes"))
        return LogFacts(
            settings=dict(told.settings),
            model_id=told.model,
            step_memory=(*self._first, *late[-_MOST_SAMPLES:]),
            last_step=self.step,
            total_steps=self.total,
            gpu_readings=(*self._readings, *self._late_readings),
            evidence={**told.evidence, **self._evidence},
            finished=self.finished,
            line_count=line_count,
            gpu_name=told.gpu,
            versions=dict(told.versions),
            world_size=world if isinstance(world, int) and not isinstance(world, bool) else None,
        )

    def _bar(self, text: str) -> None:
        for match in _TQDM.finditer(text):
            if _QUIET_BARS.search(text[max(0, match.start() - 120) : match.start()]):
                continue
            self._progress(int(match[1]), int(match[2]), text)

    def _steps(self, text: str) -> None:
        step: int | None = None
        match = _STEP.search(text)
        if match is not None:
            step = int(match[1])
            total = int(match[2]) if match[2] else None
            if total is not None or _LOSS.search(text):
                self._progress(step, total, text)
        elif "'loss': " in text:
            self.moves += 1
        if "iB" in text or "GB" in text or "MB" in text:
            at = step if match else self.step
            if len(self._first) >= _MOST_SAMPLES:
                self._late.append((at, text[:_LONGEST_QUOTE]))
            elif (sample := _sample(at, text)) is not None:
                self._first.append(sample)

    def _progress(self, step: int, total: int | None, text: str) -> None:
        moved = step != self.step or (total is not None and total != self.total)
        if moved:
            self.moves += 1
            self._quote("last_step", text)
        self.step = step
        if total is not None:
            self.total = total

    def _reading(self, sample: MemorySample) -> None:
        if len(self._readings) < _MOST_SAMPLES:
            self._readings.append(sample)
        else:
            self._late_readings.append(sample)

    def _quote(self, key: str, text: str) -> None:
        self._evidence[key] = (text.strip()[:_LONGEST_QUOTE],)


def _sample(step: int | None, text: str) -> MemorySample | None:
    memory = _MEMORY.search(text)
    if memory is None:
        return None
    unit = memory[2].upper()
    size = size_bytes(f"{memory[1]} {unit if len(unit) > 1 else unit + 'iB'}")
    quote = text.strip()[:_LONGEST_QUOTE]
    return None if size is None else MemorySample(step, size, "step_line", quote)
