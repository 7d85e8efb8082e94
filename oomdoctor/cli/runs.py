"""`oomdoctor runs`: list the runs and cases on disk, and delete old ones."""

from __future__ import annotations

import sys
from datetime import UTC, datetime
from itertools import islice
from typing import TYPE_CHECKING

import typer

from oomdoctor.cli.options.flatten import flatten
from oomdoctor.cli.options.verbs import RunsOptions
from oomdoctor.cli.streams import output
from oomdoctor.errors import ExitCode, usage_error

if TYPE_CHECKING:
    from collections.abc import Sequence

    from oomdoctor.records.report.earlier_runs import StoredRun


@flatten
def runs(options: RunsOptions) -> None:
    """List the runs and cases on disk, and delete old ones.

    The latest run comes first. A run that is damaged or half-written is listed with the reason.
    Nothing is deleted without --prune, unless OOMDOCTOR_RUNS_LIMIT is set. The list has no page in
    HTML. Exit code 0; 3 if no run matches the filters.

    Examples:
      oomdoctor runs --model Qwen --since 7d
      oomdoctor runs --prune --keep 50 --dry-run
      oomdoctor runs --prune --older-than 90d --yes
    Next: `oomdoctor diff` says what changed between the last two runs of a model.
    """
    from oomdoctor.cli.option_reader import chosen_format
    from oomdoctor.cli.stored_request import runs_request
    from oomdoctor.commands.runs_choosing import chosen
    from oomdoctor.render.runs_page import run_list
    from oomdoctor.system.store.run_list import stored_runs

    format = chosen_format("runs", options.answer)
    request = runs_request(options, datetime.now(UTC))
    matching = chosen(stored_runs(), request.wanted)
    if request.limits is not None:
        from oomdoctor.commands.runs_choosing import over_limit

        listed = tuple(matching)
        over = over_limit(listed, request.limits, datetime.now(UTC))
        _prune(over, len(listed) - len(over), options, format)
        return
    shown = tuple(islice(matching, request.most))
    note = ""
    if next(matching, None) is not None:
        note = "Older runs are not shown; --limit 0 shows all."
    elif not shown and not request.wanted.all:
        note = "no run matches"
    output.publish(run_list("runs", shown, note).text, format, options.answer.output_file)
    if not shown and not request.wanted.all:
        raise typer.Exit(ExitCode.NO)


def _prune(over: Sequence[StoredRun], rest: int, options: RunsOptions, format: str) -> None:
    """Delete the runs after a question, and print which are gone."""
    from oomdoctor.commands.runs_choosing import prune
    from oomdoctor.records.codec import to_json
    from oomdoctor.render.runs_page import run_list
    from oomdoctor.render.words import counted
    from oomdoctor.units import format_bytes

    size = format_bytes(sum(run.size_bytes for run in over))
    what = f"{counted(len(over), 'run')} ({size})"
    gone = tuple(over)
    refused: tuple[tuple[StoredRun, str], ...] = ()
    if over and not options.dry_run:
        _confirm(what, rest, options)
        gone, refused = prune(over)
        what = f"{counted(len(gone), 'run')} ({format_bytes(sum(r.size_bytes for r in gone))})"
    verb, kept = ("Would delete", "keep") if options.dry_run else ("Deleted", "kept")
    note = f"{verb} {what}, {kept} {rest + len(refused)}."
    if not over:
        note = f"Nothing to delete; kept {rest}."
    content = {
        "dry_run": options.dry_run,
        "deleted": [to_json(run) for run in gone],
        "freed_bytes": sum(run.size_bytes for run in gone),
        "kept": rest + len(refused),
        "refused": [{"name": run.name, "reason": why} for run, why in refused],
    }
    listing = run_list("runs", gone, note, content)
    output.publish(listing.text, format, options.answer.output_file)
    for run, why in refused:
        output.say(f"warning: {run.name} is left alone: {why}")
    if refused:
        raise typer.Exit(ExitCode.MACHINE_UNFIT)


def _confirm(what: str, rest: int, options: RunsOptions) -> None:
    """Ask on a terminal.

    Raises:
        OomDoctorError: nobody can be asked and --yes is missing (exit 2).
        typer.Exit: the answer was no.
    """
    if options.yes:
        return
    if not (sys.stdin is not None and sys.stdin.isatty() and sys.stderr.isatty()):
        raise usage_error(
            "not_confirmed",
            f"nobody can be asked whether to delete {what}",
            "look first with --dry-run, then add --yes",
        )
    output.write_patiently(f"Delete {what}, and keep {rest}? [y/N] ")
    if sys.stdin.readline().strip().lower() not in ("y", "yes"):
        output.say("nothing was deleted")
        raise typer.Exit(ExitCode.OK)
