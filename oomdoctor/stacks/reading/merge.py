"""Puts several files of one training together: the training itself, its launcher, its engine."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from oomdoctor.errors import usage_error
from oomdoctor.records.facts.choices import FormatName
from oomdoctor.records.report.user_training import Document, NotTaken, Said
from oomdoctor.stacks.partial_config import PartialConfig, only
from oomdoctor.stacks.programs import BY_NAME, PROGRAMS, recognize, table_of
from oomdoctor.stacks.reading.apply import Taken, apply, left_out

FILES_DISAGREE = "files_disagree"
"""The code of the error that two files say different things."""
_PRECISIONS = ("mixed_bfloat16", "mixed_float16")


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
    name: FormatName | None = document.asked or recognize(document.values)
    if name is None or table_of(document.path, name) is None:
        raise unknown_format(document.path)
    return replace(document, asked=name)


def _applied(document: Document) -> Taken:
    name = recognized(document).asked
    table = None if name is None else table_of(document.path, name)
    assert name is not None and table is not None  # `recognized` has checked it
    return apply(document, BY_NAME[name], table)


def unknown_format(path: str) -> Exception:
    """The error that a file is of no known program."""
    names = ", ".join(program.name for program in PROGRAMS if program.names is not None)
    return usage_error(
        "unknown_format",
        f"--from: {path}: no setting here tells which program reads it",
        f"name the program: --from PROGRAM:{path}, with one of {names}",
    )


def _contradiction(first: Said, second: Said) -> Exception:
    this, that = (
        f"{said.file if said.line is None else f'{said.file}:{said.line}'} says {said.name}: "
        f"{said.value}"
        for said in (first, second)
    )
    hint = "make both say the same, or pass only one of the files"
    return usage_error(FILES_DISAGREE, f"--from: {this}, but {that}", hint)
