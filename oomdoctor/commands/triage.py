"""Why many jobs died: each log read once, in as many processes as there are cores.

A job is answered by `explain`'s own diagnosis; this adds one line to type, and counts. It also
gathers the probes that scripts/slurm-probe.sh submitted: a report, or why there is none.
"""

from __future__ import annotations

import os
import re
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

from oomdoctor.analysis.ranking import in_order
from oomdoctor.commands.explain.explained import explained, lines_in, numbered
from oomdoctor.commands.ladder.unfinished import stored_report
from oomdoctor.errors import ExitCode, OomDoctorError, usage_error
from oomdoctor.explain.reading.lines.clean import Line
from oomdoctor.explain.remedies.wording import typed
from oomdoctor.explain.training.known import Given
from oomdoctor.records.codec import CodecError, loads
from oomdoctor.records.report.diagnosis import Diagnosis, Remedy
from oomdoctor.records.report.report import Report
from oomdoctor.records.report.triage import (
    JOBS,
    GatheredJob,
    Triage,
    TriagedJob,
    TriageGroup,
    TriageKey,
)
from oomdoctor.system.slurm.accounts import end_of
from oomdoctor.system.slurm.jobs import find_jobs
from oomdoctor.system.slurm.site import SiteJob, jobs_with
from oomdoctor.system.store.run_list import open_run
from oomdoctor.units import format_bytes

_MOST_PROCESSES = 8  # a login node belongs to everybody
_ALONE = 64  # logs that are read faster than processes start
_AT_ONCE = 32
_ID = re.compile(r"(?<![\d_.])(\d{1,10}(?:_\d{1,7})?)(?![\d_])")
_REASONS = 3
_KEPT = 8  # lines of a run of progress lines, at its start and at its end
_NUMBERS = dict.fromkeys(map(ord, "0123456789.,+-e: |#█▏▎▍▌▋▊▉"))


@dataclass(frozen=True, slots=True)
class Item:
    """A log, and the job that wrote it if that is known. A job may have no log."""

    source: str
    files: tuple[Path, ...]
    job: SiteJob | None = None


def items_of(files: Sequence[Path]) -> list[Item]:
    """The logs, each with its job if Slurm still knows one that wrote this file."""
    ids = {path: _ID.findall(path.name) for path in files}
    owners: dict[Path, SiteJob] = {}
    for job in jobs_with(name for folders in ids.values() for name in folders):
        for path in job.files:
            owners[path.resolve()] = job
    return [Item(str(path), (path,), owners.get(path.resolve())) for path in files]


def triage(
    items: Sequence[Item],
    *,
    since: str | None,
    by: TriageKey | None,
    on_progress: Callable[[int], None] = lambda done: None,
) -> Triage:
    """The answer about these logs and jobs, in their order; `on_progress` gets the count so far."""
    jobs: list[TriagedJob] = []
    for job in _all(items):
        jobs.append(job)
        on_progress(len(jobs))
    counts = Counter(job.outcome for job in jobs)
    return Triage(
        since,
        by,
        tuple(jobs),
        _groups(jobs, by) if by is not None else (),
        *(counts[outcome] for outcome in ("oom", "other", "unknown", "ended")),
    )


def exit_of(answer: Triage) -> ExitCode:
    """0 if memory ran out in any job, 6 if not and a job does not say why it ended, else 3."""
    if answer.oom:
        return ExitCode.OK
    return ExitCode.INCONCLUSIVE if answer.unknown else ExitCode.NO


def triaged(item: Item) -> TriagedJob:
    """One line about one log or job."""
    head = item.job.head if item.job is not None else None
    tail = item.job.lines if item.job is not None else ()
    unread: list[str] = []
    end = end_of(head) if head is not None else None
    text = thinned(numbered((lines_in(path, unread) for path in item.files), tail))
    answer = explained(item.source, text, Given(), end)[0]
    job = _line_about(answer, item)
    if head is None or item.job is None:
        return replace(job, why=unread[0]) if unread and job.outcome == "unknown" else job
    if job.outcome == "unknown" and head.word == "COMPLETED":
        job = replace(job, outcome="ended", reason="completed")
    elif job.outcome == "unknown" and head.alive:
        job = replace(job, outcome="ended", reason=head.word.lower())
    elif job.outcome == "unknown":
        code, _, signal = (head.exit_code or "").partition(":")
        reason = f"signal {signal}" if signal not in ("", "0") else f"exit code {code or '?'}"
        unseen = "" if item.files else "; its output was not found"
        job = replace(job, reason=reason, why=f"{job.why}{unseen}")
    if job.cause == "host_memory" and head.requested_bytes and job.line and "--mem" in job.line:
        asked = format_bytes(head.requested_bytes)
        job = replace(job, line=f"#SBATCH --mem=SIZE  # it requested {asked}")
    return replace(
        job,
        job=head.job,
        name=item.job.name,
        user=head.user,
        partition=item.job.partition,
        state=head.state,
        exit_code=head.exit_code,
        ended_at=item.job.ended_at,
        requested_bytes=head.requested_bytes,
        peak_bytes=head.peak_bytes,
    )


