"""What watches a rung on a simulated device: one set of instruments for all of its recordings."""

from __future__ import annotations

from dataclasses import dataclass, field

from oomdoctor.analysis.simulator.card import card_of, card_of_capability
from oomdoctor.analysis.simulator.tape import Region
from oomdoctor.records.simulation import SimulationRequest
from oomdoctor.system.catalogue import gpus
from oomdoctor.worker.protocol.progress import Marks, PhaseFile
from oomdoctor.worker.simulating.cuda.choices import Choices
from oomdoctor.worker.simulating.operator_log import OperatorLog
from oomdoctor.worker.tracing.trace import AllocationTrace
from oomdoctor.worker.tracing.whereabouts import Whereabouts


@dataclass(frozen=True, slots=True)
class Instruments:
    """`managed` holds the bytes of paged states in unified memory, by unit."""

    progress: PhaseFile
    marks: Marks
    where: Whereabouts
    trace: AllocationTrace
    choices: Choices
    operators: OperatorLog
    managed: dict[Region | None, int] = field(default_factory=dict)

    def enter(self, step: str, phase: str) -> None:
        """Begin a phase of a step on everything that keeps one."""
        self.progress.enter(phase)
        self.trace.tape.enter(step, phase)
        self.trace.enter(phase)


def instruments_for(request: SimulationRequest, progress: PhaseFile) -> Instruments:
    """Instruments for the cards of the request, and for all that are known."""
    where = Whereabouts()
    trace = AllocationTrace("cpu", where=where)
    known = (card_of_capability(gpu.compute_capability or "8.0") for gpu in gpus())
    choices = Choices((*map(card_of, request.targets or (None,)), *known))
    operators = OperatorLog(trace, choices if request.as_cuda else None)
    trace.watcher, trace.steps_of = operators.note, operators.steps
    return Instruments(progress, Marks(progress), where, trace, choices, operators)
