"""Gathers the probes that scripts/slurm-probe.sh submitted: a report, or why there is none."""

from __future__ import annotations

from pathlib import Path

from oomdoctor.analysis.ranking import in_order
from oomdoctor.commands.explain.explained import explained, lines_in, numbered
from oomdoctor.commands.ladder.unfinished import stored_report
from oomdoctor.errors import OomDoctorError, usage_error
from oomdoctor.explain.training.known import Given
from oomdoctor.records.codec import CodecError, loads
from oomdoctor.records.report.report import Report
from oomdoctor.records.report.triage import GatheredJob
from oomdoctor.system.slurm.jobs import find_jobs
from oomdoctor.system.store.run_list import open_run

JOBS = "jobs.tsv"  # a line a job: its GPU type and its id


def gathered(folder: Path) -> tuple[GatheredJob, ...]:
    """The jobs of a folder, in the order in which they were submitted.

    Raises:
        OomDoctorError: the list of jobs is damaged (exit 2).
    """
    rows = [row.split("\t") for row in (folder / JOBS).read_text(encoding="utf-8").splitlines()]
    if not rows or any(len(row) != 2 for row in rows):
        raise usage_error("bad_folder", f"{folder / JOBS} is not a list of jobs")
    return tuple(_job(folder, gpu_type, job) for gpu_type, job in rows)


def _job(folder: Path, gpu_type: str, job: str) -> GatheredJob:
    report = _report(folder, gpu_type)
    if report is None:
        return GatheredJob(gpu_type, job, "no report", _end(job), None, None, ())
    whole = report.status in ("ok", "no")
    said = "; ".join(error.message for error in report.errors)
    return GatheredJob(
        gpu_type,
        job,
        report.status,
        (said or None) if whole or said else _end(job),
        None if report.machine is None else report.machine.gpu_name,
        None if report.budget is None else report.budget.usable_bytes,
        in_order(report),
    )


def _report(folder: Path, gpu_type: str) -> Report | None:
    """The report of a job; of one that was killed, what its run folder has."""
    try:
        return loads(Report, (folder / f"{gpu_type}.json").read_text(encoding="utf-8"))
    except (OSError, CodecError):
        pass
    runs = folder / f"{gpu_type}.state" / "oomdoctor" / "runs"
    for path in sorted(runs.iterdir(), reverse=True) if runs.is_dir() else ():
        try:
            return stored_report(open_run(str(path)))
        except OomDoctorError:
            continue
    return None


def _end(job: str) -> str | None:
    """How a job ended, in the words of `explain`."""
    try:
        found = find_jobs(job)[0]
    except OomDoctorError as error:
        return error.message
    text = numbered((lines_in(path, []) for path in found.files), found.lines)
    return explained(job, text, Given(), found.end)[0].verdict
