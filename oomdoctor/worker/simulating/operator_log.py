"""What the operators of a simulated step cost, and the memory that only their kernels take."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from oomdoctor.analysis.simulator.recorded import Cost
from oomdoctor.analysis.simulator.tape import Region
from oomdoctor.records.costs import OpCost
from oomdoctor.worker.simulating.costs.operators import cost_of
from oomdoctor.worker.simulating.cuda.choices import Choices
from oomdoctor.worker.simulating.cuda.kernels import differs_by_card, takes_first
from oomdoctor.worker.simulating.device.mode import Kind
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
        self._held: list[int] = []  # what the current kernel took before its results
        # The same for all calls of a kind: what they cost and what their kernels take.
        self._known: dict[Kind, tuple[OpCost | None, tuple[int, ...]]] = {}
        self._trace = trace
        self._choices = choices

    def begin(self) -> None:
        """Begin a recording; the costs of the one before stay with its owner."""
        self.costs, self.entries, self._workspaces = [], {}, set()

    def note(
        self,
        func: OpOverload,
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        result: Any,
        kind: Kind | None,
    ) -> None:
        """Note one call of an operator."""
        if self._choices is not None:
            workspace = self._choices.workspace(func, self._workspaces)
            if workspace is not None:
                self._workspaces.add(workspace[0])
                self._trace.note_lasting(*workspace)
        known = None if kind is None else self._known.get(kind)
        if known is None:
            known = cost_of(func, args, kwargs, result), self._hidden(func, args, kwargs, result)
            if kind is not None and not differs_by_card(func):
                self._known[kind] = known
        cost, hidden = known
        held, self._held = self._held, []
        later = [size for size in hidden if not getattr(size, "first", False)]
        if later:
            self._trace.note_hidden(func._schema.name, later)
        self._trace.free_hidden(held)
        if self._trace.phase == "optimizer" and func._schema.name in _FOR_EACH:
            self._note_entries(args[0], result, held)
        if cost is not None:
            region = self._trace.region_of_operator
            self.costs.append(Cost(region, len(self._trace.tape.windows) - 1, cost))

    def note_before(
        self, func: OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any], result: Any
    ) -> None:
        """Take what a kernel takes before it allocates its results."""
        if self._choices is not None and takes_first(func):
            hidden = self._hidden(func, args, kwargs, result)
            first = [size for size in hidden if getattr(size, "first", False)]
            self._held = self._trace.take_hidden(func._schema.name, first)

    def _hidden(
        self, func: OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any], result: Any
    ) -> tuple[int, ...]:
        """Bytes of the blocks that its kernel takes on the card."""
        return () if self._choices is None else self._choices.hidden(func, args, kwargs, result)

    def _note_entries(
        self, tensors: Sequence[torch.Tensor], result: Any, held: Sequence[int]
    ) -> None:
        """Note which units the tensors of a list belong to: deeper models have longer lists."""
        trace = self._trace
        blocks = trace.tape.blocks
        made = held[0] if held else trace.block_of(result)  # the norms' partial sums
        if made is None:
            return
        known = [trace.block_of(tensor) for tensor in tensors if tensor.numel()]
        self.entries[made] = Counter(
            None if block is None else blocks[block].region for block in known
        )
