"""The program, and the one place that handles errors.

`program` runs a command and lets errors through. `run` turns each error into an exit code, an
error and a hint on stderr, and with --json one document on stdout. Commands import what they need
when they run, so `--help` stays fast and never loads torch.
"""

from __future__ import annotations

import errno
import inspect
import re
import sys
from collections.abc import Callable
from contextlib import nullcontext
from itertools import pairwise
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer

from oomdoctor import __version__
from oomdoctor.cli import recipes
from oomdoctor.cli.check import check
from oomdoctor.cli.diff import diff
from oomdoctor.cli.env import env
from oomdoctor.cli.explain import explain
from oomdoctor.cli.export import export
from oomdoctor.cli.gpus_and_models import gpus, models
from oomdoctor.cli.help import Command, Commands, Prover, Wrapper, interrupted
from oomdoctor.cli.plan import plan
from oomdoctor.cli.probe import probe
from oomdoctor.cli.run import run as run_script
from oomdoctor.cli.runs import runs
from oomdoctor.cli.show import show
from oomdoctor.cli.snapshot import snapshot
from oomdoctor.cli.streams import output
from oomdoctor.cli.streams.carry_out import stop_on_signals
from oomdoctor.cli.triage import triage
from oomdoctor.cli.watch import watch
from oomdoctor.errors import ExitCode, OomDoctorError, machine_error

if TYPE_CHECKING:
    from oomdoctor.records.report.report import Status

