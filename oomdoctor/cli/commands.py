"""Where commands differ from typer's: help is an answer like any other, Ctrl-C is an error.

typer writes help to stdout by itself, so that a full disk behind it would look like a fault of
oomdoctor; and it makes exit code 130 of a Ctrl-C, silently.
"""

from __future__ import annotations

from typing import Any

from typer.core import TyperCommand, TyperGroup

from oomdoctor.cli.streams import output
from oomdoctor.errors import ExitCode, OomDoctorError


class Command(TyperCommand):
    """A command."""

    def get_help_option(self, ctx: Any) -> Any:
        """The option of `--help`."""
        return _printed_here(super().get_help_option(ctx))


class Commands(TyperGroup):
    """A group of commands."""

    def get_help_option(self, ctx: Any) -> Any:
        """The option of `--help`."""
        return _printed_here(super().get_help_option(ctx))

    def invoke(self, ctx: Any) -> Any:
        """Run the command that was typed.

        Raises:
            OomDoctorError: it was interrupted (exit 130).
        """
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            raise interrupted() from None


def interrupted() -> OomDoctorError:
    """The error that a Ctrl-C is."""
    return OomDoctorError("interrupted", "interrupted", None, ExitCode.INTERRUPTED)


def _printed_here(option: Any) -> Any:
    if option is not None:
        option.callback = _print_help
    return option


def _print_help(context: Any, _: Any, asked: bool) -> None:
    if asked and not context.resilient_parsing:
        output.print_answer(context.get_help())
        context.exit()
