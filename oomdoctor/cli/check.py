"""`oomdoctor check`: the memory of training commands as a test, for CI."""

from __future__ import annotations

import signal
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from oomdoctor.cli.options.answer import AnswerOptions, Quiet
from oomdoctor.cli.options.flatten import flatten
from oomdoctor.cli.streams import output
from oomdoctor.cli.streams.output import Started, publish_report
from oomdoctor.errors import ExitCode

if TYPE_CHECKING:
    from oomdoctor.records.report.check import CheckAnswer
    from oomdoctor.records.report.report import Status

_STATUS: dict[ExitCode, Status] = {ExitCode.NO: "no", ExitCode.INCONCLUSIVE: "partial"}


@dataclass(frozen=True, slots=True)
class CheckOptions:
    """A command line of `check`."""

    file: Path = Path("oomdoctor.toml")
    only: list[str] | None = None
    update: bool = False
    against: str | None = None
    jobs: str | None = None
    junit: Path | None = None
    answer: AnswerOptions = field(default_factory=AnswerOptions)
    verbose: bool = False
    quiet: Quiet = False


@flatten
def check(options: CheckOptions) -> None:
    """Check the GPU memory of training commands against budgets.

    The file lists commands, cards and budgets. Each command runs unchanged on its emulated card, as
    with `run --emulate`, so no GPU is needed. Its peak is compared with the budget and with the
    baseline, and the report names what grew, by category and by line of code. Exit code 0 if all
    are within their budgets, 3 if one is above, 6 if a command failed or its peak is uncertain.

    Examples:
      oomdoctor check
      oomdoctor check --update          # accept today's peaks as the baseline
      oomdoctor check --against main --format markdown
    Next: `oomdoctor run --emulate CARD --breakdown -- COMMAND` shows one peak.
    """
    from oomdoctor.cli.option_reader import Reader, chosen_format
    from oomdoctor.commands.check.judging import exit_of
    from oomdoctor.commands.check.run_check import CheckRequest, run_check
    from oomdoctor.commands.check.running import how_many

    started = Started()
    chosen = chosen_format("check", options.answer)
    reader = Reader("check")
    jobs = how_many() if options.jobs is None else reader.integer("--jobs", options.jobs)
    reader.exclude(options)
    reader.check()
    if options.junit is not None:
        output.check_writable(options.junit, "--junit")
    request = CheckRequest(
        options.file, tuple(options.only or ()), options.against, options.update, jobs
    )
    before = signal.signal(signal.SIGTERM, _end)
    try:
        answer = run_check(request, (lambda _: None) if options.quiet else output.say)
    finally:
        signal.signal(signal.SIGTERM, before)
    code = exit_of(answer.results)
    report = started.report(
        "check",
        _STATUS.get(code, "ok"),
        code,
        check=answer,
        next_commands=_next(answer, options.file),
    )
    if options.junit is not None:
        from oomdoctor.render.junit import junit

        output.write_file(options.junit, junit(answer))
    publish_report(report, chosen, options.answer.output_file, verbose=options.verbose)
    raise typer.Exit(code)


def _end(*_: object) -> None:
    """End as by Ctrl-C, which ends the running checks too."""
    raise SystemExit(int(ExitCode.TERMINATED))


def _next(answer: CheckAnswer, file: Path) -> tuple[str, ...]:
    """Lines to type: what a first failure is about, and how to accept what grew."""
    import shlex

    named = [] if file == CheckOptions().file else [str(file)]
    bad = next((result for result in answer.results if result.outcome != "passed"), None)
    lines = []
    if bad is not None:
        words = ["oomdoctor", "run", "--emulate", bad.gpu, "--breakdown", *bad.options]
        lines.append(shlex.join([*words, "--", *bad.command]))
    to_accept = (
        result.outcome == "grew" or (result.peak is not None and result.baseline is None)
        for result in answer.results
    )
    if not answer.updated and answer.against is None and any(to_accept):
        lines.append(shlex.join(["oomdoctor", "check", *named, "--update"]))
    return tuple(lines)