def _line_about(answer: Diagnosis, item: Item) -> TriagedJob:
    cause = answer.causes[0] if answer.causes else None
    remedy = answer.remedies[0] if answer.remedies else None
    memory = answer.is_oom and not answer.survived
    is_explained = memory or answer.look_alike is not None
    place = answer.where
    word = cause.cause if memory and cause is not None else answer.look_alike
    return TriagedJob(
        source=item.source,
        log=str(item.files[0]) if item.files else None,
        outcome="oom" if memory else "other" if is_explained else "unknown",
        resource=answer.resource,
        reason=(word or ("memory" if memory else "unknown")).replace("_", " "),
        cause=cause.cause if cause is not None and memory else None,
        confidence=cause.confidence if cause is not None and memory else None,
        phase=answer.phase if memory and answer.phase != "unknown" else None,
        why=answer.verdict,
        where=None if place is None or place.line is None else f"{place.file}:{place.line}",
        remedy=remedy.change if memory and remedy is not None else _todo(answer, item),
        line=_to_type(answer, remedy) if memory and remedy is not None else None,
    )


def _todo(answer: Diagnosis, item: Item) -> str | None:
    if answer.short_answer is None or item.job is None:
        return answer.short_answer
    return answer.short_answer.replace(" JOB ", f" {item.job.head.job} ")


def _to_type(answer: Diagnosis, remedy: Remedy) -> str | None:
    """What `explain` says to type; of lines for several libraries, the first."""
    line = next(iter(typed(answer, remedy).values()), None)
    return None if line is None else "; ".join(line.splitlines())


def thinned(text: Iterable[Line]) -> Iterator[Line]:
    """The lines without the middle of each run of lines that differ in their numbers only.

    Progress makes most of a log, and reading it takes most of the time.
    """
    shape: str | None = None
    waiting: deque[Line] = deque(maxlen=_KEPT)
    seen = 0
    for line in text:
        now = line.text.translate(_NUMBERS)
        if now != shape:
            yield from waiting
            waiting.clear()
            shape, seen = now, 0
        seen += 1
        if seen <= _KEPT:
            yield line
        else:
            waiting.append(line)
    yield from waiting


def _all(items: Sequence[Item]) -> Iterator[TriagedJob]:
    processes = min(_MOST_PROCESSES, len(os.sched_getaffinity(0)))
    if len(items) < _ALONE or processes == 1:
        yield from map(triaged, items)
        return
    with ProcessPoolExecutor(processes) as pool:
        yield from pool.map(triaged, items, chunksize=_AT_ONCE)


def _groups(jobs: Sequence[TriagedJob], by: TriageKey) -> tuple[TriageGroup, ...]:
    """The groups, those with the most memory failures first."""
    together: dict[str, list[TriagedJob]] = {}
    for job in jobs:
        key = job.reason if by == "cause" else getattr(job, by)
        together.setdefault(key or "unknown", []).append(job)
    groups = [_group(key, jobs) for key, jobs in together.items()]
    return tuple(sorted(groups, key=lambda group: (-group.oom, -group.jobs, group.key)))


def _group(key: str, jobs: Sequence[TriagedJob]) -> TriageGroup:
    counts = Counter(job.outcome for job in jobs)
    memory = [job for job in jobs if job.outcome == "oom"]
    reasons = Counter(job.reason for job in memory or jobs).most_common(_REASONS)
    remedies = Counter(job.remedy for job in memory or jobs if job.remedy).most_common(1)
    return TriageGroup(
        key,
        len(jobs),
        counts["oom"],
        counts["other"],
        counts["unknown"],
        tuple(f"{reason} ({count:,})" for reason, count in reasons),
        remedies[0][0] if remedies else None,
    )


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
        source = find_jobs(job)[0]
    except OomDoctorError as error:
        return error.message
    text = numbered((lines_in(path, []) for path in source.files), source.lines)
    return explained(job, text, Given(), source.end)[0].verdict
