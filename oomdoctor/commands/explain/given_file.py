"""What a file of settings, a script or a command says of the training that a text is about."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from oomdoctor.commands.explain.explained import built_in
from oomdoctor.commands.user_training import reader_of_file
from oomdoctor.errors import OomDoctorError
from oomdoctor.explain.training.known import Given, setup_of
from oomdoctor.records.report.user_training import OF_SHELLS, Document
from oomdoctor.stacks.reading.finish import Overrides
from oomdoctor.stacks.reading.script import parse
from oomdoctor.system.settings_file import read_text, read_with_text
from oomdoctor.system.training_files import documents_of, is_command, with_named_file


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
