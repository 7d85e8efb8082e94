"""Reads where one run in a text ends and another begins.

A text may hold several documents, jobs or commands, one after another. A new one shows by its
heading, the command that starts it, what a launcher prints first, another job number, or by the
opening lines of the text once more. That a run died shows by the exit code of its process.
"""

from __future__ import annotations

from oomdoctor.explain.reading.lines.prefixes import split_line
from oomdoctor.explain.reading.patterns import patterns

_RE = patterns("runs_apart")
_LOGS = (".log", ".out", ".err", ".txt")
_SHORTEST = 6  # characters of an opening line that tells something


def may_start(text: str) -> bool:
    """Whether a line is a heading, or a command or launcher that starts a run."""
    if text.startswith(("#", "=", "$", "(", "I", "`", ":", "*", "~", "+", "-", "\u276f", "\u279c")):
        if _RE["heading"].match(text) is not None or _RE["command"].match(text) is not None:
            return True
    elif text.rstrip(":").endswith(_LOGS):
        if _RE["heading"].match(text) is not None:
            return True
    elif ("@" in text[:40] or text[:1] in "RrEeCcL") and _RE["command"].match(text) is not None:
        return True
    # Parts of words that a line has on which the pattern matches; a loop would be slower.
    told = (
        ("art" in text or "aunch" in text or "eginning" in text or "begins" in text)
        and ("ob" in text or "un" in text or "xperiment" in text or "Script" in text)
    ) or (
        "OMP_NUM" in text
        or "not passed" in text
        or "cmd =" in text
        or "nohup:" in text
        or "trainable params" in text
        or "wandb: T" in text
    )
    return told and _RE["starts"].search(text) is not None


def sets_up(text: str) -> bool:
    """Whether a program that starts prints such a line; one that goes on may print it, too."""
    return _RE["set_up"].search(text) is not None


def died(text: str) -> bool:
    """Whether a line says that a process ended with an error, by its exit code."""
    code = "xit" in text or "eturn" in text or "zero" in text
    told = code or "ChildF" in text or "*** " in text or "wandb: " in text
    return told and _RE["died"].search(text) is not None


def restarted(text: str) -> bool:
    """Whether a launcher says that it starts the processes of the same run again."""
    return "restart" in text and _RE["restarted"].search(text) is not None


class Starts:
    """Reads line by line whether another run begins."""

    def __init__(self) -> None:
        self._job = ""
        self._opening: list[str] = []  # the first two lines of the text
        self._seen = ""  # the first of them was the line before

    def begins(self, text: str, *, settled: bool, finishes: bool) -> bool:
        """Whether another run begins at a line.

        `settled` means that no failure is known that the run may have ended with. What comes again
        within a run cannot show that another one begins. A line that `finishes` a run is its last,
        unless it names another job.
        """
        again = self._opens_again(text, settled)
        return self._another_job(text) or (not finishes and (again or may_start(text)))

    def _another_job(self, text: str) -> bool:
        named = ("ob" in text or "OB" in text) and ("id" in text or "I" in text)
        if not (named or "StepId" in text or "*** " in text or "Submitted" in text):
            return False
        match = _RE["job"].search(text)
        if match is None:
            return False
        before, self._job = self._job, match[1]
        return before not in ("", match[1])

    def _opens_again(self, text: str, settled: bool) -> bool:
        """Whether a line and the one before it open the text, once more."""
        opening = self._opening
        if len(opening) < 2:
            if told := split_line(text).text.strip():
                usual = len(told) < _SHORTEST or _RE["often"].match(told) or told in opening
                opening.append("" if usual else told)
            return False
        if not (opening[0] and opening[1]) or not text or text.isspace():
            return False
        second, self._seen = bool(self._seen) and opening[1] in text, ""
        if not second:
            self._seen = opening[0] if opening[0] in text else ""
            return False
        if settled:
            self._opening = ["", ""]
            return False
        return True
