"""`oomdoctor export`: a rung of a run as a training script or a configuration file."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, get_args

from oomdoctor.cli.options import COMMON, completion, option
from oomdoctor.cli.options.answer import either
from oomdoctor.cli.options.flatten import flatten
from oomdoctor.cli.streams import output
from oomdoctor.errors import OomDoctorError, usage_error
from oomdoctor.records.facts.choices import WrittenFormat

if TYPE_CHECKING:
    from oomdoctor.records.report.report import Report
    from oomdoctor.stacks.rung import StackRung

_TARGETS = get_args(WrittenFormat)
_WORDS = f"What to write: {either(_TARGETS)}."
_TO = option("--to TARGET", COMMON, _WORDS, completion.one_of(_TARGETS))


@dataclass(frozen=True, slots=True)
class ExportOptions:
    """A command line of `export`."""

    place: str | None = None
    to: Annotated[str | None, _TO] = None
    run: str = "latest"
    from_: list[str] | None = None
    output_file: Path | None = None
    quiet: bool = False


@flatten
def export(options: ExportOptions) -> None:
    """Turn a result into a training script or a configuration file.

    trainer, trl, pytorch and unsloth are whole scripts that run as they are; the others are
    configuration files. The text goes to stdout. Nothing is loaded or run. Exit code 0 if it was
    written, 3 if the program cannot express the configuration.

    Examples:
      oomdoctor export 1 --to trl > train.py
      oomdoctor export qlora-nf4-r16+ckpt --to pytorch --output train.py
      oomdoctor export --from axolotl.yaml --to trl > train.py
    Next: `oomdoctor run -- python train.py` explains it if memory runs out.
    """
    from oomdoctor.cli.option_reader import Reader
    from oomdoctor.stacks.export import export as exported

    reader = Reader("export")
    if options.to is not None:
        reader.choice("--to", options.to, _TARGETS)
    reader.exclude(options)
    reader.check()
    _check_kept(options)
    if options.output_file is not None:
        output.check_writable(options.output_file)
    rung, notes = _converted(options) if options.from_ else _of_run(options)
    text = exported(rung, str(options.to))
    for note in () if options.quiet else notes:
        output.say(note)
    if options.output_file is None:
        output.print_answer(text)
        return
    output.write_file(options.output_file, text)
    if not options.quiet:
        output.say(f"wrote {options.output_file}")


def _check_kept(options: ExportOptions) -> None:
    """Refuse to write over a file that is read."""
    if options.output_file is None:
        return
    from oomdoctor.system.training_files import split_program

    written = options.output_file.resolve()
    for text in options.from_ or ():
        if Path(split_program(text)[1]).expanduser().resolve() == written:
            raise usage_error(
                "bad_option",
                f"--output: {options.output_file} is a file of --from, which would be lost",
                "choose another file",
            )


def _of_run(options: ExportOptions) -> tuple[StackRung, tuple[str, ...]]:
    """A rung of a run, and what to know about it."""
    from oomdoctor.commands.export import result_at, stack_rung, warning
    from oomdoctor.commands.ladder.unfinished import stored_report
    from oomdoctor.system.store.run_list import open_run

    folder = open_run(options.run)
    report = stored_report(folder)
    if options.place is None or options.to is None:
        raise _incomplete(report, options)
    result = result_at(report, options.place, folder.name)
    note = warning(result)
    return stack_rung(report, result, folder.name), () if note is None else (f"warning: {note}",)


def _converted(options: ExportOptions) -> tuple[StackRung, tuple[str, ...]]:
    """The rung of the user's own files, and what of them it does not hold."""
    from oomdoctor.commands.export import rung_of_files

    if options.to is None:
        raise usage_error("incomplete", "say what to write (--to)", "run `oomdoctor export --help`")
    return rung_of_files(options.from_ or (), options.to)


def _incomplete(report: Report, options: ExportOptions) -> OomDoctorError:
    """The error for a command line without PLACE or --to; it names what there is."""
    from oomdoctor.analysis.ranking import in_order
    from oomdoctor.commands.export import listed

    missing = "which configuration to export" if options.place is None else "what to write (--to)"
    rungs = listed(in_order(report))
    model = report.model.id if report.model else "the run"
    return usage_error(
        "incomplete",
        f"say {missing}. The configurations of {model}:\n{rungs}",
        f"oomdoctor export {options.place or 1} --to {options.to or 'trl'} > train.py\n"
        f"targets: {', '.join(_TARGETS)}",
    )
