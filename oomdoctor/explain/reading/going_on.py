"""Reads whether a run went on after a failure: its end, a saved model, progress, words of a retry.

A text may hold several documents or commands, one after another. What shows that a run went on must
stand in the same one as the failure.
"""

from __future__ import annotations

import re
import sys
from collections import deque
from typing import NamedTuple

_FINISHED = re.compile(
    r"'train_runtime'|Training completed|[Tt]raining (?:is )?(?:finished|complete[d!.]|done)"
    r"|Finished training|All done|train_runtime\s*=|[Ee]xited with code 0\b|[Ee]xit code:? 0\b"
    r"|[Ee]xit status:? 0\b|\bCOMPLETED, ExitCode 0"
    r"|(?:[Rr]un|[Jj]ob|[Ss]cript|[Pp]rogram) (?:finished|completed)(?: successfully)?\W*$"
    r"|[Ff]inished successfully|[Ss]uccessfully (?:finished|completed)|Prompt executed in"
    r"|\bTrial \S+ (?:finished with value|completed)|训练(?:已)?(?:完成|结束)"
)
_SAVED = re.compile(  # at the start of a line, or after what a logger puts there
    r"^(?:.{0,80}[\]:|>-] *)?\W{0,4}(?:(?:\w+ )?(?:[Mm]odel|[Aa]dapter|[Ww]eights|[Cc]heckpoint)s? "
    r"(?:\w+ )?saved\b|Sav(?:ed|ing) (?:the )?(?:final |best |merged |fine-?tuned |LoRA )?"
    r"(?:model|adapter|weights|checkpoint)s?\b)"
)
_NOT_SAID = re.compile(r"^\s*(?:#{1,6} |\d* ?(?:print|echo|log\w*\.\w+)[ (])")
_NOT_SAVED = re.compile(r"emergency|crash|exception|interrupt|before exit|fail|error|on_exc", re.I)
_RETRIED = re.compile(
    r"[Rr]etrying\b|\b[Rr]etry (?:with|attempt|#?\d)|[Ww]ill (?:be )?retr(?:y|ied)|[Ss]kip(?:s|ped"
    r"|ping)? (?:the |this |that |over )?(?:\w+ )?"
    r"(?:batch|step|sample|iteration|example)|[Ss]kipping\W*$|[Dd]ecreasing batch size"
    r"|[Rr]educ(?:ing|ed) (?:the )?(?:micro[- ]?)?batch|[Rr]ecover(?:ing|ed)|to recover\b|Resuming"
    r"|falling back|fallback|[Tt]rying again|[Tt]rying (?:with |a smaller |batch[ _]size)|halving"
    r"|failed, trying|[Cc]ontinuing (?:with|without|training|to)|moving on|Trial \d+ pruned"
    r"|跳过|重试"
)
_NO_RETRY = re.compile(r"onnection|[Nn]etwork|https?:|wandb:|[Dd]ownload|urllib")
MEMORY = re.compile(r"\bOOM\b|out of memory|ran out of|memory error", re.IGNORECASE)
# People who write about a run use these words; a program that reports its end does not.
_TOLD_BEFORE = re.compile(
    r"\b(?:I|[Ww]e|[Mm]y|[Oo]ur|[Yy]ou|[Aa]fter|[Oo]nce|[Ii]f|[Ww]hen|[Uu]ntil|[Bb]efore|[Ss]hould"
    r"|[Ww]ould|[Ww]ill|[Nn]ever|[Nn]ot|then|finally|eventually)\b|n't\b"
)
_TOLD_AFTER = re.compile(r"\b(?:I|we|my|our|you|but|when|if|because|though)\b")
_CONTAINER = re.compile(r"^([\w.-]+) exited with code 0\b")
# Where another document or another command begins.
_HEADING = re.compile(
    r"==> .+ <==$|#{2,6} (?!(?:Epoch|Step|Iter|Batch|Trial|Round|Fold)\b)\w"
    r"|# [A-Z][\w ,'-]{2,60}$|In ?\[\d+\]:"
)
_PROMPT = re.compile(
    r"(?:\([\w.-]+\) ?)?(?:[\w.-]+@[\w.-]+[:\s]?\S*\s?[$#%]|[$\u276f\u279c])\s+(?:\w+=\S+\s+)*"
    r"(?:python\d?|torchrun|accelerate|deepspeed|srun|sbatch|bash|sh|uv|axolotl|make|docker"
    r"|llamafactory-cli|\./)"
)
_STARTS = ("#", "=", "$", "(", "I", "\u276f", "\u279c")  # of such lines, beside user@host
_MOST = 64
LONGEST_QUOTE = 400


