"""One log as diagnoses: read, look up the model that it names, and answer."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from oomdoctor.explain.diagnose import diagnose, with_end
from oomdoctor.explain.reading.lines.clean import Line
from oomdoctor.explain.reading.scan import scan
from oomdoctor.explain.training.known import Given, setup_of
from oomdoctor.records.diagnosis import Diagnosis
from oomdoctor.records.model import ModelRef, ModelSpec
from oomdoctor.system.slurm.accounts import JobEnd


def explained(
    name: str, lines: Iterable[Line], given: Given, end: JobEnd | None = None
) -> tuple[Diagnosis, ...]:
    """The answers about a log; `end` is what the scheduler says if the log shows no failure."""
    incidents, facts = scan(lines)
    if given.model is None:
        # A name in a log is looked up in the built-in facts only. A text must not make us open a
        # path or contact a server.
        model = facts.model_id or setup_of(given, facts.settings).model
        spec = built_in(model) if model else None
        if spec is not None:
            given = replace(given, model=spec, model_origin="the log")
    found = diagnose(name, incidents, facts, given)
    return found if end is None else with_end(found, end.what, end.todo)


def built_in(name: str) -> ModelSpec | None:
    """A model from the built-in facts; None if it is not there."""
    from oomdoctor.system.catalogue import find_model

    if find_model(name) is None:
        return None
    from oomdoctor.system.models.hub import resolve

    return resolve(ModelRef(name=name, source="catalogue"))
