"""Reads where one run in a text ends and another begins.

A text may hold several documents, jobs or commands, one after another. A new one shows by its
heading, the command that starts it, what a launcher prints first, another job number, or by the
opening lines of the text once more. That a run died shows by the exit code of its process.
"""

from __future__ import annotations

import re

from oomdoctor.explain.reading.lines.prefixes import split_line

_HEADING = re.compile(
    r"==> .+ <==$|#{2,6} (?!(?:Epoch|Step|Iter|Batch|Trial|Round|Fold)\b)\w"
    r"|# [A-Z][\w ,'-]{2,60}$|In ?\[\d+\]:|```|:{6,}$|[\w./-]+\.(?:log|out|err|txt):?$"
    r"|([=*#~:+-])\1{2,}[\s<\[]*(?:(?:[Ss]tart\w*|[Bb]egin\w*|[Nn]ew|[Nn]ext)(?: of)?:? )?"
    r"(?:(?:[Rr]un|[Jj]ob|[Ee]xperiment|RUN|JOB|EXPERIMENT)"
    r"(?:[ #:_-]{1,3}(?:\d|[A-Za-z]\b)|: ?\S)|[\w./-]+\.(?:log|out|err|txt|sh|py)\b)"
)
_LOGS = (".log", ".out", ".err", ".txt")
_PROGRAM = (
    r"(?:\w+=\S+\s+)*(?:\S{0,60}/)?(?:python[\d.]*|torchrun|accelerate|deepspeed|srun|sbatch|bash|sh"
    r"|uv|axolotl|make|docker|llamafactory-cli)(?=\s|$|['\",])"
)
_COMMAND = re.compile(
    r"(?:\([\w.-]+\) ?)?(?:[\w.-]+@[\w.-]+[:\s]?\S*\s?[$#%]|[$\u276f\u279c]|\+{1,3})\s+"
    rf"(?:{_PROGRAM}|(?:\w+=\S+\s+)*\./)"
    r"|(?:[Rr]un(?:ning)?|[Ee]xecut(?:e|ing)|[Cc]ommand|[Cc]md|CMD|[Ll]aunching)"
    rf"(?: command| line)?\s?[:=]?\s+['\"\[]{{0,2}}{_PROGRAM}"
)
_STARTS = re.compile(
    r"(?:[Ss]tart(?:ing|ed)|[Ll]aunch(?:ing|ed)|[Bb]eginning) (?:a |the )?(?:new |next )?"
    r"(?:[Jj]ob|[Rr]un|[Ee]xperiment)\b(?! (?:of|on) (?:the )?(?:training|steps?|epochs?)\b)"
    r"|\b(?:[Jj]ob|[Rr]un|[Ee]xperiment) \S{1,40} (?:started|starting|begins)\b"
    r"|Setting OMP_NUM_THREADS environment variable for each process"
    r"|values were not passed to `accelerate launch`|\[runner\.py:\d+:\w+\] cmd ="
    r"|wandb: (?:Tracking run with wandb|Agent Starting Run)|Script started on "
    r"|nohup: ignoring input|^trainable params: \d"
)
# What a program prints as it starts, and some programs once more when they try again.
_SET_UP = re.compile(
    r"Some weights of \w+ were not|loading configuration file|Loading checkpoint shards: +0%"
    r"|\*{5} Running training|^\W*(?:Mon|Tue|Wed|Thu|Fri|Sat|Sun),? \w+ +\w+ .*\d\d:\d\d:\d\d"
    r"|^\W{3,}\d{4}-\d\d-\d\d|\| 0/\d+ \[|\b[Ss]tep:? ?[01]\b|\b[Ee]poch:? ?\[?[01]/"
)
_JOB = re.compile(
    r"(?:\bSlurm Job_id=|\bSLURM_JOB_?ID\W{1,3}|\b[Jj]ob[ _]?[Ii][Dd]\W{1,3}|\bStepId="
    r"|Submitted batch job |\*\*\* (?:JOB|STEP) )(\d+(?:_\d+)?)"
)
_DIED = re.compile(
    r"[Ee]xit(?:ed)?(?: with)?(?: exit)?[ _-]?(?:code|status)\W{1,5}[1-9]\d{0,2}\b"
    r"|[Rr]eturn ?code\W{1,3}-?[1-9]|[Nn]on-?zero (?:exit )?(?:status|code)"
    r"|ChildFailedError|\bFAILED, ExitCode|\*\*\* (?:JOB|STEP) \S+ .{0,80}CANCELLED"
    r"|make(?:\[\d+\])?: \*\*\* |wandb: (?:ERROR )?Run \S+ (?:errored|crashed)"
)
_RESTARTED = re.compile(r"restart(?:ing)? (?:the )?worker group")
# How lines begin that come more than once in one run.
_OFTEN = re.compile(
    r"\W*(?:Traceback|\*{5}|[\w.]*Error\b)|.*(?:[Ww]arning|\d+%\||\b[Ll]oss\b|[Mm]emory|OOM)"
)
_SHORTEST = 6  # characters of an opening line that tells something


def may_start(text: str) -> bool:
    """Whether a line is a heading, or a command or launcher that starts a run."""
    if text.startswith(("#", "=", "$", "(", "I", "`", ":", "*", "~", "+", "-", "\u276f", "\u279c")):
        if _HEADING.match(text) is not None or _COMMAND.match(text) is not None:
            return True
    elif text.rstrip(":").endswith(_LOGS):
        if _HEADING.match(text) is not None:
            return True
    elif ("@" in text[:40] or text[:1] in "RrEeCcL") and _COMMAND.match(text) is not None:
        return True
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
    return told and _STARTS.search(text) is not None


def sets_up(text: str) -> bool:
    """Whether a program that starts prints such a line; one that goes on may print it, too."""
    return _SET_UP.search(text) is not None


def died(text: str) -> bool:
    """Whether a line says that a process ended with an error, by its exit code."""
    code = "xit" in text or "eturn" in text or "zero" in text
    told = code or "ChildF" in text or "*** " in text or "wandb: " in text
    return told and _DIED.search(text) is not None


def restarted(text: str) -> bool:
    """Whether a launcher says that it starts the processes of the same run again."""
    return "restart" in text and _RESTARTED.search(text) is not None


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
        match = _JOB.search(text)
        if match is None:
            return False
        before, self._job = self._job, match[1]
        return before not in ("", match[1])

    def _opens_again(self, text: str, settled: bool) -> bool:
        """Whether a line and the one before it open the text, once more."""
        opening = self._opening
        if len(opening) < 2:
            if told := split_line(text).text.strip():
                usual = len(told) < _SHORTEST or _OFTEN.match(told) or told in opening
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
