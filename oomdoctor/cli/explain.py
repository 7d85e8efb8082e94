"""`oomdoctor explain`: from a traceback or a log to what ran out, why, and what helps.

Only the text itself is read: nothing that it names is opened, imported or run.
"""

from __future__ import annotations

import shutil
import tempfile
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from oomdoctor.cli.help import command_behind
from oomdoctor.cli.options.flatten import flatten
from oomdoctor.cli.options.verbs import ExplainOptions
from oomdoctor.cli.streams.output import Started, publish_report
from oomdoctor.errors import ExitCode, OomDoctorError

if TYPE_CHECKING:
    from oomdoctor.commands.explain.exact import Checked
    from oomdoctor.explain.training.known import Given
    from oomdoctor.records.report.diagnosis import Diagnosis
    from oomdoctor.records.report.report import Status, Warn


@flatten
def explain(context: typer.Context, options: ExplainOptions) -> None:
    """Explain an out-of-memory error and what fixes it.

    Says what ran out, where and why, and which changes help. A number that is not a file is the id
    of a Slurm job: its output and its record are read. Exit code 0 if memory ran out and a
    cause was found, 3 if lack of memory did not end the run, or if --apply finds no remedy for its
    file. With --verify: 0 if a change is proven, 3 if none is enough, 6 if the runs show nothing.

    Examples:
      oomdoctor explain trace.txt
      oomdoctor explain trace.txt --apply train.yaml
      oomdoctor explain trace.txt --apply train.py --verify
      oomdoctor explain 123456 --model meta-llama/Llama-3.1-8B --seq-len 4096
    Next: `oomdoctor plan Qwen/Qwen2.5-7B --gpu A10G` predicts what fits.
    """
    from oomdoctor.cli.explain_request import (
        applied_to,
        exit_of_applied,
        next_lines,
        publish_applied,
        read_given,
    )
    from oomdoctor.cli.explain_sources import STDIN, missing
    from oomdoctor.cli.option_reader import Reader, chosen_format
    from oomdoctor.explain.diagnose import exit_of
    from oomdoctor.records.report.warnings import quoted, warning

    started = Started()
    chosen = chosen_format("explain", options.answer)
    names = list(dict.fromkeys(options.files or [STDIN]))
    reader = Reader("explain")
    for name in names:
        if (fault := missing(name)) is not None:
            reader.fault(name or "''", fault)
    if options.python is not None and shutil.which(options.python) is None:
        reader.fault("--python", f"{options.python} is not a program")
    reader.exclude(options)
    number = reader.given(reader.integer, "--remedy", options.remedy)
    given, notes = read_given(reader, options)
    if options.snapshot is not None:
        from oomdoctor.cli.explain_sources import failed_requests

        seen = failed_requests(options.snapshot, quiet=options.quiet)
        given = replace(given, snapshots=seen)
    diagnoses, warnings = _read_all(names, given, quiet=options.quiet)
    warnings += quoted("model", notes)
    if options.snapshot is not None and not any(diagnosis.held for diagnosis in diagnoses):
        wording = "text" if given.snapshots else "none_failed"
        warnings.append(warning("snapshot_unused", wording, name=options.snapshot))
    code = exit_of(diagnoses)
    if options.exact:
        place = _first_failure(diagnoses)
        checked = _simulated(diagnoses[place], given, options)
        diagnoses[place] = checked.diagnosis
        if checked.fault is not None:
            wording = "text" if checked.diagnosis.simulated_bytes is None else "partly"
            warnings.append(warning("not_exact", wording, reason=checked.fault))
        code = checked.interrupted or code
    if given.training is not None:
        from oomdoctor.commands.explain.applied import in_your_file

        diagnoses = [in_your_file(diagnosis, given.training) for diagnosis in diagnoses]
    told = diagnoses[_first_failure(diagnoses)]
    applied = applied_to(told, options, number, command_behind(context))
    if applied is not None and code == ExitCode.OK:
        code = exit_of_applied(applied)
    words: dict[ExitCode, Status] = {ExitCode.OK: "ok", ExitCode.NO: "no"}
    report = started.report(
        "explain",
        words.get(code, "interrupted"),
        code,
        next_commands=next_lines(diagnoses, given, options),
        warnings=tuple(warnings),
        diagnoses=tuple(diagnoses),
        applied=applied,
    )
    if applied is not None and chosen == "table":
        publish_applied(applied, names, options)
    else:
        publish_report(report, chosen, options.answer.output_file, verbose=options.verbose)
    raise typer.Exit(code)


def _read_all(names: list[str], given: Given, *, quiet: bool) -> tuple[list[Diagnosis], list[Warn]]:
    """Diagnoses of everything that can be read, and warnings about the rest.

    Raises:
        OomDoctorError: nothing can be read; this is the first reason.
    """
    from oomdoctor.cli.explain_sources import lines_of, named
    from oomdoctor.commands.explain.explained import explained
    from oomdoctor.records.report.warnings import not_read, quoted

    diagnoses: list[Diagnosis] = []
    warnings: list[Warn] = []
    refused: list[OomDoctorError] = []
    for name in names:
        try:
            for source in named(name, quiet=quiet):
                notes: list[str] = []
                lines = lines_of(source, notes, quiet=quiet)
                diagnoses += explained(source.name, lines, given, source.end)
                warnings += quoted("slurm", source.notes)
                warnings += quoted("log", notes)
        except OomDoctorError as error:
            refused.append(error)
    if not diagnoses:
        raise refused[0]
    return diagnoses, [*warnings, *(not_read(e.code, e.message) for e in refused)]


def _first_failure(diagnoses: list[Diagnosis]) -> int:
    """The place of the failure that is simulated and that the next commands are about."""
    ended = (
        place
        for place, diagnosis in enumerate(diagnoses)
        if diagnosis.is_oom and not diagnosis.survived
    )
    return next(ended, 0)


def _simulated(diagnoses: Diagnosis, given: Given, options: ExplainOptions) -> Checked:
    """The diagnosis with simulated sizes, or as it was and why they are not.

    The simulation is no run that `show` lists. Its folder stays only if the reason names a file in
    it.
    """
    from oomdoctor.cli.explain_request import interpreter, model_of
    from oomdoctor.cli.streams.carry_out import carry_out
    from oomdoctor.commands.explain import exact
    from oomdoctor.system.store.run_folders import RunFolder

    if (missing := exact.unknown(diagnoses)) is not None:
        return exact.Checked(diagnoses, missing)
    python = interpreter(options)
    model = model_of(diagnoses.model or "", given, options)
    folder = RunFolder(Path(tempfile.mkdtemp(prefix="oomdoctor-explain-")))
    work = partial(exact.check, diagnoses, model, python, folder, training=given.training)
    checked = exact.Checked(diagnoses)
    try:
        checked = carry_out(work, folder, quiet=options.quiet)
    except OomDoctorError as error:
        hint = f"; {error.hint}" if error.hint else ""
        checked = exact.Checked(diagnoses, f"{error.message}{hint}")
    finally:
        if str(folder.path) not in (checked.fault or ""):
            shutil.rmtree(folder.path, ignore_errors=True)
    return checked
