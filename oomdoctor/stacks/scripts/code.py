"""Python code as text: literals, calls and imports, laid out as ruff and black would.

The parts of scripts are those of `data/scripts/parts.py.txt`.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterable, Mapping
from functools import cache
from string import Template
from typing import NamedTuple

from oomdoctor.package_data import data_text
from oomdoctor.stacks.quoted import quoted

WIDTH = 100


def literal(value: object) -> str:
    """A value as Python source; strings in double quotes."""
    if isinstance(value, str):
        return quoted(value)
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{literal(k)}: {literal(v)}" for k, v in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(literal, value)) + "]"
    return repr(value)


def mapping(entries: Mapping[str, str]) -> str:
    """A dict whose values are source."""
    return "{" + ", ".join(f"{literal(k)}: {v}" for k, v in entries.items()) + "}"


def literal_lines(value: object, room: int) -> str:
    """A value as source; a dict that is wider than the room has one entry a line."""
    line = literal(value)
    if len(line) <= room or not isinstance(value, Mapping):
        return line
    inner = (f"{literal(k)}: {literal_lines(v, room - 8)},\n" for k, v in value.items())
    return "{\n" + "".join(textwrap.indent(entry, "    ") for entry in inner) + "}"


def call(start: str, arguments: Mapping[str, str], *first: str, indent: int = 0) -> str:
    """A call: on one line if it fits, else one argument a line.

    `start` is what stands before the opening parenthesis. `first` are positional arguments and
    `arguments` those by keyword, all as source. `indent` is that of the first line.
    """
    parts = [*first, *(f"{name}={value}" for name, value in arguments.items())]
    line = f"{start}({', '.join(parts)})"
    if indent + len(line) <= WIDTH and "\n" not in line:
        return line
    return f"{start}(\n" + "".join(textwrap.indent(f"{part},\n", "    ") for part in parts) + ")"


def imports(names: Iterable[str]) -> str:
    """Import lines in the order of isort: `json` is a module, `pathlib:Path` a name of one."""
    wanted = sorted(set(names))
    blocks = []
    for standard in (True, False):
        mine = [n for n in wanted if (re.split("[:.]", n)[0] in _STANDARD) is standard]
        modules = [f"import {name}" for name in mine if ":" not in name]
        parts = sorted({name.split(":")[0] for name in mine if ":" in name})
        froms = [_from(part, [n for n in mine if n.startswith(f"{part}:")]) for part in parts]
        if modules or froms:
            blocks.append("\n".join((*modules, *froms)))
    return "\n\n".join(blocks)


_STANDARD = frozenset(
    {"argparse", "collections", "functools", "itertools", "json", "os", "pathlib", "re", "typing"}
)


def _from(module: str, names: list[str]) -> str:
    """One `from` line; classes stand before functions."""
    sorted_names = sorted(
        (name.split(":")[1] for name in names),
        key=lambda name: (not re.match(r"[A-Z]", name), name),
    )
    line = f"from {module} import {', '.join(sorted_names)}"
    if len(line) <= WIDTH:
        return line
    return f"from {module} import (\n" + "".join(f"    {name},\n" for name in sorted_names) + ")"


class Part(NamedTuple):
    """Lines of a main function, the names they import, and functions that they call."""

    body: str = ""
    names: tuple[str, ...] = ()
    functions: tuple[str, ...] = ()


NOTHING = Part()


def function(name: str, body: str = "", **values: str) -> Part:
    """A function of the parts of scripts, and the lines that call it."""
    text, names = _filled(name, values)
    return Part(body, names, (text,))


def lines(name: str, **values: str) -> Part:
    """Lines of the parts of scripts."""
    text, names = _filled(name, values)
    return Part(text, names)


def together(*parts: Part) -> Part:
    """Several parts as one."""
    return Part(
        "\n".join(part.body for part in parts if part.body),
        tuple(name for part in parts for name in part.names),
        tuple(dict.fromkeys(text for part in parts for text in part.functions)),
    )


def _filled(name: str, values: Mapping[str, str]) -> tuple[str, tuple[str, ...]]:
    text, names = _texts()[name]
    return Template(text).substitute(values), names


@cache
def _texts() -> dict[str, tuple[str, tuple[str, ...]]]:
    """The texts of the parts by name, and what they import."""
    texts = {}
    for block in data_text("scripts/parts.py.txt").split("\n#: ")[1:]:
        head, _, text = block.partition("\n")
        name, *names = head.split()
        texts[name] = (text.strip("\n"), tuple(names))
    return texts
