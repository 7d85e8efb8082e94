"""Turns what was read into answers: causes, the failed tensor and remedies for each incident."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

from oomdoctor.errors import ExitCode
from oomdoctor.explain.diagnosis.case import Case
from oomdoctor.explain.diagnosis.causes.rules import causes
from oomdoctor.explain.diagnosis.requested import matches
from oomdoctor.explain.diagnosis.verdict import OTHER, oddities, short_answer, verdict
from oomdoctor.explain.evidence import SnapshotEvidence, matching
from oomdoctor.explain.memory.activations import activations
from oomdoctor.explain.memory.model_sizes import Sizes, sizes_of
from oomdoctor.explain.memory.states import weights
from oomdoctor.explain.reading.lines.traceback import scores_line
from oomdoctor.explain.reading.programs import program_of, program_of_file
from oomdoctor.explain.remedies.choose import remedies
from oomdoctor.explain.remedies.closing import no_way
from oomdoctor.explain.remedies.sets import choices
from oomdoctor.explain.training.assumed import NO_CHECKPOINTING, Training, training_of
from oomdoctor.explain.training.known import PROGRAM, Given, Setup, setup_of
from oomdoctor.records.codec import shared
from oomdoctor.records.job.measurement import OomEvent
from oomdoctor.records.report.diagnosis import Diagnosis, Frame, Incident, LogFacts, Numbers
from oomdoctor.records.report.run import Place
from oomdoctor.units import format_bytes

_OUTPUT = r"lm_head|logits|loss_utils"  # what follows the layers of the forward pass
_AFTER_FORWARD = frozenset({"loss", "backward", "clip", "optimizer"})
NOTHING_FOUND = "no memory failure found"
_SHOWN_ERROR = 160  # characters of the last error in a verdict


def diagnose(
    source: str, incidents: tuple[Incident, ...], facts: LogFacts, given: Given
) -> tuple[Diagnosis, ...]:
    """The answers about one source, starting with the failure that ended the run; never empty.

    Incidents that are consequences of another one are left out. A source without incidents gives
    one answer that says so (`is_oom` false, no look-alike).
    """
    shown = [i for i in incidents if not i.consequence] or list(incidents)
    if not shown:
        return (_nothing(source, facts),)
    ordered = sorted(
        shown,
        key=lambda event: (
            event.survived,
            event.look_alike is not None,
            _is_elsewhere(event, shown),
            event.line_number,
        ),
    )
    return tuple(_answer(source, event, facts, given) for event in ordered)


def _is_elsewhere(incident: Incident, incidents: Sequence[Incident]) -> bool:
    """Whether another rank failed at the same request, and only that one gives its traceback."""
    return not incident.frames and any(
        other.frames
        and other.rank not in (None, incident.rank)
        and other.event.requested_bytes == incident.event.requested_bytes
        for other in incidents
    )


def with_end(
    diagnoses: tuple[Diagnosis, ...], what: str, todo: str | None
) -> tuple[Diagnosis, ...]:
    """The answers; if they say that nothing was found, also how the scheduler says it ended."""
    first = diagnoses[0]
    if first.is_oom or first.look_alike is not None:
        return diagnoses
    return (replace(first, verdict=f"{NOTHING_FOUND}: {what}", short_answer=todo), *diagnoses[1:])


def exit_of(diagnoses: Sequence[Diagnosis]) -> ExitCode:
    """0 if memory ran out and that ended a run, otherwise 3."""
    ended = any(diagnosis.is_oom and not diagnosis.survived for diagnosis in diagnoses)
    return ExitCode.OK if ended else ExitCode.NO


def _nothing(source: str, facts: LogFacts) -> Diagnosis:
    told = facts.evidence.get("last_error", ())
    return replace(
        _read(source, Incident(OomEvent("", "not_oom", "unknown"))),
        is_oom=False,
        line_number=None,
        verdict=_unknown(told[0]) if told else NOTHING_FOUND,
        evidence=told if told and len(told[0]) > _SHOWN_ERROR else (),
    )


def _read(source: str, incident: Incident) -> Diagnosis:
    """The answer as far as the text itself gives it."""
    event = incident.event
    return Diagnosis(
        **shared(incident, Diagnosis),
        source=source,
        is_oom=incident.look_alike is None,
        dialect=event.dialect,
        numbers=Numbers(**shared(event, Numbers)),
        tensor=None,
        causes=(),
        remedies=(),
        message=event.message,
        evidence=incident.lines,
    )


def _unknown(error: str) -> str:
    """The verdict about a failure that is not known, which may still be one of memory."""
    shown = " ".join(error.split())
    if len(shown) > _SHOWN_ERROR:
        shown = f"{shown[:_SHOWN_ERROR].rsplit(' ', 1)[0]} ..."
    return f"no known memory failure; the last error is {shown.rstrip('.')}"


def _answer(source: str, incident: Incident, facts: LogFacts, given: Given) -> Diagnosis:
    seen = matching(incident, given.snapshots)
    incident = _with_place(incident, seen)
    if incident.step is None:
        incident = replace(incident, step=facts.last_step)
    if incident.phase == "unknown" and not incident.frames and "evaluation" in facts.mentions:
        incident = replace(incident, phase="eval")
    read = _read(source, incident)
    if incident.look_alike is not None:
        answer = short_answer(incident.look_alike, read.message)
        said = f"not a memory failure: {answer.what}"
        told = _unknown(read.message) if answer.name == OTHER.name else said
        return replace(read, short_answer=answer.todo, verdict=told)
    facts = _with_program_of_file(incident, facts, given)
    case, assumed = _case(incident, facts, given, seen)
    ranked, keys = causes(case)
    helpful = choices(case) if case.beyond else []
    return replace(
        read,
        held=None if seen is None else seen.held,
        held_source=None if seen is None else seen.source,
        tensor=case.tensors[0] if case.tensors else None,
        tensors=case.tensors,
        causes=ranked,
        remedies=remedies(case, keys, helpful),
        verdict=verdict(case),
        assumed=assumed,
        oddities=oddities(case),
        needs=_needs(case),
        needed_bytes=case.total,
        short_bytes=case.needed or None,
        no_way=no_way(case, helpful),
        framework=case.framework,
        model=None if given.model is None else given.model.id,
        config=case.rung,
        room_bytes=case.room if incident.resource == "gpu" else None,
        context_bytes=case.context if incident.resource == "gpu" else None,
    )


def _with_program_of_file(incident: Incident, facts: LogFacts, given: Given) -> LogFacts:
    """The facts, and the program that reads the user's files if the log names no program."""
    if given.training is None or program_of(incident, facts.mentions) is not None:
        return facts
    readers = (program_of_file(file.format) for file in given.training.files)
    program = next((reader for reader in readers if reader is not None), None)
    if program is None:
        return facts
    no_line_of_the_log: tuple[str, ...] = ()
    return replace(facts, mentions={**facts.mentions, program.name: no_line_of_the_log})


