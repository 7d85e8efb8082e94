"""Finds what a Slurm job wrote and what Slurm says of its end, by the job's id.

`scontrol` knows a job while it runs and some minutes longer, with the paths of its output; `sacct`
knows its end for good, where accounting is on; what neither names is looked for by its usual name.
Nothing is changed, no shell is used, and of the paths they name only regular files are read.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from oomdoctor.errors import OomDoctorError, machine_error, usage_error
from oomdoctor.system.slurm.records import (
    FIELDS,
    OUTPUT_FIELDS,
    JobRecord,
    from_sacct,
    from_scontrol,
    joined,
    summary,
)

_DEADLINE_S = 10
_JOB = re.compile(
    r"(?P<job>\d{1,10}(?:_\d{1,7}|\+\d{1,4})?)(?P<step>\.(?:\d{1,7}|batch|extern|interactive))?",
    re.ASCII,
)
_KNOWS_NOTHING = "Invalid job id|accounting storage is disabled"
_SUFFIXES = (".out", ".err", ".log", ".txt")


@dataclass(frozen=True, slots=True)
class SlurmJob:
    """A job or array task: what it wrote and what Slurm says of it.

    `files` are regular files that can be opened. `lines` is Slurm's account as lines of a log,
    `notes` the same for people, and what could not be read.
    """

    id: str
    files: tuple[Path, ...]
    lines: tuple[str, ...]
    notes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _Answer:
    """What a command printed; `fault` says in a sentence why it told nothing.

    `absent`: it is not installed here. `refused`: it runs, but could not do its work.
    """

    text: str = ""
    fault: str | None = None
    absent: bool = False
    refused: bool = False


def is_job_id(text: str) -> bool:
    """Whether a text can be a job, an array task or a step: 123456, 123456_7, 123456.0."""
    return _JOB.fullmatch(text) is not None


def find_jobs(text: str) -> list[SlurmJob]:
    """The job of an id, or each started task of an array; never empty.

    Raises:
        OomDoctorError: exit 2: no such job, or its output cannot be found or read and Slurm does
            not tell what ended it; exit 5: Slurm does not answer.
    """
    match = _JOB.fullmatch(text)
    assert match is not None, "callers ask is_job_id first"
    job, step = match["job"], match["step"]
    scontrol = _ask("scontrol", "show", "job", job)
    sacct = _ask_sacct(text)
    records = _started([*from_scontrol(scontrol.text), *from_sacct(sacct.text)])
    if not records:
        files = _usual_files(job, [Path.cwd()])
        if not files:
            raise _unknown(text, scontrol, sacct)
        readable, notes = _readable(files)
        if not readable:
            raise _unread(text, None, notes)
        return [SlurmJob(text, readable, (), (f"Slurm tells nothing of job {text}", *notes))]
    ids = list(dict.fromkeys(record.job for record in records))
    # A task of an array keeps its own name; a step is read from the output of its job.
    return [_job(i if step is None else text, [r for r in records if r.job == i]) for i in ids]


def _job(name: str, records: list[JobRecord]) -> SlurmJob:
    named = [Path(path) for record in records for path in record.outputs]
    folders = [Path(record.work_dir) for record in records if record.work_dir]
    places = list(dict.fromkeys([Path.cwd(), *folders]))
    files = [path for path in dict.fromkeys(named) if path.is_file()] or _usual_files(
        records[0].job, places
    )
    readable, notes = _readable(files)
    if not files:
        looked = ", ".join(map(str, dict.fromkeys([*named, *places])))
        notes = (f"no output file of job {name} was found; looked for {looked}",)
    account = joined(records)
    told = summary(account[0])
    if not readable and not any(r.tells_the_end or r.alive for r in account):
        raise _unread(name, told, notes)
    return SlurmJob(name, readable, tuple(record.line() for record in account), (told, *notes))


def _ask_sacct(job: str) -> _Answer:
    """sacct's rows; releases before 24.05 do not know the paths of the output."""
    fixed = ("sacct", "-j", job, "--parsable2", "--noheader")
    answer = _ask(*fixed, "--expand-patterns", "-o", ",".join((*FIELDS, *OUTPUT_FIELDS)))
    if answer.refused and re.search(r"[Ii]nvalid field|unrecognized option", answer.fault or ""):
        answer = _ask(*fixed, "-o", ",".join(FIELDS))
    return answer


