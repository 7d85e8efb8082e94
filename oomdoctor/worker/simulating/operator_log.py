"""What the operators of a simulated step cost, and the memory that only their kernels take."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from oomdoctor.analysis.simulator.recorded import Cost
from oomdoctor.analysis.simulator.tape import Region
from oomdoctor.worker.simulating.costs.operators import cost_of
from oomdoctor.worker.simulating.cuda.choices import Choices
from oomdoctor.worker.tracing.trace import AllocationTrace

if TYPE_CHECKING:
    import torch
    from torch._ops import OpOverload

# Clipping calls these with all gradients of a type, and with the norms of all of them.
_FOR_EACH = frozenset(("aten::_foreach_norm", "aten::stack"))


class OperatorLog:
    """Collects the costs of one recording in `costs`, and notes hidden memory in the trace.

    `choices` says what a kernel takes on CUDA; None for a device that is not simulated as CUDA.
    `entries` are the blocks that have an entry for each parameter, by the parameters' units.
    """

    def __init__(self, trace: AllocationTrace, choices: Choices | None) -> None:
        self.costs: list[Cost] = []
        self.entries: dict[int, Counter[Region | None]] = {}
        self._workspaces: set[str] = set()
        self._trace = trace
        self._choices = choices

    def begin(self) -> None:
        """Begin a recording; the costs of the one before stay with its owner."""
        self.costs, self.entries, self._workspaces = [], {}, set()

    def note(
        self, func: OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any], result: Any
    ) -> None:
        """Note one call of an operator."""
        hidden: tuple[int, ...] = ()
        if self._choices is not None:
            workspace = self._choices.workspace(func)
            if workspace is not None and workspace[0] not in self._workspaces:
                self._workspaces.add(workspace[0])
                self._trace.note_lasting(*workspace)
            hidden = self._choices.hidden(func, args, kwargs, result)
            if hidden:
                self._trace.note_hidden(func._schema.name, hidden)
        if self._trace.phase == "optimizer" and func._schema.name in _FOR_EACH:
            self._note_entries(args[0], result, len(hidden))
        cost = cost_of(func, args, kwargs, result)
        if cost is not None:
            region = self._trace.region_of_operator
            self.costs.append(Cost(region, len(self._trace.tape.windows) - 1, cost))

    def _note_entries(self, tensors: Sequence[torch.Tensor], result: Any, hidden: int) -> None:
        """Note which units the tensors of a list belong to: deeper models have longer lists."""
        trace = self._trace
        blocks = trace.tape.blocks
        # The first hidden block of the norms has partial sums; the second does not grow.
        made = len(blocks) - hidden if hidden else trace.block_of(result)
        if made is None:
            return
        known = [trace.block_of(tensor) for tensor in tensors if tensor.numel()]
        self.entries[made] = Counter(
            None if block is None else blocks[block].region for block in known
        )
