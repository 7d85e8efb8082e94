"""One log as diagnoses: read, look up the model that it names, and answer.

And what a file of settings, a script or a command says of the training that a text is about.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

from oomdoctor.commands.user_training import reader_of_file
from oomdoctor.errors import OomDoctorError
from oomdoctor.explain.diagnose import diagnose, with_end
from oomdoctor.explain.reading.lines.clean import Line
from oomdoctor.explain.reading.lines.stream import lines
from oomdoctor.explain.reading.scan import scan
from oomdoctor.explain.training.known import Given, setup_of
from oomdoctor.records.job.model import ModelRef, ModelSpec
from oomdoctor.records.report.diagnosis import Diagnosis, LogFacts
from oomdoctor.records.report.user_training import OF_SHELLS, Document
from oomdoctor.stacks.reading.finish import Overrides
from oomdoctor.stacks.reading.script import parse
from oomdoctor.system.catalogue import find_model
from oomdoctor.system.logs import read_chunks
from oomdoctor.system.models.hub import resolve
from oomdoctor.system.settings_file import read_text, read_with_text
from oomdoctor.system.slurm.accounts import JobEnd
from oomdoctor.system.training_files import documents_of, is_command, with_named_file


def explained(
    name: str, lines: Iterable[Line], given: Given, end: JobEnd | None = None
) -> tuple[Diagnosis, ...]:
    """The answers about a log; `end` is what the scheduler says if the log shows no failure."""
    incidents, facts = scan(lines)
    diagnoses = diagnose(name, incidents, facts, with_model(given, facts, "the log"))
    return diagnoses if end is None else with_end(diagnoses, end.what, end.todo)


def numbered(parts: Iterable[Iterable[Line]], tail: Iterable[str]) -> Iterator[Line]:
    """The lines of the files of a log and then those of Slurm, numbered across all of them."""
    number = 0
    for part in parts:
        offset = number
        for line in part:
            number = offset + line.number
            yield Line(number, line.text)
    yield from map(Line, count(number + 1), tail)


def lines_in(path: Path, unread: list[str]) -> Iterator[Line]:
    """The lines of a file; one that cannot be read adds the reason."""
    try:
        yield from lines(read_chunks(str(path)))
    except OomDoctorError as error:
        unread.append(error.message)


def with_model(given: Given, facts: LogFacts, origin: str) -> Given:
    """What is known of a training, with the model that its text names if there is none.

    The file of --config is read for this model and for the releases that the text names. A name in
    a text is looked up in the built-in facts only: a text must not make us open a path or contact a
    server.
    """
    model = facts.model_id or setup_of(given, facts.settings).values.get("model")
    if given.model is None and model and (spec := built_in(model)) is not None:
        given = replace(given, model=spec, model_origin=origin)
    if given.reread is None:
        return given
    config = {} if given.model is None else given.model.config
    return replace(given, training=given.reread(config, facts.versions))


def built_in(name: str) -> ModelSpec | None:
    """A model from the built-in facts; None if it is not there."""
    if find_model(name) is None:
        return None
    return resolve(ModelRef(name=name, source="catalogue"))


def settings_in(path: Path, option: str) -> Mapping[str, Any]:
    """The settings of a training file or a command; a script in Python is read, never run.

    Raises:
        OomDoctorError: it is missing or cannot be read (exit 2).
    """
    if is_command(str(path)):
        documents = [dict(with_named_file(document)) for document in documents_of(str(path))]
        return {key: value for values in reversed(documents) for key, value in values.items()}
    values = (
        parse(str(path), read_text(path, option)).values
        if path.suffix == ".py"
        else read_with_text(path, option)[0]
    )
    return with_named_file(Document(str(path), values))


def with_model_named(given: Given, origin: str) -> Given:
    """With the model that the settings name, if it is built in and none is known."""
    named = None if given.model is not None else setup_of(given, {}).values.get("model")
    spec = None if named is None else built_in(named)
    return given if spec is None else replace(given, model=spec, model_origin=origin)


def with_training(
    given: Given, path: Path, python: str, *, parse: bool
) -> tuple[Given, tuple[str, ...]]:
    """With what the program makes of its file or command, and notes; `parse` as `reader_of_file`.

    Raises:
        OomDoctorError: it is missing or cannot be read (exit 2).
    """
    asked = Overrides(
        sequence_length=given.sequence_length, micro_batch_size=given.micro_batch_size
    )
    read = reader_of_file(path, asked, python, parse=parse)
    training, disagreements = read({} if given.model is None else given.model.config, {})
    again = replace(given, training=training, reread=lambda facts, log: read(facts, log)[0])
    return again, disagreements


def of_command(given: Given, command: Sequence[str], python: str) -> Given:
    """With what a command that ran says of its training, as `explain --config COMMAND` reads it.

    Unchanged where it starts no training that can be read.
    """
    # `./job.sh`, or `bash job.sh`; later words are options of another program.
    script = next((word for word in command[:2] if Path(word).suffix in OF_SHELLS), None)
    path = Path(script or shlex.join(command))
    with suppress(OomDoctorError, OSError, ValueError):  # code after `-c` is no name of a file
        settings = {**settings_in(path, "--config"), **given.settings}
        read = with_model_named(replace(given, settings=settings), "the command")
        return with_training(read, path, python, parse=False)[0]
    return given
