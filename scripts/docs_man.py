"""The man page oomdoctor(1), made from the same code as --help: docs/man/oomdoctor.1.

scripts/build_docs.py writes it. The macros are those of man(7), which groff and mandoc both read.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import typer
from build_schema import field_docs
from docs_reference import _meaning

from oomdoctor import __version__
from oomdoctor.cli.main import app
from oomdoctor.errors import ExitCode
from oomdoctor.system import environment

PAGE = Path(__file__).parents[1] / "docs" / "man" / "oomdoctor.1"
_FILES = (
    ("$XDG_STATE_HOME/oomdoctor/runs", "The runs of probe and plan."),
    ("$XDG_STATE_HOME/oomdoctor/cases", "What run kept of commands that ran out of memory."),
    ("$XDG_STATE_HOME/oomdoctor/calibration", "What probes learned about this machine."),
    ("$XDG_CACHE_HOME/oomdoctor", "Simulations and environments; it can be deleted."),
)


def man_page() -> str:
    """The whole page."""
    return "\n".join(_page()) + "\n"


def _page() -> Iterator[str]:
    root: Any = typer.main.get_command(app)
    yield '.\\" Made by scripts/build_docs.py from the code; do not edit.'
    yield f'.TH OOMDOCTOR 1 "" "oomdoctor {__version__}" "User Commands"'
    yield ".SH NAME"
    yield r"oomdoctor \- find out which training configuration of a model fits a GPU"
    yield ".SH SYNOPSIS"
    yield r".B oomdoctor"
    yield r"[\fIOPTIONS\fR] \fICOMMAND\fR [\fIARGS\fR]..."
    yield ".SH DESCRIPTION"
    yield _text(root.help)
    yield from _examples(root)
    yield ".SH OPTIONS"
    yield from _parameters(root)
    yield from _item("-h, --help", "Show the help; also after any command.")
    yield from _item("--help-all", "Show all options of plan or probe.")
    yield ".SH COMMANDS"
    for name, command in _commands(root):
        yield from _command(name, command)
    yield ".SH EXIT STATUS"
    meanings = field_docs(ExitCode)
    for code in ExitCode:
        yield from _item(str(int(code)), meanings[code.name])
    yield ".SH ENVIRONMENT"
    for name, said in environment.meanings().items():
        yield from _item(name, said)
    yield ".SH FILES"
    for name, said in _FILES:
        yield from _item(name, said)
    yield ".SH SEE ALSO"
    yield r".BR nvidia\-smi (1),"
    yield r".BR sacct (1)"


def _commands(root: Any) -> Iterator[tuple[str, Any]]:
    """Every command by its whole name; those of a group after the group."""
    for name, command in root.commands.items():
        yield name, command
        for inner, one in getattr(command, "commands", {}).items():
            yield f"{name} {inner}", one


def _command(name: str, command: Any) -> Iterator[str]:
    arguments = [p for p in command.params if p.param_type_name == "argument"]
    shown = () if name == "run" else arguments  # its command follows --
    words = " ".join(f"[{p.metavar}]" + "..." * (p.nargs == -1) for p in shown)
    ending = r" \-\- COMMAND [ARGS]..." if name == "run" else ""
    yield f".SS {_escaped(f'oomdoctor {name} [OPTIONS] {words}'.strip())}{ending}"
    yield _text(command.help or "")
    yield from _parameters(command)
    yield from _examples(command)


def _parameters(command: Any) -> Iterator[str]:
    for parameter in command.params:
        if getattr(parameter, "hidden", False) or parameter.name == "help":
            continue
        if parameter.param_type_name == "argument":
            name = parameter.metavar or parameter.name.upper()
        else:
            value = "" if parameter.is_flag else f" {parameter.metavar or 'TEXT'}"
            spellings = [*parameter.opts, *parameter.secondary_opts]
            name = ", ".join(f"{spelling}{value}" for spelling in spellings)
        yield from _item(name, _meaning(parameter))


def _examples(command: Any) -> Iterator[str]:
    epilog = inspect.cleandoc((command.epilog or "").replace("\b", ""))
    lines = [line.strip() for line in epilog.splitlines() if line.strip().startswith("oomdoctor ")]
    if lines:
        yield ".P"
        yield "Examples:"
        yield ".P"
        yield ".nf"
        yield ".RS"
        yield from (_escaped(line) for line in lines)
        yield ".RE"
        yield ".fi"


def _item(name: str, said: str) -> Iterator[str]:
    yield ".TP"
    yield f".B {_escaped(name)}"
    yield _text(said)


def _text(text: str) -> str:
    """Paragraphs; a line that begins like a request does not become one."""
    paragraphs = [" ".join(part.split()) for part in re.split(r"\n\s*\n", text.strip())]
    return "\n.P\n".join(_escaped(part).replace("`", "") for part in paragraphs if part)


def _escaped(text: str) -> str:
    plain = text.replace("\\", r"\e").replace("-", r"\-")
    return rf"\&{plain}" if plain.startswith((".", "'")) else plain
