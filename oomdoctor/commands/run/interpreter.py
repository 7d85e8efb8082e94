"""The Python that a command runs: its first word, the shebang of a launcher, or PATH."""

from __future__ import annotations

import os
import re
import shlex
import shutil
from pathlib import Path

from oomdoctor.errors import machine_error, usage_error
from oomdoctor.system.environment import variable

_PYTHON = re.compile(r"(?:python|pypy)[\d.]*")
# How pip writes a shebang that is too long for the kernel.
_LONG_SHEBANG = re.compile(r"""^'''exec' (?:"([^"]+)"|(\S+)) """, re.MULTILINE)
_HEAD_BYTES = 4096


def found_command(word: str, path: str | None = None) -> Path:
    """The file that a command's first word starts; `path` is its PATH, by default ours.

    Raises:
        OomDoctorError: there is no such program, or it cannot be run (exit 2).
    """
    program = shutil.which(word, path=path)
    if program is not None:
        return Path(program)
    if word.endswith(".py") and Path(word).is_file():
        raise usage_error(
            "command_not_found",
            f"{word} is a script, not a program",
            f"put python before it: -- python {shlex.quote(word)} ...",
        )
    if os.sep in word and Path(word).exists():
        raise usage_error("command_not_found", f"{word} cannot be run", f"chmod +x {word}")
    raise usage_error(
        "command_not_found",
        f"there is no program {word!r}",
        "check the name and PATH; what comes after -- is run as it is, without a shell",
    )


def python_of(command: tuple[str, ...]) -> Path | None:
    """The interpreter that a command will run; None if it cannot be said.

    Links are not resolved: a link is what makes an interpreter that of its environment.
    """
    # The first one, or a later one: `srun python x.py`, `uv run torchrun x.py`.
    for word in command:
        if word.startswith("-") or "=" in word:
            continue
        python = _python_behind(shutil.which(word))
        if python is not None:
            return python
    for name in ("python", "python3"):
        path = shutil.which(name)
        if path is not None:
            return Path(path)
    return None


def _python_behind(path: str | None) -> Path | None:
    """The interpreter itself, or the one that runs a script; None for other programs."""
    if path is None:
        return None
    if _PYTHON.fullmatch(Path(path).name):
        return Path(path).absolute()
    try:
        with Path(path).open("rb") as file:
            head = file.read(_HEAD_BYTES).decode("utf-8", "replace")
    except OSError:
        return None
    if not head.startswith("#!"):
        return None
    words = head[2:].split("\n", 1)[0].split()
    if words and Path(words[0]).name == "env":
        named = [word for word in words[1:] if not word.startswith("-") and "=" not in word]
        return _python_behind(shutil.which(named[0])) if named else None
    if words and _PYTHON.fullmatch(Path(words[0]).name):
        return Path(words[0])
    long = _LONG_SHEBANG.search(head)
    return Path(long[1] or long[2]) if long else None


def chosen_python(given: str | None, command: tuple[str, ...]) -> Path:
    """The interpreter to prepare the emulation for: `--python`, or that of the command.

    Raises:
        OomDoctorError: it cannot be found (exit 2 or 5).
    """
    if given is not None:
        program = shutil.which(os.path.expanduser(given))  # noqa: PTH111 - a word, not only a path
        if program is None:
            raise usage_error("bad_option", f"--python: there is no program {given!r}")
        return Path(program).absolute()
    python = python_of(command)
    if python is None:
        raise machine_error(
            "no_python", f"cannot tell which Python {command[0]} runs", "name it: --python PATH"
        )
    return python


def path_of(python: Path, path: str | None = None) -> str:
    """A PATH, by default ours, on which this interpreter and the launchers beside it come first."""
    return os.pathsep.join(filter(None, (str(python.parent), path or variable("PATH"))))
