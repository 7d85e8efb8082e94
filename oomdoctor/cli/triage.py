"""`oomdoctor triage`: why many jobs died, a line for each."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from oomdoctor.cli.options.answer import AnswerOptions, Quiet, Verbose
from oomdoctor.cli.options.flatten import flatten
from oomdoctor.cli.streams import output
from oomdoctor.cli.streams.output import Started, publish_report
from oomdoctor.errors import ExitCode, usage_error

if TYPE_CHECKING:
    from oomdoctor.cli.option_reader import Reader
    from oomdoctor.commands.triage import Item
    from oomdoctor.records.report.report import Status

_PACE_S = 2.0  # between lines of progress


@dataclass(frozen=True, slots=True)
class TriageOptions:
    """A command line of `triage`."""

    files: list[str] | None = None
    since: str | None = None
    user: list[str] | None = None
    all_users: bool = False
    by: str | None = None
    answer: AnswerOptions = field(default_factory=AnswerOptions)
    verbose: Verbose = False
    quiet: Quiet = False


@flatten
def triage(options: TriageOptions) -> None:
    """Say why many jobs died, one line each.

    A line has the cause, the phase, the remedy and the line to change. Reads logs, or asks Slurm
    for the jobs that died and finds their logs. Exit code 0 if memory ran out in at least one job,
    3 if in none, 6 if in none and some jobs do not say why they ended.

    Examples:
      oomdoctor triage logs/*.out
      oomdoctor triage --since yesterday
      oomdoctor triage --since 7d --all-users --by cause --format csv
    Next: `oomdoctor explain JOB` says more about one job.
    """
    from oomdoctor.cli.option_reader import Reader, chosen_format
    from oomdoctor.commands import triage as runs
    from oomdoctor.records.report.triage import TRIAGE_KEYS

    started = Started()
    chosen = chosen_format("triage", options.answer)
    reader = Reader("triage")
    by = None if options.by is None else reader.choice("--by", options.by, TRIAGE_KEYS)
    items = _items(options, reader)
    said = time.monotonic()

    def progress(done: int) -> None:
        nonlocal said
        if not options.quiet and time.monotonic() - said > _PACE_S:
            said = time.monotonic()
            output.say(f"read {done:,} of {len(items):,} jobs")

    answered = runs.triage(items, since=options.since, by=by, on_progress=progress)
    code = runs.exit_of(answered)
    first = next((job for job in answered.jobs if job.outcome == "oom"), None)
    lines = () if first is None else (f"oomdoctor explain {first.job or first.source}",)
    status: Status = "ok" if code == ExitCode.OK else "no"
    report = started.report("triage", status, code, triage=answered, next_commands=lines)
    publish_report(report, chosen, options.answer.output_file, verbose=options.verbose)
    raise typer.Exit(code)


def _items(options: TriageOptions, reader: Reader) -> list[Item]:
    """What to read.

    Raises:
        OomDoctorError: the options contradict each other, a file is missing, or Slurm does not
            answer.
    """
    from oomdoctor.commands.triage import Item, items_of
    from oomdoctor.system.slurm.jobs import is_job_id
    from oomdoctor.system.slurm.site import dead_jobs, jobs_with, start_of

    names = list(dict.fromkeys(options.files or ()))
    reader.exclude(options)
    files = [Path(name) for name in names if os.path.lexists(name)]
    ids = [name for name in names if not os.path.lexists(name)]
    for name in ids:
        if not is_job_id(name):
            reader.fault(name or "''", "no such file")
    reader.check()
    if names:
        jobs = jobs_with(ids) if ids else []
        if ids and not jobs:
            raise usage_error(
                "no_such_job",
                f"Slurm has no record of job {ids[0]}",
                f"oomdoctor explain {ids[0]}; or name the logs: oomdoctor triage logs/*.out",
            )
        return [*items_of(files), *(Item(job.head.job, job.files, job) for job in jobs)]
    if options.since is None:
        raise usage_error(
            "nothing_to_read",
            "name the logs, or say since when Slurm should list the jobs",
            "oomdoctor triage --since yesterday",
        )
    if not options.quiet:
        output.say(f"asking Slurm for the jobs that died since {options.since}")
    since = start_of(options.since, datetime.now())
    everyone = options.all_users or (options.by == "user" and not options.user)
    dead = dead_jobs(since, options.user or (), everyone=everyone)
    return [Item(job.head.job, job.files, job) for job in dead]
