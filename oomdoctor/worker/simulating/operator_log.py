"""What the operators of a simulated step cost, and the memory that only their kernels take."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Sequence

import torch

from oomdoctor.analysis.simulator.recorded import Cost
from oomdoctor.analysis.simulator.tape import Region
from oomdoctor.records.job.costs import OpCost
from oomdoctor.worker.simulating.compiled_kernels import Access, compiled
from oomdoctor.worker.simulating.costs import accessed, cost_of, is_fusible, sums_over_rows
from oomdoctor.worker.simulating.cuda.choices import Choices
from oomdoctor.worker.simulating.cuda.kernel_reductions import norm_entries
from oomdoctor.worker.simulating.cuda.kernel_rules import differs_by_card
from oomdoctor.worker.tracing.calls import OperatorCall
from oomdoctor.worker.tracing.steps import Lasting, Step, with_workspaces
from oomdoctor.worker.tracing.tensors import tensor_bytes, tensors_in
from oomdoctor.worker.tracing.trace import AllocationTrace

# Clipping calls these with all gradients of a type, and with the norms of all of them.
_FOR_EACH = frozenset(("aten::_foreach_norm", "aten::stack"))


class OperatorLog:
    """Collects the costs of one recording, and tells the trace what kernels take.

    `compiles`: the passes run through torch.compile, so their costs are those of its kernels.

    `choices` says what a kernel takes on CUDA; None for a device that is not simulated as CUDA.
    `entries` are the blocks that have an entry for each parameter, by the parameters' units.
    """

    def __init__(self, trace: AllocationTrace, choices: Choices | None) -> None:
        self.compiles = False
        self._costed: list[Cost] = []
        self._accesses: list[Access] = []  # of the passes of a compiled model, in order
        self.entries: dict[int, Counter[Region | None]] = {}
        self._workspaces: set[str] = set()
        self._of_load: frozenset[str] | None = None  # the workspaces that the load has taken
        # The same for all calls of a kind: what they cost and what their kernels do with memory.
        self._costs: dict[Hashable, OpCost | None] = {}
        self._steps: dict[Hashable, tuple[Step, ...]] = {}
        self._trace = trace
        self._choices = choices

    def begin(self) -> None:
        """Begin a recording; the costs of the one before stay with its owner."""
        if self._of_load is None:
            self._of_load = frozenset(self._workspaces)
        self._costed, self._accesses = [], []
        self.entries, self._workspaces = {}, set(self._of_load)

    def costs(self) -> list[Cost]:
        """The costs of the recording, in the order of its windows."""
        costs = [*compiled(self._accesses), *self._costed]
        return sorted(costs, key=lambda cost: cost.window)

    def note(self, call: OperatorCall) -> None:
        """Note one call of an operator, after its memory was recorded."""
        is_costed = call.kind is not None and call.kind in self._costs
        cost = self._costs[call.kind] if is_costed else cost_of(call)
        if call.kind is not None:
            self._costs[call.kind] = cost
        if self._trace.phase == "optimizer" and call.func._schema.name in _FOR_EACH:
            self._note_entries(call, self._trace.taken)
        elif self.entries and self._trace.phase == "optimizer":
            self._pass_on_entries(call)
        if cost is None:
            return
        place = self._trace.region_of_operator, len(self._trace.tape.windows) - 1
        if self.compiles and self._trace.phase in ("forward", "backward"):
            self._accesses.append(self._access(call, place, cost))
        else:
            self._costed.append(Cost(*place, cost))

    def _access(self, call: OperatorCall, place: tuple[Region | None, int], cost: OpCost) -> Access:
        reads, writes = accessed(call)
        return Access(
            place,
            cost,
            fusible=is_fusible(call, cost),
            over_rows=sums_over_rows(call),
            reads=self._by_block(reads),
            writes=self._by_block(writes),
        )

    def _by_block(self, tensors: Sequence[torch.Tensor]) -> dict[int, int]:
        """Bytes of each block; of one that is repeated by a view, those that it holds."""
        sizes: dict[int, int] = {}
        for tensor in tensors:
            block = self._trace.block_of(tensor)
            if block is not None:
                size = min(tensor_bytes(tensor), self._trace.tape.blocks[block].size)
                sizes[block] = max(size, sizes.get(block, 0))
        return sizes

    def steps(self, call: OperatorCall) -> tuple[Step, ...]:
        """What the kernel of one call does with memory on the card."""
        if self._choices is None:
            return ()
        steps = None if call.kind is None else self._steps.get(call.kind)
        if steps is None:
            steps = self._choices.steps(call)
            if call.kind is not None and not differs_by_card(call.func):
                self._steps[call.kind] = steps
        needed = self._choices.workspaces(call)
        own = [each for each in needed if each.name not in self._workspaces]
        if not own:
            return steps
        self._workspaces.update(each.name for each in own if isinstance(each, Lasting))
        return with_workspaces(steps, own)

    def _pass_on_entries(self, call: OperatorCall) -> None:
        """The norms of a sharded model are combined over ranks: one entry for each stays."""
        source = self._trace.block_of(call.args[0]) if call.args else None
        made = self._trace.block_of(call.result)
        if source is None or made is None or made == source or source not in self.entries:
            return
        blocks = self._trace.tape.blocks
        if blocks[made].size == blocks[source].size:
            self.entries[made] = self.entries[source]

    def _note_entries(self, call: OperatorCall, taken: Sequence[int]) -> None:
        """Note which units the tensors of a list belong to: deeper models have longer lists."""
        counted = [tensor for tensor in tensors_in(call.args[0]) if tensor.numel()]
        units = list(map(self._trace.unit_of, counted))
        if taken:  # the norms' partial sums
            blocks = zip(taken, norm_entries(counted), strict=True)
        else:
            made = self._trace.block_of(call.result)
            blocks = zip([] if made is None else [made], [[1] * len(counted)], strict=False)
        for number, entries in blocks:
            own = self.entries[number] = Counter()
            for unit, each in zip([*units, None], entries, strict=False):
                own[unit] += each
