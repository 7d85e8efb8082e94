"""`oomdoctor diff`: what changed between two runs."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import typer

from oomdoctor.cli.options.answer import AnswerOptions
from oomdoctor.cli.options.flatten import flatten
from oomdoctor.cli.streams.output import Started, publish_report
from oomdoctor.errors import ExitCode

if TYPE_CHECKING:
    from oomdoctor.records.report.earlier_runs import DiffAnswer
    from oomdoctor.records.report.report import Status


@dataclass(frozen=True, slots=True)
class DiffOptions:
    """A command line of `diff`."""

    before: str | None = None
    after: str | None = None
    answer: AnswerOptions = field(default_factory=AnswerOptions)
    verbose: bool = False


@flatten
def diff(options: DiffOptions) -> None:
    """Say what changed between two runs.

    For example after an upgrade of torch. Compares versions, settings, and each configuration:
    whether it fits, its peaks, its speed. Differences within the uncertainty are ignored. Exit code
    0 if nothing got worse, 3 if something did, 6 if the runs have no configuration in common.

    Examples:
      oomdoctor diff
      oomdoctor diff 20261123-014500-qwen2.5-0.5b-a1b2 latest
      oomdoctor diff before.json after.json --format markdown
    Next: `oomdoctor runs` lists the runs on disk.
    """
    from oomdoctor.cli.option_reader import chosen_format
    from oomdoctor.commands.diff import difference

    started = Started()
    chosen = chosen_format("diff", options.answer)
    differences = difference(options.before, options.after)
    status, code = _ended(differences)
    report = started.report("diff", status, code, diff=differences)
    publish_report(report, chosen, options.answer.output_file, verbose=options.verbose)
    raise typer.Exit(code)


def _ended(answer: DiffAnswer) -> tuple[Status, ExitCode]:
    if not answer.rungs:
        return "partial", ExitCode.INCONCLUSIVE
    return ("no", ExitCode.NO) if answer.verdict == "worse" else ("ok", ExitCode.OK)
