"""The one-line verdict about an incident, what a look-alike is, and notes about odd figures."""

from __future__ import annotations

import re
from dataclasses import dataclass

from oomdoctor.explain.diagnosis.case import Case
from oomdoctor.explain.diagnosis.requested import is_pool_segment
from oomdoctor.explain.diagnosis.usage import UNDERFLOW
from oomdoctor.explain.reading.failures.look_alikes import DATA
from oomdoctor.explain.reading.parse import OF_PYTORCH
from oomdoctor.records.facts.phases import OF_A_STEP, PHASES
from oomdoctor.records.report.diagnosis import RESOURCE_WORDS
from oomdoctor.units import MIB, format_bytes


def verdict(case: Case) -> str:
    """What ran out, when, on which rank, and by how much."""
    incident = case.incident
    text = RESOURCE_WORDS[incident.resource]
    if case.dialect == "tpu":
        text = text.replace("GPU", "TPU")
    place = [PHASES[case.phase].when] if case.phase in PHASES else []
    if incident.recomputing:
        place.append("(recomputing a checkpoint)")
    if case.step is not None:
        total = f" of {case.facts.total_steps}" if case.facts.total_steps else ""
        place.append(f"at step {case.step}{total}")
    if incident.rank is not None:
        place.append(f"on rank {incident.rank}")
    text = " ".join([text, *place])
    if case.requested is not None:
        text += f": tried to allocate {format_bytes(case.requested)}"
        if case.missing:
            text += f", {format_bytes(case.missing)} more than was available"
    if case.short_bytes is not None:
        text += f"; the whole training is short by {format_bytes(case.short_bytes)}"
    # The log and sacct both tell of one kill by the scheduler.
    if incident.repeats > 1 and incident.event.dialect != "slurm":
        text += f" ({incident.repeats} times)"
    if incident.survived:
        finished = incident.recovery in case.facts.evidence.get("finished", ())
        end = "finished" if finished else "continued"
        text += f"; the program caught the error and the run {end}"
    return text


def oddities(case: Case) -> tuple[str, ...]:
    """Sentences about figures that do not add up or do not mean what they seem to say."""
    event, odd = case.incident.event, []
    if UNDERFLOW in case.message:
        odd.append(
            "the process's own use is printed as 17179869184 GiB, a negative number shown as "
            "unsigned (common on WSL and Windows); ignore it"
        )
    unlimited = event.allowed_bytes is None
    if unlimited and (case.free or 0) > (case.requested or 0) > 0:
        odd.append(
            f"{format_bytes(case.free)} was free, yet {format_bytes(case.requested)} was refused: "
            "a limit, a private pool, another process that just exited, or the driver"
        )
    spills = case.dialect in OF_PYTORCH and bool(case.capacity)
    if spills and (case.reserved or 0) > (case.capacity or 0):
        odd.append(
            f"more is reserved ({format_bytes(case.reserved)}) than the GPU has: the driver uses "
            "host memory too (Windows and WSL do this)"
        )
    total, free, own = event.capacity_bytes, event.free_bytes, event.process_bytes
    if None not in (total, free, own):
        rest = (total or 0) - (free or 0) - (own or 0)
        if rest < -16 * MIB:
            odd.append(
                f"free memory and own use add up to {format_bytes(-rest)} more than the GPU has: "
                "the figures were taken at different moments"
            )
    odd += _unlike_the_model(case)
    if is_pool_segment(case.requested, case.dialect):
        largest = "1 MiB" if case.requested == 2 * MIB else "10 MiB"
        odd.append(
            f"the allocator requests {format_bytes(case.requested)} for any tensor up to "
            f"{largest}: the GPU was full, and any tensor could have been the next one"
        )
    return tuple(odd)


def _unlike_the_model(case: Case) -> list[str]:
    """What the message shows and the arithmetic cannot explain: another model or other settings."""
    weights = case.term("weights") or case.term("quantized weights")
    allocated, moment = case.allocated, case.moment()
    if allocated is None or moment is None or case.dialect not in OF_PYTORCH:
        return []
    shown = format_bytes(allocated)
    if weights is not None and case.phase in OF_A_STEP and allocated < 0.98 * weights.size_bytes:
        return [
            f"only {shown} was allocated when it failed, less than the weights of this model "
            f"({format_bytes(weights.size_bytes)}): they are quantized, sharded or offloaded, or "
            "another model ran"
        ]
    if case.at_least or not case.trains or case.beyond:
        return []
    if allocated > 1.5 * moment.size_bytes:
        return [
            f"{shown} was allocated when it failed, and the arithmetic explains only "
            f"{format_bytes(moment.size_bytes)}: the settings differ from these, or memory leaks"
        ]
    return []


@dataclass(frozen=True, slots=True)
class Answer:
    """For look-alikes of this name whose message contains these words: what it is, what to do."""

    name: str
    what: str
    todo: str
    words: str = ""


ANSWERS = tuple(Answer(**row) for row in DATA["answers"])
OTHER = Answer(
    "other", "the program failed for another reason", "read the last line of the traceback"
)


def short_answer(name: str, message: str = "") -> Answer:
    """What a look-alike is and what to do about it; a general answer if no row matches."""
    fitting = (row for row in ANSWERS if row.name == name and re.search(row.words, message))
    return next(fitting, OTHER)
