"""Reads the settings of documents with the tables of names, and puts them together.

Several files may describe one training: the training itself, its launcher, its engine.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from oomdoctor.errors import OomDoctorError, usage_error
from oomdoctor.records.facts.choices import FormatName
from oomdoctor.records.report.user_training import Document, NotTaken, Said
from oomdoctor.stacks.names.row import NotTakenError, RefusedError, Table, flat, in_names, shown
from oomdoctor.stacks.names.values import is_auto
from oomdoctor.stacks.partial_config import PartialConfig, only
from oomdoctor.stacks.programs import BY_NAME, PROGRAMS, recognize, table_of
from oomdoctor.stacks.programs.program import Program

FILES_DISAGREE = "files_disagree"
"""The code of the error that two files say different things."""
EMULATED_RUN = "oomdoctor run --emulate 8xH100 --weights synthetic -- COMMAND"
_PRECISIONS = ("mixed_bfloat16", "mixed_float16")
# Values with which a setting does nothing.
_OFF: tuple[object, ...] = (None, False, 0, 0.0, "", [])


@dataclass(slots=True)
class Taken:
    """What one document says: values by key, where they are from, and what is left out.

    `defaults` are the values of the keys on which the document is silent. `undecided` are settings
    whose value decides nothing; another value would. Of what is left out, `refused` makes any
    rung the wrong answer.
    """

    document: Document
    program: Program
    table: Table
    values: PartialConfig = field(default_factory=PartialConfig)
    said: dict[str, Said] = field(default_factory=dict)
    undecided: list[Said] = field(default_factory=list)
    not_taken: list[NotTaken] = field(default_factory=list)
    refused: list[NotTaken] = field(default_factory=list)
    defaults: PartialConfig = field(default_factory=PartialConfig)


@dataclass(frozen=True, slots=True)
class Draft:
    """What all files say together. `main` describes the training, the others launch or shard it.

    `also` are settings that say what another file says already, and those that decide nothing.
    `defaults` are for keys on which all are silent, and `sources` where each is from.
    """

    taken: tuple[Taken, ...]
    main: Taken
    values: PartialConfig
    said: dict[str, Said]
    also: tuple[Said, ...]
    not_taken: tuple[NotTaken, ...]
    defaults: PartialConfig
    sources: dict[str, str]

    @property
    def model(self) -> str | None:
        """The model that the files name."""
        return self.values.get("model")


def draft_of(documents: Sequence[Document]) -> Draft:
    """All documents as one training.

    Raises:
        OomDoctorError: a format is not known, a value is wrong, or two files contradict each other
            (exit 2).
    """
    taken = tuple(_applied(document) for document in documents)
    mains = [document for document in taken if not document.program.is_launcher]
    if len(mains) > 1:
        first, second = mains[0], mains[1]
        raise usage_error(
            "two_trainings",
            f"--from: {first.document.path} ({first.program.name}) and {second.document.path} "
            f"({second.program.name}) both describe a training run",
            "pass one of them, with the files of its launcher (accelerate, DeepSpeed)",
        )
    main = mains[0] if mains else taken[0]
    values: PartialConfig = {}
    said: dict[str, Said] = {}
    also = [item for document in taken for item in document.undecided]
    left = [item for document in taken for item in document.not_taken]
    for document in sorted(taken, key=lambda other: other is not main):
        for key, value in document.values.items():
            before, now = said.get(key), document.said[key]
            if before is not None and values.get(key) == value:
                also.append(now)
                continue
            if before is not None:
                if key not in _PRECISIONS or False not in (value, values.get(key)):
                    raise _contradiction(before, now)
                loser, winner = (now, before) if value is False else (before, now)
                left.append(left_out(loser, f"{winner.name} of {winner.file} decides"))
            if before is None or value is not False:
                values |= only(key, value)
                said[key] = now
    return Draft(taken, main, values, said, tuple(also), tuple(left), *_defaults(taken, main))


def check_planned(draft: Draft) -> None:
    """That a rung says what each GPU does.

    Raises:
        OomDoctorError: a file shares the training in a way that no rung has (exit 2).
    """
    for left in (left for taken in draft.taken for left in taken.refused):
        raise usage_error(
            "not_planned",
            f"--from: {_place(left.file, left.line)}: {left.name}: {left.value}: {left.reason}",
            f"run it on emulated GPUs: {EMULATED_RUN}; or leave the setting out, to plan whole "
            "layers and sequences on each GPU",
        )


def _defaults(taken: Sequence[Taken], main: Taken) -> tuple[PartialConfig, dict[str, str]]:
    defaults: PartialConfig = {}
    sources: dict[str, str] = {}
    for read in sorted(taken, key=lambda other: other is main):  # the main program's count most
        document = read.document
        source = f"the default of {document.parser}" if document.parser else read.table.source
        defaults |= read.defaults
        sources |= dict.fromkeys(read.defaults, source)
    return defaults, sources


def recognized(document: Document) -> Document:
    """The document with its format.

    Raises:
        OomDoctorError: no setting tells it (exit 2).
    """
    return replace(document, asked=_format_of(document)[0])


def _format_of(document: Document) -> tuple[FormatName, Table]:
    path, name = document.path, document.asked or recognize(document.values)
    table = None if name is None else table_of(path, name)
    if name is not None and table is not None:
        return name, table
    names = ", ".join(program.name for program in PROGRAMS if program.names is not None)
    raise usage_error(
        "unknown_format",
        f"--from: {path}: no setting here tells which program reads it",
        f"name the program: --from PROGRAM:{path}, with one of {names}",
    )


def _contradiction(first: Said, second: Said) -> Exception:
    this, that = (
        f"{_place(said.file, said.line)} says {said.name}: {said.value}" for said in (first, second)
    )
    hint = "make both say the same, or pass only one of the files"
    return usage_error(FILES_DISAGREE, f"--from: {this}, but {that}", hint)


def _applied(document: Document) -> Taken:
    """What every setting of a document says."""
    program, table = _format_of(document)
    taken = Taken(document, BY_NAME[program], table)
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
        left = NotTaken(*what, str(error), error.matters)
        taken.not_taken.append(left)
        if isinstance(error, RefusedError):
            taken.refused.append(left)
        return
    except ValueError as error:
        raise bad_config(document.path, f"{name} {error}", "fix this line", line) from None
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


def bad_config(path: str, what: str, hint: str, line: int | None = None) -> OomDoctorError:
    """The error about a file, or a line of it."""
    return usage_error("bad_config", f"--from: {_place(path, line)}: {what}", hint)


def _place(path: str, line: int | None) -> str:
    return path if line is None else f"{path}:{line}"