def _with_place(incident: Incident, seen: SnapshotEvidence | None) -> Incident:
    """The incident with the phase and your line from the snapshot, if the log does not say."""
    if seen is None:
        return incident
    phase = seen.oom.phase if incident.phase == "unknown" else incident.phase
    return replace(incident, where=incident.where or _frame(seen.oom.where), phase=phase)


def _frame(place: Place | None) -> Frame | None:
    """A place as a frame; None for one that is no line of code."""
    if place is None or place.module:
        return None
    return Frame(place.file, place.line, place.function, None)


def _needs(case: Case) -> tuple[str, ...]:
    """What each part of the training needs, and their sum compared with the GPU."""
    moment = case.moment()
    if moment is None:
        return ()
    parts = [part.text() for part in moment.terms]
    parts.append(f"CUDA context and libraries = {format_bytes(case.context)}")
    card = f" of {format_bytes(case.capacity)}" if case.capacity else ""
    if not case.trains:
        least, when = "at least ", " (weights alone)"
    elif case.at_least:
        least, when = "at least ", " (without activations)"
    else:
        least, when = "", f", {moment.when}"
    return (*parts, f"total: {least}{format_bytes(case.total)}{card}{when}")


def _case(
    incident: Incident, facts: LogFacts, given: Given, seen: SnapshotEvidence | None
) -> tuple[Case, tuple[str, ...]]:
    setup = setup_of(given, facts.settings, incident.frames, facts.world_size)
    unsaid = setup.origins.get("attention", PROGRAM) == PROGRAM
    if unsaid and scores_line(incident.frames) is not None:
        setup.values["attention"] = "eager"
    model = given.model
    # A config.json in the log gives the sizes just as well as a model name does.
    config = facts.settings if model is None else model.config
    sizes = sizes_of(config, None if model is None else model.parameters)
    training: Training | None = None
    assumed: tuple[str, ...] = ()
    if sizes is not None:
        program = program_of(incident, facts.mentions)
        library = None if program is None else program.library
        release = facts.versions.get("transformers")
        training, guesses = training_of(setup, config, library, release, given)
        training, guesses = _with_needed_checkpointing(training, guesses, incident, sizes, setup)
        named = f"{model.id} (named by {given.model_origin})" if model else "the log's config"
        assumed = (f"sizes of {named}", *guesses)
    return Case(
        incident,
        facts,
        setup.values,
        sizes,
        training,
        matches(incident, sizes, setup.values),
        seen,
        given.short_bytes,
        given.batch_divisor,
    ), assumed


