"""Many jobs at once, for `triage`: one question to sacct, however many jobs there are."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from oomdoctor.errors import machine_error, usage_error
from oomdoctor.system.slurm.accounts import accounts, deciding
from oomdoctor.system.slurm.outputs import Folders, Submission, output_files
from oomdoctor.system.slurm.records import (
    FIELDS,
    OUTPUT_FIELDS,
    JobRecord,
    SlurmAnswer,
    ask_sacct,
    from_sacct,
)
from oomdoctor.units import day_or_age

# SubmitLine is last: it may hold bars and line breaks. It exists since Slurm 20.11.
_MORE = ("JobIDRaw", "Partition", "End", "JobName")
_LINE = "SubmitLine"
_DEADLINE_S = 120.0
_DEAD = (
    *("BOOT_FAIL", "CANCELLED", "DEADLINE", "FAILED", "NODE_FAIL", "OUT_OF_MEMORY"),
    *("PREEMPTED", "TIMEOUT"),
)
_ROW = re.compile(r"\d+(?:_(?:\d+|\[[^|]*\])|\+\d+)?(?:\.\w+)?\|")
_AT_ONCE = 4000  # ids in one question: a command line is limited


@dataclass(frozen=True, slots=True)
class SiteJob:
    """A job that ended, by its last run. `lines` is Slurm's record as lines of a log."""

    head: JobRecord
    lines: tuple[str, ...]
    name: str | None
    partition: str | None
    ended_at: str | None
    files: tuple[Path, ...]


def start_of(text: str, now: datetime) -> str:
    """A time for sacct: `yesterday`, `today`, `3d`, `12h`, `2 days ago`, or what sacct takes.

    Days start at midnight, local time.
    """
    start = day_or_age(text, now)
    return text if start is None else start.isoformat(timespec="seconds")


def dead_jobs(since: str, users: Sequence[str], *, everyone: bool) -> list[SiteJob]:
    """The jobs that ended badly since then: your own, those of `users`, or all.

    Raises:
        OomDoctorError: sacct does not understand the time (exit 2), or does not answer (exit 5).
    """
    whose = ["--allusers"] if everyone else [f"--user={','.join(users)}"] if users else []
    span = ("--starttime", since, "--endtime", "now", "--state", ",".join(_DEAD))
    return _jobs(_asked((*whose, *span), since))


def jobs_with(ids: Iterable[str]) -> list[SiteJob]:
    """What Slurm knows about these jobs; none if there is no Slurm or it does not answer."""
    wanted = sorted(set(ids))
    site_jobs: list[SiteJob] = []
    for first in range(0, len(wanted), _AT_ONCE):
        answer = _sacct(("--jobs", ",".join(wanted[first : first + _AT_ONCE])))
        if answer.fault is None:
            site_jobs += _jobs(answer.text)
    return site_jobs


def _asked(arguments: tuple[str, ...], since: str) -> str:
    answer = _sacct(arguments)
    if answer.fault is None:
        return answer.text
    if "time specification" in answer.fault or "Invalid time" in answer.fault:
        raise usage_error(
            "bad_time",
            f"--since: sacct does not understand {since!r}",
            "oomdoctor triage --since yesterday; or 3d, 12h, 2026-11-23",
        )
    hint = "name the logs: oomdoctor triage logs/*.out"
    if answer.absent:
        hint = f"run it on a login node, or {hint}"
        raise machine_error("no_slurm", "cannot list jobs: sacct is not installed", hint)
    raise machine_error("slurm_silent", f"cannot list jobs: {answer.fault}", hint)


def _sacct(arguments: tuple[str, ...]) -> SlurmAnswer:
    """sacct's rows below a line with the further fields that this version knows."""
    further = ((*OUTPUT_FIELDS, *_MORE, _LINE), (*_MORE, _LINE), _MORE)
    answer, fields = ask_sacct(further, *arguments, deadline_s=_DEADLINE_S)
    return answer if answer.fault else SlurmAnswer(",".join(fields) + "\n" + answer.text)


def _jobs(text: str) -> list[SiteJob]:
    head, _, rows = text.partition("\n")
    fields = head.split(",")
    folders = Folders()
    together: dict[str, list[tuple[JobRecord, dict[str, str]]]] = {}
    for row in _rows(rows):
        cells = row.split("|", len(FIELDS) + len(fields) - 1)
        for record in from_sacct("|".join(cells[: len(FIELDS)])):
            more = dict(zip(fields, cells[len(FIELDS) :], strict=False))
            together.setdefault(record.job, []).append((record, more))
    return [_job(told, folders) for told in together.values()]


def _rows(text: str) -> list[str]:
    """The rows: a line that does not start with an id continues the one before."""
    rows: list[str] = []
    for line in text.splitlines():
        if _ROW.match(line) or not rows:
            rows.append(line)
        else:
            rows[-1] += " " + line
    return rows


def _job(told: list[tuple[JobRecord, dict[str, str]]], folders: Folders) -> SiteJob:
    chosen = deciding(accounts([record for record, _ in told]))
    head = chosen.head
    more = [cells for record, cells in told if not record.is_step][-1:] or [told[0][1]]
    cells = more[0]
    submission = Submission(
        id=head.job,
        raw_id=cells.get("JobIDRaw", head.job),
        name=cells.get("JobName", ""),
        user=head.user or "",
        node=re.split(r"[,\[]", head.nodes or "")[0],
        work_dir=Path(head.work_dir or "."),
        line=cells.get(_LINE, ""),
        told=tuple(cells[name] for name in OUTPUT_FIELDS if cells.get(name)),
    )
    return SiteJob(
        head,
        chosen.lines(),
        cells.get("JobName") or None,
        cells.get("Partition") or None,
        cells.get("End") or None,
        output_files(submission, folders),
    )
