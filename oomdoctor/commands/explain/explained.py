"""One log as diagnoses: read, look up the model that it names, and answer."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import count
from pathlib import Path

from oomdoctor.errors import OomDoctorError
from oomdoctor.explain.diagnose import diagnose, with_end
from oomdoctor.explain.reading.lines.clean import Line
from oomdoctor.explain.reading.lines.stream import lines
from oomdoctor.explain.reading.scan import scan
from oomdoctor.explain.training.known import Given, setup_of
from oomdoctor.records.job.model import ModelRef, ModelSpec
from oomdoctor.records.report.diagnosis import Diagnosis, LogFacts
from oomdoctor.system.logs import read_chunks
from oomdoctor.system.slurm.accounts import JobEnd


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
    from oomdoctor.system.catalogue import find_model

    if find_model(name) is None:
        return None
    from oomdoctor.system.models.hub import resolve

    return resolve(ModelRef(name=name, source="catalogue"))
