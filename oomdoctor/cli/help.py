"""Where our commands differ from typer's: how help looks and is printed, and what Ctrl-C does.

Help is plain text in named sections, not rich's boxes: it stays readable in a pipe and loads no
library. typer prints it to stdout itself, so a full disk would look like a bug in oomdoctor. It
also turns Ctrl-C into exit code 130 without a message.
"""

from __future__ import annotations

import inspect
import shlex
from copy import copy
from typing import Any, cast

from typer.core import TyperCommand, TyperGroup

from oomdoctor.cli.options import COMMON
from oomdoctor.cli.streams import output
from oomdoctor.errors import ExitCode, OomDoctorError, machine_error, usage_error

_WIDEST_NAME = 26  # longer option names get a line of their own
_MOST_OTHERS = 14  # options beside the common ones that --help still shows
_ALL = "oomdoctor.all_options"  # in the context: --help-all was typed
_BEHIND = "oomdoctor.command_behind"  # in the context: the words after `--`
_INSTALL, _SHOW = "--install-completion", "--show-completion"
_SHELLS = ("bash", "zsh", "fish")


class Command(TyperCommand):
    """A command."""

    def __init__(self, *args: Any, **words: Any) -> None:
        super().__init__(*args, **words)
        parameters, verb = list[Any](self.params), cast(Any, self.callback)
        lost = [p for p in parameters if p.param_type_name == "argument" and not p.help]
        if lost:  # a new click overwrites the help of an old typer's argument with None
            declared = inspect.signature(verb, eval_str=True).parameters
            for parameter in lost:
                parameter.help = declared[parameter.name].annotation.__metadata__[0].help

    def get_help_option(self, ctx: Any) -> Any:
        """The `--help` option."""
        return _printed_here(super().get_help_option(ctx))

    def get_params(self, ctx: Any) -> list[Any]:
        """The parameters, with `--help`, and `--help-all` where `--help` leaves some out."""
        parameters: list[Any] = super().get_params(ctx)
        rest = [p for p in parameters if getattr(p, "rich_help_panel", None) != COMMON]
        if len(rest) <= _MOST_OTHERS or not ctx.help_option_names:
            return parameters
        every = copy(parameters[-1])
        every.name, every.opts, every.callback = "help_all", ["--help-all"], _print_all_help
        every.help = "Show all options."
        return [*parameters, every]

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        """What follows the command in the usage line; versions of click differ in it."""
        arguments = [p for p in self.get_params(ctx) if p.param_type_name == "argument"]
        return ["[OPTIONS]", *(f"[{p.metavar}]" + "..." * (p.nargs == -1) for p in arguments)]

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write the arguments and the options, section by section."""
        parameters = self.get_params(ctx)
        if parameters[-1].name == "help_all" and not ctx.meta.get(_ALL):
            parameters = [
                p
                for p in parameters
                if p.param_type_name == "argument"
                or getattr(p, "rich_help_panel", None) == COMMON
                or "--help" in p.opts
                or p.name == "help_all"
            ]
        _write_sections(parameters, ctx, formatter)


class Wrapper(Command):
    """A command that runs another one, which follows `--`."""

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        """What follows the command in the usage line."""
        return ["[OPTIONS] -- COMMAND [ARGS]..."]

    def parse_args(self, ctx: Any, args: list[str]) -> Any:
        """Parse our own options.

        Raises:
            OomDoctorError: a command is there, but no `--` before it (exit 2).
        """
        if "--" not in args:
            ctx.allow_interspersed_args = False
            rest = super().parse_args(ctx, list(args))
            command = list(ctx.params.get("command") or ())
            if rest or any(command):
                own = args[: len(args) - len(command)]
                line = shlex.join([*ctx.command_path.split(), *own, "--", *command])
                raise usage_error("no_dashes", "put -- before the command to run", line)
            return rest
        return super().parse_args(ctx, args)


class Prover(Command):
    """A command that with --verify runs another one, which follows `--`."""

    def parse_args(self, ctx: Any, args: list[str]) -> Any:
        """Parse our own options; the command to run is left in the context."""
        if "--verify" in args and "--" in args:
            place = args.index("--")
            ctx.meta[_BEHIND] = tuple(args[place + 1 :])
            args = args[:place]
        return super().parse_args(ctx, args)


def command_behind(context: Any) -> tuple[str, ...]:
    """The command that follows `--` behind a `Prover`; empty if there is none."""
    command: tuple[str, ...] = context.meta.get(_BEHIND, ())
    return command


class Commands(TyperGroup):
    """A group of commands."""

    def get_help_option(self, ctx: Any) -> Any:
        """The `--help` option."""
        return _printed_here(super().get_help_option(ctx))

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write the commands, then the options."""
        self.format_commands(ctx, formatter)
        _write_sections(self.get_params(ctx), ctx, formatter)

    def parse_args(self, ctx: Any, args: list[str]) -> Any:
        """Parse our own options; a shell may be named after those of completion.

        Raises:
            OomDoctorError: it is no shell with completion (exit 2), or its files cannot be
                written (exit 5).
        """
        option, equals, shell = args[0].partition("=") if args else ("", "", "")
        named = [shell] if equals else args[1:2]
        if option in (_INSTALL, _SHOW) and named and not named[0].startswith("-"):
            _complete(option, named[0])
            ctx.exit()
        return super().parse_args(ctx, args)

    def invoke(self, ctx: Any) -> Any:
        """Run the command that was typed.

        Raises:
            OomDoctorError: it was interrupted (exit 130).
        """
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            raise interrupted() from None


