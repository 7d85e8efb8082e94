"""The two streams: stdout gets the answer, once; stderr gets everything else.

This module only prints text. It adapts to the terminal, and it survives a closed pipe and an
encoding without some of our characters.
"""

from __future__ import annotations

import os
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

import typer

from oomdoctor.errors import ExitCode, OomDoctorError, usage_error
from oomdoctor.render.formats import Style, format_of_file

INDENT = " " * 7  # aligns continuation lines with the text after `error: ` and `hint:  `

if TYPE_CHECKING:
    from oomdoctor.records.report.report import Report, Status

PAGE_WIDTH = 120
_SIGNS = "±─·"  # the characters beyond ASCII on our pages; each has a replacement
_STAND_INS = str.maketrans({"±": "+-", "─": "-", "·": "-"})


def screen(stream: TextIO) -> Style:
    """How a page on a stream looks; these variables have their usual meaning.

    `COLUMNS` is the width. `NO_COLOR` turns colors off. `FORCE_COLOR` turns them on where there is
    no terminal. `TERM=dumb` means a terminal without colors and without a moving cursor.
    """
    from oomdoctor.system.environment import variable

    terminal = stream.isatty()
    dumb = variable("TERM") == "dumb"
    width = shutil.get_terminal_size((PAGE_WIDTH, 24)).columns
    moving = terminal and not dumb
    forced = variable("FORCE_COLOR")
    color = (bool(forced) or moving) and forced != "0" and not variable("NO_COLOR")
    signs = can_say(_SIGNS, stream.encoding or "utf-8")
    return Style(terminal, width, color, signs=signs, moving=moving)


def publish(render: Callable[[str, Style], str], chosen: str, file: Path | None = None) -> None:
    """Print an answer in the chosen format, and also write it to `file` if there is one.

    `render` makes the text in a format and a style. The file is written first, so it is complete
    even if stdout is closed early; stdout gets the answer even if the file cannot be written.

    Raises:
        typer.Exit: the file could not be written (exit 1); the error has been printed.
    """
    refused: OomDoctorError | None = None
    if file is not None:
        try:
            page = render(format_of_file(file.name) or chosen, Style(width=PAGE_WIDTH))
            write_file(file, page)
        except OomDoctorError as error:
            refused = error
    print_answer(render(chosen, screen(sys.stdout)), utf8=chosen in ("json", "html"))
    if refused is not None:
        say_error(refused.message, refused.hint)
        raise typer.Exit(refused.exit_code)


class Started:
    """When a command began; `report` is its result."""

    def __init__(self) -> None:
        self._clock, self._at = time.monotonic(), datetime.now(UTC)

    def report(self, command: str, status: Status, code: int, **fields: Any) -> Report:
        """The report of the command until now, with the fields that it found."""
        from oomdoctor.records.report.report import bare_report

        bare = bare_report(command, status, code, self._at, time.monotonic() - self._clock)
        return replace(bare, **fields)


def rendered(report: Report, format: str, style: Style, *, verbose: bool) -> str:
    """A report in a format, with all that is known if `verbose`."""
    from oomdoctor.render import render_report

    return render_report(report, format, replace(style, verbose=verbose))


def publish_report(report: Report, chosen: str, file: Path | None, *, verbose: bool) -> None:
    """Print a report in the chosen format, and also write it to `file` if there is one."""
    publish(partial(rendered, report, verbose=verbose), chosen, file)


def print_answer(text: str, *, utf8: bool = False) -> None:
    """Write the answer to stdout, with a final newline, and flush it.

    With `utf8` (JSON), the text is UTF-8 whatever the locale says. In other text, a character that
    stdout cannot encode is replaced.

    Raises:
        BrokenPipeError: the reader of stdout has closed it.
        OomDoctorError: writing fails for another reason, such as a full disk (exit 1).
    """
    with _answering():
        _write_answer(text, utf8=utf8)


@contextmanager
def _answering() -> Iterator[None]:
    """Errors of stdout as those of this program."""
    try:
        yield
    except BrokenPipeError:
        raise
    except OSError as error:
        abandon_stdout()
        raise OomDoctorError(
            "output_failed",
            f"cannot write the answer to stdout: {error.strerror or error}",
            None,
            ExitCode.INTERNAL,
        ) from error


