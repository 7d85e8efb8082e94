"""What the operators of a simulated step cost, and the memory that only their kernels take."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from oomdoctor.worker.simulating.costs.operators import cost_of
from oomdoctor.worker.simulating.cuda.choices import Choices
from oomdoctor.worker.simulating.recorded import Cost
from oomdoctor.worker.tracing.trace import AllocationTrace

if TYPE_CHECKING:
    from torch._ops import OpOverload


class OperatorLog:
    """Collects the costs of one recording in `costs`, and notes hidden memory in the trace.

    `choices` says what a kernel takes on CUDA; None for a device that is not simulated as CUDA.
    """

    def __init__(self, trace: AllocationTrace, choices: Choices | None) -> None:
        self.costs: list[Cost] = []
        self._workspaces: set[str] = set()
        self._trace = trace
        self._choices = choices

    def begin(self) -> None:
        """Begin a recording; the costs of the one before stay with its owner."""
        self.costs, self._workspaces = [], set()

    def note(
        self, func: OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any], result: Any
    ) -> None:
        """Note one call of an operator."""
        if self._choices is not None:
            workspace = self._choices.workspace(func)
            if workspace is not None and workspace[0] not in self._workspaces:
                self._workspaces.add(workspace[0])
                self._trace.note_lasting(*workspace)
            hidden = self._choices.hidden(func, args, kwargs, result)
            if hidden:
                self._trace.note_hidden(func._schema.name, hidden)
        cost = cost_of(func, args, kwargs, result)
        if cost is not None:
            region = self._trace.region_of_operator
            self.costs.append(Cost(region, len(self._trace.tape.windows) - 1, cost))
