"""Finds the output of a Slurm job, and what Slurm says about its end, by the job's id.

`scontrol` knows a job while it runs and for a few minutes after, including the paths of its output.
`sacct` remembers how it ended, if accounting is on. If neither names a file, the usual names are
tried. Nothing is changed, no shell is used, and only regular files are read.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from oomdoctor.errors import OomDoctorError, machine_error, usage_error
from oomdoctor.system.regular_files import is_denied, is_there
from oomdoctor.system.slurm.accounts import JobEnd, accounts, deciding, earlier, end_of, summary
from oomdoctor.system.slurm.outputs import Folders, usual_files
from oomdoctor.system.slurm.records import (
    OUTPUT_FIELDS,
    JobRecord,
    SlurmAnswer,
    ask,
    ask_sacct,
    from_sacct,
    from_scontrol,
)

_JOB = re.compile(
    r"(?P<job>\d{1,10}(?:_\d{1,7}|\+\d{1,4})?)(?P<step>\.(?:\d{1,7}|batch|extern|interactive))?",
    re.ASCII,
)


@dataclass(frozen=True, slots=True)
class LogSource:
    """A log under the name that the answer gives it: a file, or a job or array task of Slurm.

    `files` are read one after the other; those of a job are readable regular files. `lines` is
    Slurm's record as lines of a log. `notes` is the same for the user, plus what could not be read.
    `end` is what to say if none of them shows a failure.
    """

    name: str
    files: tuple[Path, ...]
    lines: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    end: JobEnd | None = None


def is_job_id(text: str) -> bool:
    """Whether a text looks like a job, an array task or a step: 123456, 123456_7, 123456.0."""
    return _JOB.fullmatch(text) is not None


def find_jobs(text: str) -> list[LogSource]:
    """The job with this id, or each started task of an array. Never empty.

    Raises:
        OomDoctorError: there is no such job, or its output cannot be read and Slurm does not say
            how it ended (exit 2); Slurm does not answer (exit 5).
    """
    match = _JOB.fullmatch(text)
    assert match is not None, "callers check is_job_id first"
    job, step = match["job"], match["step"]
    scontrol = ask("scontrol", "show", "job", job)
    # Slurm before 24.05 does not know the output paths.
    sacct, _ = ask_sacct((OUTPUT_FIELDS, ()), "-j", text)
    records = _started([*from_scontrol(scontrol.text), *from_sacct(sacct.text)])
    if not records:
        files = _usual_files(job, [Path.cwd()])
        if not files:
            raise _unknown(text, scontrol, sacct)
        readable, notes = _readable(files)
        if not readable:
            raise _unread(text, None, notes)
        return [LogSource(text, readable, (), (f"Slurm has no record of job {text}", *notes))]
    ids = list(dict.fromkeys(record.job for record in records))
    # An array task keeps its own id. A step shares the output of its job, so it keeps the typed id.
    return [_job(i if step is None else text, [r for r in records if r.job == i]) for i in ids]


def _job(name: str, records: list[JobRecord]) -> LogSource:
    named = [Path(path) for record in records for path in record.outputs]
    folders = [Path(record.work_dir) for record in records if record.work_dir]
    places = list(dict.fromkeys([Path.cwd(), *folders]))
    there = [path for path in dict.fromkeys(named) if is_there(path)]
    files = there or _usual_files(records[0].job, places)
    readable, notes = _readable(files)
    if not files:
        notes = _absent(records[0].job, named, places)
    told = accounts(records)
    last, chosen = told[-1].head, deciding(told)
    sentence = summary(last)
    has_end = last.alive or any(r.tells_the_end for r in (chosen.head, *chosen.steps))
    if not readable and not has_end:
        raise _unread(name, sentence, notes)
    before = earlier(told)
    notes = (sentence, *([before] if before else []), *notes)
    return LogSource(name, readable, chosen.lines(), notes, end_of(last))


def _started(records: list[JobRecord]) -> list[JobRecord]:
    """The records without array tasks that never started, unless none has started."""
    ran = {record.job for record in records if record.state != "PENDING"}
    return [record for record in records if record.job in ran] or records


def _usual_files(job: str, places: Iterable[Path]) -> list[Path]:
    """The usual files of a job, from the first folder that has any."""
    folders = Folders()
    there = (usual_files(place, job, job, folders) for place in places)
    return list(next(filter(None, there), ()))


def _readable(files: list[Path]) -> tuple[tuple[Path, ...], tuple[str, ...]]:
    readable = tuple(path for path in files if os.access(path, os.R_OK))
    return readable, tuple(_denied(path) for path in files if path not in readable)


def _absent(job: str, named: list[Path], places: list[Path]) -> tuple[str, ...]:
    """Why a job has no output: a folder of somebody else hides it, or it is gone."""
    usual = [place / f"slurm-{job}.out" for place in places]
    hidden = tuple(_denied(path) for path in dict.fromkeys([*named, *usual]) if is_denied(path))
    looked = ", ".join(map(str, dict.fromkeys([*named, *places])))
    return hidden or (f"found no output file of job {job}; looked for {looked}",)


def _denied(path: Path) -> str:
    return f"cannot read {path}: Permission denied"


def _unknown(job: str, scontrol: SlurmAnswer, sacct: SlurmAnswer) -> OomDoctorError:
    give = f"pass the job's output file: oomdoctor explain slurm-{job}.out"
    if scontrol.absent and sacct.absent:
        return usage_error(
            "no_slurm",
            f"{job}: no such file, and Slurm jobs cannot be looked up here: scontrol and sacct are "
            "not installed",
            f"{give}, or run this on a login node",
        )
    faults = [answer.fault for answer in (scontrol, sacct) if answer.fault]
    if scontrol.refused or sacct.refused:
        return machine_error("slurm_silent", f"job {job}: {'; '.join(faults)}", give)
    answers = "; ".join([*faults, *([] if sacct.fault else ["sacct has no record of it"])])
    return usage_error(
        "no_such_job",
        f"{job}: no such file and no such Slurm job: {answers}",
        f"list last week's jobs: sacct -X -S now-7days; or {give}",
    )


def _unread(job: str, sentence: str | None, notes: Iterable[str]) -> OomDoctorError:
    message = "; ".join([sentence or f"job {job}", *notes])
    hint = "pass the job's output file: oomdoctor explain FILE"
    return usage_error("no_job_output", message, hint)