def print_content(content: str | bytes) -> None:
    """Write a whole file to stdout, such as a page or a picture.

    Raises:
        BrokenPipeError: the reader of stdout has closed it.
        OomDoctorError: writing fails for another reason, such as a full disk (exit 1).
    """
    if isinstance(content, str):
        print_answer(content, utf8=True)
        return
    with _answering():
        sys.stdout.flush()
        sys.stdout.buffer.write(content)
        sys.stdout.buffer.flush()


def _write_answer(text: str, *, utf8: bool) -> None:
    text = text if text.endswith("\n") else text + "\n"
    encoding = sys.stdout.encoding or "utf-8"
    if not can_say(text, encoding):
        if utf8 and hasattr(sys.stdout, "buffer"):
            sys.stdout.flush()
            sys.stdout.buffer.write(text.encode())
            sys.stdout.buffer.flush()
            return
        if not can_say(_SIGNS, encoding):
            text = text.translate(_STAND_INS)
        text = text.encode(encoding, "replace").decode(encoding)
    sys.stdout.write(text)
    sys.stdout.flush()


def can_say(text: str, encoding: str) -> bool:
    """Whether an encoding has all characters of a text."""
    try:
        text.encode(encoding)
    except UnicodeEncodeError:
        return False
    return True


def say(text: str) -> None:
    """Write a line to stderr, with control characters made visible."""
    write_patiently("\n".join(map(_visible, text.split("\n"))) + "\n")


def say_progress(line: str) -> None:
    """Write a line of progress to stderr, its outcome in color where colors are on."""
    write_patiently(progress_text(line) + "\n")


def progress_text(line: str) -> str:
    """The line as stderr shows it."""
    if not screen(sys.stderr).color:
        return _visible(line)
    from oomdoctor.render.text import painted_outcome

    return painted_outcome(_visible(line))


def write_patiently(text: str) -> None:
    """Write to stderr. A stderr that is closed or cannot encode a character never ends a survey."""
    encoding = sys.stderr.encoding or "utf-8"
    with suppress(OSError, ValueError):
        sys.stderr.write(text.encode(encoding, "replace").decode(encoding))
        sys.stderr.flush()


def say_error(message: str, hint: str | None) -> None:
    """Print what failed and how to fix it to stderr."""
    say("error: " + message.replace("\n", "\n" + INDENT))
    if hint:
        say("hint:  " + hint.replace("\n", "\n" + INDENT))


def show_traceback(error: Exception) -> None:
    """Show where an error came from, if OOMDOCTOR_DEBUG asks for it."""
    from oomdoctor.system.environment import variable

    if variable("OOMDOCTOR_DEBUG") not in (None, "", "0"):
        import traceback

        say("".join(traceback.format_exception(error)).rstrip())


def replace_closed_streams() -> None:
    """Connect a stream that is closed from the start (`2>&-`) to the null device.

    It stays open until the process ends.
    """
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "w"))  # noqa: SIM115, PTH123


def abandon_stdout() -> None:
    """Redirect a broken stdout to the null device, so that the interpreter can exit cleanly."""
    with suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def check_writable(path: Path, option: str = "--output") -> None:
    """Check before the work that the file of an option can be written after it.

    Raises:
        OomDoctorError: the path is a folder, or its folder is missing or not writable (exit 2).
    """
    folder = path.absolute().parent
    if path.is_dir():
        raise usage_error("bad_output", f"{option}: {path} is a folder, not a file")
    if not folder.is_dir():
        raise usage_error("bad_output", f"{option}: the folder {folder} does not exist")
    if not os.access(folder, os.W_OK):
        raise usage_error("bad_output", f"{option}: the folder {folder} is not writable")


def write_file(path: Path, content: str | bytes) -> None:
    """Write the whole file or nothing, so a reader never sees half a document.

    A text is written as UTF-8 with a final newline.

    Raises:
        OomDoctorError: the file cannot be written.
    """
    from oomdoctor.system.store.record_files import whole_or_not

    path = path.resolve()
    if isinstance(content, str):
        content = (content if content.endswith("\n") else content + "\n").encode()
    try:
        if path.exists() and not path.is_file():  # never replace a device or a named pipe
            path.write_bytes(content)
            return
        with whole_or_not(path) as beside:
            beside.write_bytes(content)
    except OSError as error:
        raise OomDoctorError("output_failed", f"cannot write {path}: {error.strerror}") from error


def _visible(line: str) -> str:
    if line.isascii() and line.isprintable():
        return line  # keeps the slow import below out of the very first line
    from oomdoctor.render.text import escape

    return escape(line)
