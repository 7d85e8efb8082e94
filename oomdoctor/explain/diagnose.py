"""Turns what was read into answers: causes, the failed tensor and remedies for each incident."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields, replace

from oomdoctor.errors import ExitCode
from oomdoctor.explain.diagnosis.case import Case
from oomdoctor.explain.diagnosis.causes import causes
from oomdoctor.explain.diagnosis.look_alike_answers import short_answer
from oomdoctor.explain.diagnosis.tensors import matches
from oomdoctor.explain.diagnosis.verdict import oddities, verdict
from oomdoctor.explain.memory.activations import activations
from oomdoctor.explain.memory.sizes import Sizes, sizes_of
from oomdoctor.explain.memory.states import weights
from oomdoctor.explain.remedies.choose import remedies
from oomdoctor.explain.remedies.table import TABLE
from oomdoctor.explain.training.assumed import NO_CHECKPOINTING, Training, training_of
from oomdoctor.explain.training.known import Given, Setup, setup_of
from oomdoctor.records.diagnosis import Diagnosis, Incident, LogFacts, Numbers
from oomdoctor.units import format_bytes

_AFTER_FORWARD = frozenset({"loss", "backward", "clip", "optimizer"})
NOTHING_FOUND = "no memory failure found"


def diagnose(
    source: str, incidents: tuple[Incident, ...], facts: LogFacts, given: Given
) -> tuple[Diagnosis, ...]:
    """The answers about one source, starting with the failure that ended the run; never empty.

    Incidents that are consequences of another one are left out. A source without incidents gives
    one answer that says so (`is_oom` false, no look-alike).
    """
    shown = [i for i in incidents if not i.consequence] or list(incidents)
    if not shown:
        return (_nothing(source),)
    return tuple(_answer(source, i, facts, given) for i in sorted(shown, key=_weight))


def exit_of(diagnoses: Sequence[Diagnosis]) -> ExitCode:
    """0 if memory ran out and that ended a run, otherwise 3."""
    ended = any(found.is_oom and not found.survived for found in diagnoses)
    return ExitCode.OK if ended else ExitCode.NO


def _weight(incident: Incident) -> tuple[bool, bool, int]:
    memory = incident.look_alike is None
    return (incident.survived, not memory, incident.line_number)


def _nothing(source: str) -> Diagnosis:
    return Diagnosis(
        source=source,
        is_oom=False,
        resource="none",
        dialect="not_oom",
        phase="unknown",
        rank=None,
        numbers=Numbers(),
        where=None,
        tensor=None,
        causes=(),
        remedies=(),
        verdict=NOTHING_FOUND,
    )


def _answer(source: str, incident: Incident, facts: LogFacts, given: Given) -> Diagnosis:
    event = incident.event
    read = Diagnosis(
        source=source,
        is_oom=incident.look_alike is None,
        resource=incident.resource,
        dialect=event.dialect,
        phase=incident.phase,
        rank=incident.rank,
        numbers=Numbers(**{f.name: getattr(event, f.name) for f in fields(Numbers)}),
        where=incident.where,
        tensor=None,
        causes=(),
        remedies=(),
        message=event.message,
        line_number=incident.line_number,
        step=incident.step if incident.step is not None else facts.last_step,
        survived=incident.survived,
        look_alike=incident.look_alike,
        evidence=incident.lines,
        listed_processes=incident.listed_processes,
    )
    if incident.look_alike is not None:
        answer = short_answer(incident.look_alike, event.message)
        return replace(
            read, short_answer=answer.todo, verdict=f"not a memory failure: {answer.what}"
        )
    case, assumed = _case(incident, facts, given)
    found, keys = causes(case)
    return replace(
        read,
        tensor=case.tensors[0] if case.tensors else None,
        tensors=case.tensors,
        causes=found,
        remedies=remedies(case, keys, TABLE),
        verdict=verdict(case),
        assumed=assumed,
        oddities=oddities(case),
        needs=_needs(case),
        framework=case.framework,
    )


def _needs(case: Case) -> tuple[str, ...]:
    """What each part of the training needs, and their sum compared with the GPU."""
    parts = case.model_terms()
    if len(parts) < 2:
        return tuple(part.text() for part in parts)
    total = format_bytes(sum(part.size_bytes for part in parts))
    card = f" of {format_bytes(case.capacity)}" if case.capacity else ""
    least = "" if case.term("activations") else "at least "
    return (*(part.text() for part in parts), f"total: {least}{total}{card}")


def _case(incident: Incident, facts: LogFacts, given: Given) -> tuple[Case, tuple[str, ...]]:
    setup = setup_of(given, facts.settings, incident.frames, facts.world_size)
    event, model = incident.event, given.model
    # A config.json in the log gives the sizes just as well as a model name does.
    config = facts.settings if model is None else model.config
    sizes = sizes_of(config, None if model is None else model.parameters)
    training: Training | None = None
    assumed: tuple[str, ...] = ()
    if sizes is not None:
        training, guesses = training_of(setup, config)
        training, guesses = _with_needed_checkpointing(training, guesses, incident, sizes, setup)
        named = f"{model.id} (named by {given.model_origin})" if model else "the log's config"
        assumed = (f"sizes of {named}", *guesses)
    tensors = matches(
        event.requested_bytes,
        dialect=event.dialect,
        phase=incident.phase,
        frames=incident.frames,
        sizes=sizes,
        setup=setup,
        code=(incident.where.code or "") if incident.where is not None else "",
    )
    return Case(incident, facts, setup, sizes, training, tensors), assumed


def _with_needed_checkpointing(
    training: Training, assumed: tuple[str, ...], incident: Incident, sizes: Sizes, setup: Setup
) -> tuple[Training, tuple[str, ...]]:
    """The training, with checkpointing if the forward pass could not have succeeded without it."""
    capacity, kept = incident.event.capacity_bytes, activations(sizes, training)
    if setup.checkpointing is not None or incident.phase not in _AFTER_FORWARD:
        return training, assumed
    if capacity is None or kept is None:
        return training, assumed
    if kept.size_bytes + weights(sizes, training).size_bytes < capacity:
        return training, assumed
    sure = "activation checkpointing, because the forward pass would not fit without it"
    told = tuple(sure if words == NO_CHECKPOINTING else words for words in assumed)
    return replace(training, checkpointing=True), told