def _with_needed_checkpointing(
    training: Training, assumed: tuple[str, ...], incident: Incident, sizes: Sizes, setup: Setup
) -> tuple[Training, tuple[str, ...]]:
    """The training, with checkpointing if the forward pass could not have succeeded without it."""
    capacity, kept = incident.event.capacity_bytes, activations(sizes, training)
    near = " ".join(f"{f.file} {f.function} {f.code or ''}" for f in incident.frames[-4:])
    at_output = incident.phase == "forward" and re.search(_OUTPUT, near)
    passed = at_output or incident.phase in _AFTER_FORWARD
    said = "activation_checkpointing" in setup.values or not passed
    if said or capacity is None or not training.tokens:
        return training, assumed
    held = weights(sizes, training).size_bytes
    checkpointed = training.changed(activation_checkpointing="full")
    less = activations(sizes, checkpointed)
    if kept.size_bytes + held < capacity or less.size_bytes + held > capacity:
        return training, assumed
    sure = "activation checkpointing, because the forward pass would not fit without it"
    told = tuple(sure if words == NO_CHECKPOINTING else words for words in assumed)
    return checkpointed, told


def diagnosis_of(evidence: SnapshotEvidence) -> Diagnosis:
    """Causes and remedies of a request that a device could not meet."""
    given = Given(snapshots=(evidence,))
    return diagnose(evidence.source, (incident_of(evidence),), LogFacts(), given)[0]


def incident_of(
    evidence: SnapshotEvidence, frames: tuple[Frame, ...] = (), **numbers: int | None
) -> Incident:
    """A request that a device could not meet, as if a log had told of it.

    `frames` are outermost first; `numbers` are `step` and `rank`, and more of the event.
    """
    device, oom = evidence.device, evidence.oom
    unallocated = oom.reserved_bytes - oom.allocated_bytes
    message = (
        f"GPU {device}: tried to allocate {format_bytes(oom.requested_bytes)} with "
        f"{format_bytes(oom.free_bytes)} free; {format_bytes(oom.allocated_bytes)} allocated, "
        f"{format_bytes(unallocated)} reserved but unallocated"
    )
    step, rank = numbers.pop("step", None), numbers.pop("rank", None)
    event = OomEvent(
        message=message,
        dialect="cuda_caching_allocator",
        reserved_unallocated_bytes=unallocated,
        **{**shared(oom, OomEvent), "process_bytes": oom.reserved_bytes, **numbers},
    )
    return Incident(
        event,
        resource="gpu",
        frames=frames,
        phase=oom.phase,
        where=_frame(oom.where),
        lines=(message,),
        rank=rank,
        step=step,
    )