# Those that measure or explain, then those that show what is known.
_VERBS: tuple[Callable[..., None], ...] = (
    *(probe, plan, run_script, check, watch, explain, triage, snapshot),
    *(show, runs, export, diff, env, gpus, models),
)
COMMANDS = (*(verb.__name__ for verb in _VERBS), "recipes")
_STATUS: dict[ExitCode, Status] = {ExitCode.INTERRUPTED: "interrupted", ExitCode.NO: "no"}
# Options that another command has.
_ELSEWHERE = {
    ("oomdoctor probe", "--with"): "probe measures the versions that are installed; "
    "`oomdoctor plan MODEL --with ..` simulates others",
    ("oomdoctor plan", "--vram"): "for a card of that size: `--gpu 24GiB`",
}
# Formats of `--output`, which other programs take as options.
_ENDINGS = {"html": "html", "markdown": "md", "md": "md", "csv": "csv"}
_EPILOG = """\b
Examples:
  oomdoctor probe HuggingFaceTB/SmolLM2-135M
  oomdoctor plan meta-llama/Llama-3.1-8B --gpu "RTX 4090"
  oomdoctor explain trace.txt
  oomdoctor plan --from axolotl.yml --gpu L4             # does mine fit?
  oomdoctor plan Qwen/Qwen3-8B --gpu L4 --solve seq-len  # longest context
  oomdoctor plan Qwen/Qwen3-8B --all-gpus                # which cards will do
  oomdoctor snapshot memory_snapshot.pickle              # what grows, where
Next: `oomdoctor env` shows what this machine can do.
"""
app = typer.Typer(
    name="oomdoctor",
    cls=Commands,
    help="Find out which training configuration of a Hugging Face model fits a GPU, and how fast "
    "it trains: measured in real training steps, or predicted without the GPU. Explain "
    "out-of-memory errors.",
    epilog=_EPILOG,
    invoke_without_command=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
for _verb in _VERBS:
    _class = {run_script: Wrapper, explain: Prover}.get(_verb, Command)
    _text, _, _examples = inspect.cleandoc(_verb.__doc__ or "").partition("\n\nExamples:\n")
    _epilog = f"\b\nExamples:\n{_examples}\n"
    app.command(_verb.__name__, cls=_class, help=_text, epilog=_epilog)(_verb)
app.add_typer(recipes.app, name="recipes")


def _show_version(asked: bool) -> None:
    if asked:
        output.print_answer(f"oomdoctor {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    context: typer.Context,
    version: Annotated[
        bool,
        typer.Option("--version", help="Print the version.", callback=_show_version, is_eager=True),
    ] = False,
) -> None:
    if context.invoked_subcommand is None:
        output.say(context.get_help())
        raise typer.Exit(ExitCode.USAGE)


def program(arguments: list[str]) -> int:
    """Run one command line without error handling, and return its exit code.

    Raises:
        SystemExit: the reader of stdout has closed it (exit 1, set by typer).
    """
    code = app(arguments, prog_name="oomdoctor", standalone_mode=False)
    return code if isinstance(code, int) else ExitCode.OK


def main() -> NoReturn:
    """The `oomdoctor` command."""
    output.replace_closed_streams()
    sys.exit(run(sys.argv[1:]))


def run(arguments: list[str]) -> int:
    """Run one command line and return its exit code, whatever happens."""
    if arguments[:1] in (["help"], ["version"]):  # as git and pip have them
        arguments = [*arguments[1:], f"--{arguments[0]}"]
    started = output.Started()
    surveys = arguments[:1] in (["probe"], ["plan"])
    if surveys and not _wants_silence(arguments):
        # Printed before typer parses the command line, which is slow: a survey responds at once.
        output.say(f"oomdoctor {__version__}")
    try:
        # A survey has lower bounds to print even if it is stopped before it starts.
        with stop_on_signals() if surveys else nullcontext():
            return program(arguments)
    except KeyboardInterrupt:
        error = interrupted()
    except OomDoctorError as raised:
        output.show_traceback(raised)
        error = raised
    except Exception as raised:  # noqa: BLE001 - nothing may get past here
        output.show_traceback(raised)
        error = _usage_error(raised) or _disk_error(raised) or _internal_error(raised)
    output.say_error(error.message, error.hint)
    if wants_json(arguments) and error.code != "output_failed":
        return _print_envelope(arguments, error, started)
    return error.exit_code


def wants_json(arguments: list[str]) -> bool:
    """Whether the command line asks for JSON, even if it cannot be parsed."""
    options = arguments[: arguments.index("--")] if "--" in arguments else arguments
    return any(
        word in ("--json", "--format=json") or (before, word) == ("--format", "json")
        for before, word in pairwise(["", *options])
    )


def _wants_silence(arguments: list[str]) -> bool:
    return any(
        word in ("--quiet", "--help") or re.fullmatch("-[a-z]*[qh][a-z]*", word)
        for word in arguments
    )


def _usage_error(error: Exception) -> OomDoctorError | None:
    # Where click's exceptions live depends on the version of typer, so they are recognised by
    # `format_message` and an exit code.
    format_message = getattr(error, "format_message", None)
    if format_message is None:
        return None
    context = getattr(error, "ctx", None)
    path = context.command_path if context else "oomdoctor"
    typed = getattr(error, "option_name", "")
    elsewhere = _ELSEWHERE.get((path, typed)) or _instead(typed, context)
    return OomDoctorError(
        "usage",
        str(format_message()).rstrip("."),
        elsewhere or f"run `{path} --help`",
        ExitCode(getattr(error, "exit_code", ExitCode.USAGE)),
    )


def _instead(typed: str, context: Any) -> str | None:
    """What the command has instead of an option by another program's name; None if nothing."""
    if context is None or not typed:
        return None
    has = {name for parameter in context.command.params for name in parameter.opts}
    from oomdoctor.cli.option_reader import SIZE_KEYS
    from oomdoctor.records.configuration.keys import KEYS

    word = typed.lstrip("-").replace("-", "_")
    if "--output" in has and (ending := _ENDINGS.get(word)):
        return f"type `--output FILE.{ending}`; or run `{context.command_path} --help`"
    key = next((row.name for row in KEYS.values() if word in (row.name, *row.names)), None)
    own = next((name for name, of in SIZE_KEYS.items() if of == key and name in has), None)
    if own is not None:
        return f"type `{own} N`; or run `{context.command_path} --help`"
    if key is None or not {"--rung", "--recipe"} <= has:
        return None
    return f"a configuration has it: `--rung {key}=VALUE`; see `oomdoctor recipes`"


def _disk_error(error: Exception) -> OomDoctorError | None:
    """A disk without space or quota, wherever it was written to."""
    if not isinstance(error, OSError) or error.errno not in (errno.ENOSPC, errno.EDQUOT):
        return None
    name = error.filename2 or error.filename
    return machine_error(
        "state_unwritable",
        f"cannot write{f' {name}' if name else ''}: {error.strerror}",
        "free some space, or set XDG_STATE_HOME, XDG_CACHE_HOME and TMPDIR to folders with space",
    )


def _internal_error(error: Exception) -> OomDoctorError:
    first = (str(error).strip().splitlines() or ["no message"])[0]
    return OomDoctorError(
        "internal",
        f"internal error: {type(error).__name__}: {first}",
        "run it again with OOMDOCTOR_DEBUG=1 and report the traceback",
        ExitCode.INTERNAL,
    )


def _print_envelope(arguments: list[str], error: OomDoctorError, started: output.Started) -> int:
    from oomdoctor.records.report.report import Fault
    from oomdoctor.render.formats.json_document import to_json

    report = started.report(
        next((word for word in arguments if word in COMMANDS), "oomdoctor"),
        _STATUS.get(error.exit_code, "error"),
        error.exit_code,
        errors=(Fault(error.code, error.message, error.hint),),
    )
    try:
        output.print_answer(to_json(report), utf8=True)
    except BrokenPipeError:
        output.abandon_stdout()
        return ExitCode.INTERNAL
    except OomDoctorError as refused:
        output.say_error(refused.message, refused.hint)
        return refused.exit_code
    return error.exit_code