class _Part(NamedTuple):
    """Where one document ends, and how far its run came."""

    end: int
    moves: int
    moved: str


class GoingOn:
    """Collects the signs that a run goes on: `feed` every line, then ask `after`."""

    def __init__(self) -> None:
        self.moves = 0  # how many lines showed progress
        self._moved = ""
        self._moves_at_end = 0
        self._ends: deque[tuple[int, str]] = deque(maxlen=_MOST)
        self._saved: deque[tuple[int, str]] = deque(maxlen=_MOST)
        self._retries: deque[tuple[int, str]] = deque(maxlen=_MOST)
        self._parts: deque[_Part] = deque(maxlen=_MOST)

    def feed(self, number: int, text: str) -> None:
        """Read one line."""
        if _begins_another(text):
            self._parts.append(_Part(number, self.moves, self._moved))
        if _may_finish(text) and _finishes(text):
            self._ends.append((number, text.strip()[:LONGEST_QUOTE]))
            self._moves_at_end = self.moves
        elif ("sav" in text or "Sav" in text) and _saves(text):
            self._saved.append((number, text.strip()[:LONGEST_QUOTE]))

    def moved(self, text: str) -> None:
        """Note a line that shows progress."""
        self.moves += 1
        self._moved = text.strip()[:LONGEST_QUOTE]

    def retried(self, number: int, text: str) -> None:
        """Note whether a line near a failure says that the run tries again or skips something."""
        if _said(_RETRIED, text) and not _NO_RETRY.search(text):
            self._retries.append((number, text.strip()[:LONGEST_QUOTE]))

    @property
    def finished_line(self) -> int:
        """The last line that says that the run finished; 0 if none does."""
        return self._ends[-1][0] if self._ends else 0

    @property
    def over(self) -> bool:
        """Whether the log has said that the run finished, without progress since then."""
        return self.finished_line > 0 and self.moves == self._moves_at_end

    @property
    def evidence(self) -> dict[str, tuple[str, ...]]:
        """The line that says that the run finished, if there is one."""
        return {"finished": (self._ends[-1][1],)} if self._ends else {}

    def after(
        self, moves: int, last: int, near: int, lines: tuple[str, ...], until: int | None
    ) -> str | None:
        """The line that shows that the run continued after a failure; None if none does.

        `moves` counts the signs of progress before the failure, `last` is its last line, and
        `lines` report it. A retry is said at most `near` lines after it. From the line `until` on,
        another failure is reported, so a later end need not be this run's.
        """
        now = _Part(sys.maxsize, self.moves, self._moved)
        part = next((part for part in self._parts if part.end > last), now)
        stop = part.end if until is None else min(part.end, until)
        for number, text in self._ends:
            if last < number < stop and _same_container(text, lines):
                return text
        retries = (text for number, text in self._retries if last <= number <= last + near)
        if (retry := next(retries, None)) is not None:
            return retry
        if part.moves - moves >= 2:
            return part.moved
        return next((text for number, text in self._saved if last < number < stop), None)


def _begins_another(text: str) -> bool:
    if not text.startswith(_STARTS) and "@" not in text[:40]:
        return False
    return _HEADING.match(text) is not None or _PROMPT.match(text) is not None


def _finishes(text: str) -> bool:
    """Whether a program says in a line that it has finished; not a person who writes about it."""
    match = None if _NOT_SAID.search(text) else _FINISHED.search(text)
    if match is None:
        return False
    return not (_TOLD_BEFORE.search(text[: match.start()]) or _TOLD_AFTER.search(text, match.end()))


def _saves(text: str) -> bool:
    return _said(_SAVED, text) and _NOT_SAVED.search(text) is None


def _same_container(finished: str, lines: tuple[str, ...]) -> bool:
    """Whether the container that ended, if the line names one, is the one that failed."""
    ended = _CONTAINER.match(finished)
    return ended is None or any(line.startswith(ended[1]) for line in lines)


def _may_finish(text: str) -> bool:
    """Whether a word of `_FINISHED` is in a line; this is faster than the pattern."""
    return (
        "rain" in text
        or "xit" in text
        or "inished" in text
        or "ompleted" in text
        or "COMPLETED" in text
        or "Prompt exec" in text
        or "All done" in text
        or (not text.isascii() and "训练" in text)
    )


def _said(pattern: re.Pattern[str], text: str) -> bool:
    """Whether a line says something itself: no heading, no source line that prints it."""
    return not _NOT_SAID.search(text) and pattern.search(text) is not None
