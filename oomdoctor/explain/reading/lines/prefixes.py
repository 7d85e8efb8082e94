"""Splits off what precedes the text of a line: timestamps, log levels, ranks, hosts, comment signs.

A line becomes a tag (which process wrote it), a rank if one is named, and the text with its own
indentation. The lines with the same tag, in order, are the output of one process.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import NamedTuple

_LEVEL = r"(?:ERROR|INFO|WARNING|WARN|DEBUG|CRITICAL|FATAL|error|info|warning|debug|critical)"
_CLOCK = r"\d\d:\d\d:\d\d(?:[.,]\d+)?"
# Names of processes of one job. torchrun --role and services of compose may have any of them.
_WORKERS = (
    r"(?:rank|worker|train(?:er|ing)?|node|learner|actor|replica|gpu|proc(?:ess)?|launcher|ddp|fsdp"
    r"|pytorch|torch(?:run)?|finetune|sft|dpo|grpo|job|pod|task)"
)
# One alternative per line; each group is either a rank or a tag.
_RANKS = re.compile(
    r"\[(?:rank|Rank ?|default|RANK ?)?(\d{1,5})\]: ?"  # torch, torchrun --tee, bare
    rf"|\[(?:\w+[_-])?{_WORKERS}[_-]?(\d{{1,5}})\]: ?"  # torchrun --role NAME
    r"|\[(?:[\w.-]+@)?\d+,(\d{1,5})\]<std(?:out|err)>: ?"  # mpirun --tag-output
    r"|\[(?:rank|Rank|RANK)[ :=]?(\d{1,5})\] ?"
    r"|(?:rank|Rank|RANK)[ _]?(\d{1,5}) ?: ?"
    r"|\((?:[\w.:#-]+ )?rank=(\d{1,5})[^)]{0,80}\) ?"  # vLLM workers
    r"|\((?:Vllm)?Worker[_ ](?:DP\d+_)?(?:PP\d+_)?TP(\d{1,5})\b[^)]{0,80}\) ?"
    r"|\[\d{4}-\d\d-\d\d \d\d:\d\d:\d\d (?:DP\d+ )?TP(\d{1,5})(?: [A-Z]{2}\d+)*\] ?"  # SGLang
    r"|\s{0,3}(\d{1,4}): (?=\s*(?:Traceback|File \"|\S+Error|\[|\d{4}-|\s{2,}\S))"  # srun --label
)
_TAGS = re.compile(
    r"(\([\w.:#-]+ pid=\d+[^)]{0,80}\)) ?"  # Ray, vLLM
    r"|([\w.-]{1,60}[_-]\d+) +\|(?: |$)"  # docker compose
    r"|\[(pod/[\w.-]{1,120}/[\w.-]{1,80})\] ?"  # kubectl logs --prefix
)
# The number of a process in a tag: the number of its service, else that of its replica.
_NUMBERED = re.compile(
    rf"(?:^|[/_-]){_WORKERS}[_-]?(\d{{1,5}})(?:[_-](\d+))?(?=$|/|-[a-z0-9]{{5}}(?:/|$))"
)
_NOISE = re.compile(
    rf"\[?\s*\d{{4}}-\d\d-\d\d[T ]{_CLOCK}(?:Z|[+-]\d\d:?\d\d)?\s*\]?[ :,]*(?:- )?"
    rf"|[A-Z][a-z]{{2}} [ \d]\d {_CLOCK} \S{{1,80}} [\w./()-]{{1,60}}(?:\[\d+\])?: ?"  # syslog
    r"|\[\s*\d{1,8}\.\d{4,9}\] ?"  # dmesg
    rf"|[EWIFC]\d{{4}} {_CLOCK} +\d+ \S{{1,120}}:\d+\] ?"  # glog, torchelastic
    rf"|{_LEVEL} \d\d-\d\d {_CLOCK} \[?[\w./]{{1,80}}:\d+\] ?"  # vLLM
    rf"|\[?{_CLOCK}\]? (?=\S)"
    rf"|\[{_LEVEL}(?:\|[^\]]{{0,80}})?\][ :]*(?:{_CLOCK}|\d{{4}}-\d\d-\d\d {_CLOCK})?(?: ?>> )?"
    rf"|{_LEVEL}(?: ?[:|] ?| - )"
    rf"|[\w.-]{{1,60}} - {_LEVEL} - (?:[\w.-]{{1,60}} - )?"
    rf"|wandb: (?:{_LEVEL} ?)?"
    r"|(?:#|//|>|\|) ?"  # comments, quotations, exception groups
    r"|- (?=\S)"
)
# Names of hosts, jobs and logs as pdsh, srun --label, parallel --tag and grep print them.
_NAMED = re.compile(
    r"([\w./-]{1,120}\.(?:log|out|err|txt))[:-](?:\d+[:-])?"
    r"|\[?(?!(?i:step|epoch|iter|batch|sample|trial|fold|round|stage|phase|layer|line|try))"
    r"([A-Za-z0-9_.@/-]{0,40}\d[\w.-]{0,40}"
    r"|(?i:run|job|seed|exp|experiment|host|node|worker|proc|process|gpu|task|replica)"
    r"(?:[_#:=-][\w.-]{1,40}| \d{1,8}))\]?(?: ?\||:|(?<=\])) "
)
_MOST_PREFIXES = 6


class Split(NamedTuple):
    """One line without its prefixes. `tag` is "" if no process is named."""

    tag: str
    rank: int | None
    text: str


def split_line(line: str) -> Split:
    """The tag, the rank and the text of a line, with its indentation."""
    tag, rank, start = "", None, 0
    for _ in range(_MOST_PREFIXES):
        while start < len(line) and start < 64 and line[start] == " " and not tag:
            if line.startswith(("File ", "Traceback"), start + 2) or start >= 16:
                break
            start += 1
        match = _RANKS.match(line, start)
        if match is not None:
            rank = int(next(group for group in match.groups() if group is not None))
            tag = f"rank{rank}"
        else:
            match = _TAGS.match(line, start)
            if match is not None:
                tag = next(group for group in match.groups() if group is not None)
            else:
                match = _NOISE.match(line, start)
        if match is None or match.end() == match.start():
            break
        start = match.end()
    return Split(tag, rank, line[start:])


def process_of(line: str) -> str:
    """The process, host or job that a line names as the one that wrote it; "" if none."""
    split = split_line(line)
    if split.tag:
        return split.tag
    named = _NAMED.match(split.text.lstrip())
    return next(filter(None, named.groups())) if named else ""


def number_in(tag: str, others: Iterable[str] = ()) -> int | None:
    """The number of the process that a tag names, as in `worker-3` or `pod/trainer-3/main`.

    `others` are the other tags of the log. Without another of the same name, `trainer-1` has no
    number: compose calls the only container of a service so.
    """
    match = _NUMBERED.search(tag)
    if match is None:
        return None
    number, stem = int(match[1]), tag[: match.start(1)]
    if number != 1 or match[2] is not None or tag.startswith("pod/"):
        return number
    alike = (other for other in others if other.startswith(stem) and _NUMBERED.search(other))
    return number if any(other != tag for other in alike) else None


def rank_in(text: str) -> int | None:
    """A rank somewhere within a line, as in `model X: [rank5]: OutOfMemoryError`."""
    match = re.search(r"\[(?:rank|Rank )(\d{1,5})\]|\brank ?[:=] ?(\d{1,5})\b", text)
    return None if match is None else int(match[1] or match[2])