def _ask(command: str, *arguments: str) -> _Answer:
    """Run a command of Slurm; whatever happens is an answer, after 10 s at the latest."""
    try:
        process = subprocess.Popen(
            [command, *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            encoding="utf-8",
            errors="replace",
            start_new_session=True,  # sites wrap the commands in scripts: end those whole
        )
    except FileNotFoundError:
        return _Answer(fault=f"{command} is not installed here", absent=True)
    except OSError as error:
        return _Answer(fault=f"{command} cannot be run: {error.strerror}", absent=True)
    with process:
        try:
            out, err = process.communicate(timeout=_DEADLINE_S)
        except BaseException as ended:
            os.killpg(process.pid, signal.SIGKILL)
            if not isinstance(ended, subprocess.TimeoutExpired):
                raise
            return _Answer(fault=f"{command} gave no answer within {_DEADLINE_S} s", refused=True)
    if process.returncode == 0:
        return _Answer(out)
    said = " ".join(err.split()) or f"exit code {process.returncode}"
    refused = re.search(_KNOWS_NOTHING, said) is None
    return _Answer(out, f"{command}: {said.removeprefix(f'{command}: ')}", refused=refused)


def _started(records: list[JobRecord]) -> list[JobRecord]:
    """Without the tasks of an array that still wait, where others have started."""
    return [record for record in records if record.state != "PENDING"] or records


def _usual_files(job: str, folders: Iterable[Path]) -> list[Path]:
    """slurm-ID.out, or else what bears the id in its name, in the first folder that has some."""
    bears = re.compile(rf"(?<![\d_]){re.escape(job)}(?![\d_])")
    for folder in folders:
        usual = folder / f"slurm-{job}.out"
        if usual.is_file():
            return [usual]
        try:
            names = sorted(p for p in folder.iterdir() if p.suffix in _SUFFIXES)
        except OSError:
            continue
        found = [path for path in names if bears.search(path.name) and path.is_file()]
        if found:
            return found
    return []


def _readable(files: Iterable[Path]) -> tuple[tuple[Path, ...], tuple[str, ...]]:
    readable, notes = [], []
    for path in files:
        if os.access(path, os.R_OK):
            readable.append(path)
        else:
            notes.append(f"{path} cannot be read: Permission denied")
    return tuple(readable), tuple(notes)


def _unknown(job: str, scontrol: _Answer, sacct: _Answer) -> OomDoctorError:
    give = f"give the job's output file: oomdoctor explain slurm-{job}.out"
    if scontrol.absent and sacct.absent:
        return usage_error(
            "no_slurm",
            f"{job}: there is no such file; as a Slurm job it cannot be looked up: scontrol and "
            "sacct are not installed here",
            f"{give}; or run this where sbatch works",
        )
    faults = [answer.fault for answer in (scontrol, sacct) if answer.fault]
    if scontrol.refused or sacct.refused:
        return machine_error("slurm_silent", f"job {job}: {'; '.join(faults)}", give)
    told = "; ".join([*faults, *([] if sacct.fault else ["sacct has no record of it"])])
    return usage_error(
        "no_such_job",
        f"{job}: there is no such file, and no such Slurm job: {told}",
        f"sacct -X -S now-7days  # the jobs of the last week; or {give}",
    )


def _unread(job: str, told: str | None, notes: Iterable[str]) -> OomDoctorError:
    message = "; ".join([told or f"job {job}", *notes])
    return usage_error(
        "no_job_output", message, "give the file that the job wrote: oomdoctor explain FILE"
    )
