"""The two streams: stdout carries the answer, once; stderr everything else.

Nothing here knows what an answer is about: it prints text, adapts to the terminal, survives a
closed pipe and a stream that cannot say every character.
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, TextIO

import typer

from oomdoctor.errors import ExitCode, OomDoctorError, usage_error
from oomdoctor.render.formats import format_of_file

INDENT = " " * 7  # continuation lines stand under the text after `error: ` and `hint:  `

if TYPE_CHECKING:
    from oomdoctor.render.lists.listing import ListingFormat

PAGE_WIDTH = 120
_SIGNS = "±─·"  # what the pages use beyond ASCII, each with an ASCII stand-in of its own
_STAND_INS = str.maketrans({"±": "+-", "─": "-", "·": "-"})


@dataclass(frozen=True, slots=True)
class Screen:
    """How a stream wants its text.

    `terminal`: somebody is looking. `width` in columns. `moving`: the cursor can go back.
    `signs`: it can say the few signs beyond ASCII that the pages use.
    """

    terminal: bool
    width: int
    moving: bool
    color: bool
    signs: bool = True


def screen(stream: TextIO) -> Screen:
    """What the stream is; `COLUMNS`, `NO_COLOR` and `TERM=dumb` have their usual meaning."""
    from oomdoctor.system.environment import variable

    terminal = stream.isatty()
    dumb = variable("TERM") == "dumb"
    width = shutil.get_terminal_size((PAGE_WIDTH, 24)).columns
    moving = terminal and not dumb
    color = moving and not variable("NO_COLOR")
    return Screen(terminal, width, moving, color, _can_say(_SIGNS, stream.encoding or "utf-8"))


def publish(render: Callable[[str, Screen], str], chosen: str, file: Path | None = None) -> None:
    """Print an answer in the chosen format, and write it to a file as well.

    `render` makes the text for a format and a screen. The file is written first, so that a reader
    who closes stdout early does not cost it, and stdout gets its answer even if the disk is full.

    Raises:
        typer.Exit: the file could not be written (exit 1); the error has been told.
    """
    refused: OomDoctorError | None = None
    if file is not None:
        try:
            page = Screen(terminal=False, width=PAGE_WIDTH, moving=False, color=False)
            write_file(file, render(format_of_file(file.name) or chosen, page))
        except OomDoctorError as error:
            refused = error
    print_answer(render(chosen, screen(sys.stdout)), utf8=chosen == "json")
    if refused is not None:
        say_error(refused.message, refused.hint)
        raise typer.Exit(refused.exit_code)


class Listing(Protocol):
    """A listing of `render` with its content bound."""

    def __call__(self, format: ListingFormat, *, width: int, color: bool) -> str: ...


def publish_listing(listing: Listing, as_json: bool) -> None:
    """Print a listing: JSON, a table on a terminal, plain full-width rows in a pipe."""
    style = screen(sys.stdout)
    chosen: ListingFormat = "json" if as_json else "table" if style.terminal else "plain"
    print_answer(listing(chosen, width=style.width, color=style.color), utf8=as_json)


def print_answer(text: str, *, utf8: bool = False) -> None:
    """Write the answer to stdout, with a final newline, and flush it.

    `utf8` is for documents whose encoding is fixed (JSON): they keep it whatever the locale says.
    Other text loses a character that stdout cannot say, never the whole answer.

    Raises:
        BrokenPipeError: the reader of stdout has gone.
        OomDoctorError: stdout refuses for another reason, such as a full disk (exit 1).
    """
    try:
        _write_answer(text, utf8=utf8)
    except BrokenPipeError:
        raise
    except OSError as error:
        abandon_stdout()
        raise OomDoctorError(
            "output_failed",
            f"the answer cannot be written to stdout: {error.strerror or error}",
            None,
            ExitCode.INTERNAL,
        ) from error


def _write_answer(text: str, *, utf8: bool) -> None:
    text = text if text.endswith("\n") else text + "\n"
    encoding = sys.stdout.encoding or "utf-8"
    if not _can_say(text, encoding):
        if utf8 and hasattr(sys.stdout, "buffer"):
            sys.stdout.flush()
            sys.stdout.buffer.write(text.encode())
            sys.stdout.buffer.flush()
            return
        if not _can_say(_SIGNS, encoding):
            text = text.translate(_STAND_INS)
        text = text.encode(encoding, "replace").decode(encoding)
    sys.stdout.write(text)
    sys.stdout.flush()


def _can_say(text: str, encoding: str) -> bool:
    try:
        text.encode(encoding)
    except UnicodeEncodeError:
        return False
    return True


def say(text: str) -> None:
    """Write a line to stderr, with control characters made visible."""
    write_patiently("\n".join(map(_visible, text.split("\n"))) + "\n")


def write_patiently(text: str) -> None:
    """Write to stderr. A stderr that is closed or cannot encode a character never ends a survey."""
    encoding = sys.stderr.encoding or "utf-8"
    with suppress(OSError, ValueError):
        sys.stderr.write(text.encode(encoding, "replace").decode(encoding))
        sys.stderr.flush()


def say_error(message: str, hint: str | None) -> None:
    """What failed and the line to type, on stderr."""
    say("error: " + message.replace("\n", "\n" + INDENT))
    if hint:
        say("hint:  " + hint.replace("\n", "\n" + INDENT))


def replace_closed_streams() -> None:
    """Give a process that was started with a closed stream (`2>&-`) one that leads nowhere.

    It stays open until the process ends.
    """
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "w"))  # noqa: SIM115, PTH123


def abandon_stdout() -> None:
    """Let nobody write to a pipe that its reader has closed, not even the interpreter's exit."""
    with suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def check_writable(path: Path) -> None:
    """Find out before the work whether the file can be written after it.

    Raises:
        OomDoctorError: the path is a folder, or its folder is missing or closed to us (exit 2).
    """
    folder = path.absolute().parent
    if path.is_dir():
        raise usage_error("bad_output", f"--output: {path} is a folder, not a file")
    if not folder.is_dir():
        raise usage_error("bad_output", f"--output: there is no folder {folder}")
    if not os.access(folder, os.W_OK):
        raise usage_error("bad_output", f"--output: the folder {folder} is not writable")


def write_file(path: Path, text: str) -> None:
    """Write the whole file or nothing: a reader never sees half a document.

    Raises:
        OomDoctorError: the disk refuses.
    """
    path = path.resolve()
    text = text if text.endswith("\n") else text + "\n"
    try:
        if path.exists() and not path.is_file():  # a device or a named pipe: never replace it
            path.write_text(text, encoding="utf-8")
            return
        handle, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
        try:
            with os.fdopen(handle, "w", encoding="utf-8") as file:
                file.write(text)
            Path(name).chmod(0o666 & ~_umask())
            Path(name).replace(path)
        except BaseException:
            Path(name).unlink(missing_ok=True)
            raise
    except OSError as error:
        raise OomDoctorError(
            "output_failed", f"{path} could not be written: {error.strerror}"
        ) from error


def _visible(line: str) -> str:
    if line.isascii() and line.isprintable():
        return line  # the first line of all is such a one, and the import below takes time
    from oomdoctor.render.text import escape

    return escape(line)


def _umask() -> int:
    # Reading the mask means setting it; the second call puts it back.
    mask = os.umask(0)
    os.umask(mask)
    return mask
