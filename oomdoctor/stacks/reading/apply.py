"""Applies a table of names to one document."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from oomdoctor.errors import OomDoctorError, usage_error
from oomdoctor.records.report.user_training import Document, NotTaken, Said
from oomdoctor.stacks.names.row import NotTakenError, Table, flat, in_names, shown
from oomdoctor.stacks.names.values import is_auto
from oomdoctor.stacks.partial_config import PartialConfig
from oomdoctor.stacks.programs.program import Program

# Values with which a setting does nothing.
_OFF: tuple[object, ...] = (None, False, 0, 0.0, "", [])


@dataclass(slots=True)
class Taken:
    """What one document says: values by key, where they are from, and what is left out.

    `defaults` are the values of the keys on which the document is silent. `undecided` are settings
    whose value decides nothing; another value would.
    """

    document: Document
    program: Program
    table: Table
    values: PartialConfig = field(default_factory=PartialConfig)
    said: dict[str, Said] = field(default_factory=dict)
    undecided: list[Said] = field(default_factory=list)
    not_taken: list[NotTaken] = field(default_factory=list)
    defaults: PartialConfig = field(default_factory=PartialConfig)


def apply(document: Document, program: Program, table: Table) -> Taken:
    """Read every setting of a document.

    Raises:
        OomDoctorError: a value is one that the program refuses (exit 2).
    """
    taken = Taken(document, program, table)
    for name, value in flat(document.values):
        _take(taken, name, value)
    taken.not_taken += document.left_out
    taken.defaults = table.defaults | _effective(table, document.effective)
    return taken


def _take(taken: Taken, name: str, value: object) -> None:
    row, document = taken.table.row(name), taken.document
    line = document.lines.get(name)
    what = (name, shown(value), document.path, line)
    if row is None:
        reason, matters = _why(taken.table, name, taken.program)
        if matters and any(value == off and type(value) is type(off) for off in _OFF):
            reason, matters = "is off", False
        taken.not_taken.append(NotTaken(*what, reason, matters))
        return
    try:
        read = row.read(value)
    except NotTakenError as error:
        taken.not_taken.append(NotTaken(*what, str(error), error.matters))
        return
    except ValueError as error:
        place = document.path if line is None else f"{document.path}:{line}"
        raise bad_config(place, f"{name} {error}", "fix this line") from None
    # A list, such as axolotl's plugins, holds more than what a rung would write there.
    if not read and row.write is not None and not isinstance(value, list) and not is_auto(value):
        taken.undecided.append(Said("", *what))
    taken.values |= read
    for key in read:
        taken.said[key] = Said(key, *what)


def _effective(table: Table, effective: Mapping[str, object]) -> PartialConfig:
    """The keys of the values that the program's own parser arrives at."""
    values: PartialConfig = {}
    for name, value in flat(effective):
        row = table.row(name)
        if row is None or value is None:
            continue
        try:
            values |= row.read(value)
        except ValueError:
            continue  # such as a value that a rung cannot express: the file's own line says so
    return values


def left_out(said: Said, reason: str) -> NotTaken:
    """A setting that a rung leaves out although it matters."""
    return NotTaken(said.name, said.value, said.file, said.line, reason, True)


def _why(table: Table, name: str, program: Program) -> tuple[str, bool]:
    """Why a setting without a row is not taken, and whether it matters."""
    heads = (in_names(name, table.neutral) or "", in_names(name, table.reasons) or "")
    if any(heads):
        neutral = max(heads, key=len) in table.neutral
        reason = "does not change memory or speed" if neutral else table.reasons[heads[1]]
        return reason, not neutral
    if in_names(name, table.published):
        return "oomdoctor has no such setting", True
    if table.published:
        return f"{program.package} {program.version} has no such setting", True
    return f"not a setting of {program.title} that oomdoctor knows", True


def bad_config(place: str, what: str, hint: str) -> OomDoctorError:
    """The error about a file, or a line of it."""
    return usage_error("bad_config", f"--from: {place}: {what}", hint)