def _complete(option: str, shell: str) -> None:
    """Install or show the completion of a shell; without a name, typer asks which shell runs."""
    from typer._completion_shared import get_completion_script, install

    if shell not in _SHELLS:
        raise usage_error(
            "bad_option",
            f"{option}: {shell!r} is not one of {', '.join(_SHELLS)}",
            f"oomdoctor {option} {_SHELLS[0]}",
        )
    names = {"prog_name": "oomdoctor", "complete_var": "_OOMDOCTOR_COMPLETE"}
    if option == _SHOW:
        output.print_answer(get_completion_script(**names, shell=shell))
        return
    try:
        _, file = install(shell, **names)
    except OSError as error:
        raise machine_error(
            "state_unwritable",
            f"cannot write {error.filename}: {error.strerror}",
            f"print it instead: oomdoctor {_SHOW} {shell}",
        ) from None
    output.say(f"wrote {file} for {shell}; open a new terminal")


def interrupted() -> OomDoctorError:
    """The error for Ctrl-C."""
    return OomDoctorError("interrupted", "interrupted", None, ExitCode.INTERRUPTED)


def _write_sections(parameters: list[Any], context: Any, formatter: Any) -> None:
    sections: dict[str, list[tuple[str, str]]] = {}
    named = any(getattr(parameter, "rich_help_panel", None) for parameter in parameters)
    rest = "Other options" if named else "Options"
    for parameter in parameters:
        record = parameter.get_help_record(context)
        if record is None:
            continue
        if parameter.param_type_name == "argument":
            sections.setdefault("Arguments", []).append((parameter.metavar, parameter.help))
        else:
            panel = getattr(parameter, "rich_help_panel", None) or rest
            # Old versions of typer escape brackets for rich, even in plain help.
            sections.setdefault(panel, []).append((record[0], record[1].replace("\\[", "[")))
    # One width for all sections, so that their texts line up.
    names = [name for rows in sections.values() for name, _ in rows]
    width = max((len(name) for name in names if len(name) <= _WIDEST_NAME), default=0)
    for section, rows in sections.items():
        with formatter.section(section):
            formatter.write_dl([(name.ljust(width), text) for name, text in rows], width)


def _printed_here(option: Any) -> Any:
    if option is not None:
        option.callback = _print_help
        option.help = "Show this help."
    return option


def _print_all_help(context: Any, parameter: Any, asked: bool) -> None:
    context.meta[_ALL] = asked
    _print_help(context, parameter, asked)


def _print_help(context: Any, _: Any, asked: bool) -> None:
    if asked and not context.resilient_parsing:
        output.print_answer(context.get_help())
        context.exit()
