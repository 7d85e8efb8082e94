"""From what was read to the answer: each incident gets its causes, its tensor and its remedies."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields, replace

from oomdoctor.errors import ExitCode
from oomdoctor.explain.diagnosis.case import UNDERFLOW, Case
from oomdoctor.explain.diagnosis.causes import causes
from oomdoctor.explain.diagnosis.look_alike_answers import short_answer
from oomdoctor.explain.diagnosis.tensors import is_pool_segment, matches
from oomdoctor.explain.memory.activations import activations
from oomdoctor.explain.memory.sizes import Sizes, sizes_of
from oomdoctor.explain.memory.states import weights
from oomdoctor.explain.remedies.row import remedies
from oomdoctor.explain.remedies.table import TABLE
from oomdoctor.explain.training.settings import Given, Setup, setup_of
from oomdoctor.explain.training.training import NO_CHECKPOINTING, Training, training_of
from oomdoctor.records.diagnosis import Diagnosis, Incident, LogFacts, Numbers
from oomdoctor.units import MIB, format_bytes

_AFTER_FORWARD = frozenset({"loss", "backward", "clip", "optimizer"})
NOTHING_FOUND = "no memory failure found"
_PHASES = {
    "init": "while starting up",
    "load": "while loading the weights",
    "forward": "in the forward pass",
    "loss": "while computing the loss",
    "backward": "in the backward pass",
    "clip": "while clipping the gradients",
    "optimizer": "in the optimizer step",
    "eval": "during evaluation",
    "generate": "while generating",
    "save": "while saving",
    "data": "while loading data",
}
_RESOURCES = {
    "gpu": "out of GPU memory",
    "host": "out of host memory",
    "shm": "out of shared memory (/dev/shm)",
}


def diagnose(
    source: str, incidents: tuple[Incident, ...], facts: LogFacts, given: Given
) -> tuple[Diagnosis, ...]:
    """The answers about one source, the failure that ended the run first; never empty.

    Incidents that another one explains are left out. A source without any gives one answer that
    says so (`is_oom` false, no look-alike).
    """
    shown = [i for i in incidents if not i.consequence] or list(incidents)
    if not shown:
        return (_nothing(source),)
    return tuple(_answer(source, i, facts, given) for i in sorted(shown, key=_weight))


def exit_of(diagnoses: Sequence[Diagnosis]) -> ExitCode:
    """0 when memory ran out and that ended a run, else 3."""
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
        verdict=_verdict(case),
        assumed=assumed,
        oddities=tuple(_oddities(case)),
        needs=_needs(case),
        framework=case.framework,
    )


def _needs(case: Case) -> tuple[str, ...]:
    """What each part of the training needs, and the sum against the card."""
    parts = case.model_terms()
    if len(parts) < 2:
        return tuple(part.text() for part in parts)
    total = format_bytes(sum(part.size_bytes for part in parts))
    card = f" of {format_bytes(case.capacity)}" if case.capacity else ""
    least = "" if case.term("activations") else "at least "
    return (*(part.text() for part in parts), f"together {least}{total}{card}")


def _case(incident: Incident, facts: LogFacts, given: Given) -> tuple[Case, tuple[str, ...]]:
    setup = setup_of(given, facts.settings, incident.frames, facts.world_size)
    event, model = incident.event, given.model
    # A log that prints a config.json tells the sizes as well as a name does.
    config = facts.settings if model is None else model.config
    sizes = sizes_of(config, None if model is None else model.parameters)
    training: Training | None = None
    assumed: tuple[str, ...] = ()
    if sizes is not None:
        training, guesses = training_of(setup, config)
        training, guesses = _as_far_as_it_came(training, guesses, incident, sizes, setup)
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


def _as_far_as_it_came(
    training: Training, assumed: tuple[str, ...], incident: Incident, sizes: Sizes, setup: Setup
) -> tuple[Training, tuple[str, ...]]:
    """The training, with checkpointing where the forward pass that went well needed it."""
    capacity, kept = incident.event.capacity_bytes, activations(sizes, training)
    if setup.checkpointing is not None or incident.phase not in _AFTER_FORWARD:
        return training, assumed
    if capacity is None or kept is None:
        return training, assumed
    if kept.size_bytes + weights(sizes, training).size_bytes < capacity:
        return training, assumed
    sure = "activation checkpointing: without it the forward pass would not have fitted"
    told = tuple(sure if words == NO_CHECKPOINTING else words for words in assumed)
    return replace(training, checkpointing=True), told


def _verdict(case: Case) -> str:
    incident = case.incident
    text = _RESOURCES.get(incident.resource, "out of memory")
    place = [_PHASES[case.phase]] if case.phase in _PHASES else []
    if incident.recomputing:
        place.append("(recomputing a checkpoint)")
    if case.step is not None:
        total = f" of {case.facts.total_steps}" if case.facts.total_steps else ""
        place.append(f"at step {case.step}{total}")
    if incident.rank is not None:
        place.append(f"on rank {incident.rank}")
    text = " ".join([text, *place])
    if case.requested is not None:
        text += f": asked for {format_bytes(case.requested)}"
        if case.missing:
            text += f", {format_bytes(case.missing)} more than there was"
    if incident.repeats > 1:
        text += f" ({incident.repeats} times)"
    if incident.survived:
        text += "; it was caught and the run went on"
    return text


def _oddities(case: Case) -> list[str]:
    """What is strange about the figures, in sentences."""
    event, told = case.incident.event, []
    if UNDERFLOW in case.message:
        told.append(
            "the process's own use is printed as 17179869184 GiB: an unsigned number below zero, "
            "as WSL and Windows report it; it says nothing"
        )
    unlimited = event.allowed_bytes is None
    if unlimited and (case.free or 0) > (case.requested or 0) > 0:
        told.append(
            f"{format_bytes(case.free)} were free and {format_bytes(case.requested)} was refused: "
            "a limit, a pool of its own, another process that just left, or the driver"
        )
    if case.capacity and case.reserved and case.reserved > case.capacity:
        told.append(
            f"more is reserved ({format_bytes(case.reserved)}) than the card has: the driver lends "
            "host memory (Windows and WSL do)"
        )
    total, free, own = event.capacity_bytes, event.free_bytes, event.process_bytes
    if None not in (total, free, own):
        rest = (total or 0) - (free or 0) - (own or 0)
        if rest < -16 * MIB:
            told.append(
                f"free and own use exceed the card by {format_bytes(-rest)}: the figures were "
                "taken at different moments"
            )
    if is_pool_segment(case.requested, case.dialect):
        largest = "1 MiB" if case.requested == 2 * MIB else "10 MiB"
        told.append(
            f"{format_bytes(case.requested)} is what the allocator fetches for any tensor up to "
            f"{largest}: the card was full, whichever tensor came next"
        )
    return told
