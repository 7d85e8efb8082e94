"""Record every birth and death of tensor storage under a dispatch mode.

The trace counts storages, not tensors: views, in-place results, saved tensors and tied weights
share one. It does not see what an operator allocates and frees internally. On the CPU this trace is
the measurement and enforces the budget. On CUDA it only says what the peak consists of.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import cache

import torch
from torch._ops import OpOverload

from oomdoctor.analysis.allocator.records import format_size
from oomdoctor.analysis.memory.curve import Stretch, memory_curve, stretches
from oomdoctor.analysis.simulator.tape import Region, Tape, TapeBlock
from oomdoctor.records.facts.categories import CATEGORIES, TEMPORARY, WEIGHTS
from oomdoctor.records.job.measurement import MemoryCurve
from oomdoctor.worker.replacing import replaced
from oomdoctor.worker.tracing.calls import OperatorCall, Recording, resized_storages
from oomdoctor.worker.tracing.steps import (
    OTHERS,
    Freed,
    Lasting,
    OnHost,
    Passing,
    Result,
    Scratch,
    Step,
)
from oomdoctor.worker.tracing.tensors import local_part, plain_tensors, tensors_in
from oomdoctor.worker.tracing.whereabouts import (
    NOWHERE,
    OptimizerWalk,
    Place,
    Whereabouts,
    category_of,
    gathered,
)

Watcher = Callable[[OperatorCall], None]
# Called before the results are recorded: what the kernel does with memory.
StepsOf = Callable[[OperatorCall], Sequence[Step]]

# Kernels that allocate their results from the last to the first (Dropout.cu: the mask comes first).
_LAST_RESULT_FIRST = frozenset(("aten::native_dropout",))


class AllocationTrace:
    """Counts the bytes of live storages on one device type and keeps a tape of births and deaths.

    Invariant: `live` is the sum of the sizes of all blocks on the tape that have not died. If an
    allocation crosses `limit` bytes, it raises `torch.OutOfMemoryError` in PyTorch's words.
    `vocabulary` and `tokens` (of one micro-batch) distinguish logits from activations. `where` says
    which module a birth belongs to. `watcher` is called after every operator. `optimizer`
    follows the update of parameters.
    """

    def __init__(
        self, device_type: str, *, limit: int | None = None, where: Whereabouts | None = None
    ) -> None:
        self.device_type = device_type
        self.limit = limit
        self.vocabulary = self.tokens = 0
        self.where = where
        self.watcher: Watcher | None = None
        self.steps_of: StepsOf | None = None
        self.taken: list[int] = []  # the blocks that the last kernel took internally
        self.phase = "init"
        self.live = 0
        self.peak = 0
        self.window_peak = 0
        self.attention_ops: set[str] = set()
        self.tape = Tape()
        self.made_of: dict[int, int] = {}  # while loading: block -> the block it was made from
        self.region_of_operator: Region | None = None
        self.stream = 0  # the one that allocates now
        self.lasting: set[int] = set()  # blocks that stay until the process ends
        self.optimizer = OptimizerWalk()
        self._peak_event = 0
        self._known: dict[int, tuple[int, object]] = {}  # storage -> (block, weak reference)
        self._paused = False
        self._outside: dict[int, object] = {}  # storages that are not memory of the device
        # Storages that gave up their memory: what they were born as, and a weak reference.
        self._emptied: dict[int, tuple[TapeBlock, object]] = {}

    @contextmanager
    def recording(self) -> Iterator[None]:
        """Record the results of every operator, and storages that are resized without one."""
        with Recording(self), resized_storages(self.note_resized):
            yield

    def cut(self, blocks: int, events: int) -> None:
        """Forget all from here on. What is still alive, in a cycle, is no part of the tape then."""
        tape = self.tape
        for address, (number, _) in list(self._known.items()):
            if number >= blocks:
                del self._known[address]
                self._count(-tape.blocks[number].size)
        del tape.blocks[blocks:], tape.events[events:], tape.regions[events:]

    def enter(self, step: str, phase: str) -> None:
        """Begin a phase of a step: its peak starts at what is alive now."""
        self.tape.enter(step, phase)
        self.phase = phase
        self.window_peak = self.live
        if self.where is not None:
            self.where.enter(phase)

    def adopt(
        self,
        tensors: Iterable[torch.Tensor],
        category: str,
        region: Region | None = None,
        module: str = "",
    ) -> list[int]:
        """Set the category of these tensors, also of those born before the recording.

        Returns their blocks. `region` and `module` replace the unit and the module of the blocks.
        """
        blocks = []
        for tensor in tensors:
            for plain in plain_tensors(tensor):
                number = self._note(plain, "", category, Place(module, region))
                if number is not None:
                    block = self.tape.blocks[number]
                    block.category = category
                    block.region = region or block.region
                    block.module = module or block.module
                    blocks.append(number)
        return blocks

    def breakdown(self) -> Mapping[str, int]:
        """Bytes by category at the event with the highest `live`; they add up to `peak`."""
        totals = dict.fromkeys(CATEGORIES, 0)
        for event in self.tape.events[: self._peak_event]:
            block = self.tape.blocks[abs(event) - 1]
            totals[block.category] += block.size if event > 0 else -block.size
        return totals

    def curve(
        self, without: str = "", peaks: Callable[[Sequence[Stretch]], Sequence[int]] | None = None
    ) -> MemoryCurve | None:
        """How memory rose and fell in the windows of the tape; None if there are none.

        What happened in a step `without` is left out; it comes last. `peaks` gives the allocator's
        peaks of parts of the tape.
        """
        windows = [window for window in self.tape.windows if window[1] != without]
        ends = [start for start, step, _ in self.tape.windows if step == without]
        events = self.tape.events[: ends[0] if ends else None]
        parts = stretches(windows, len(events)) if windows else []
        if not parts:
            return None
        of_events = [self.tape.blocks[abs(event) - 1] for event in events]
        pairs = zip(events, of_events, strict=True)
        changes = [block.allocated if event > 0 else -block.allocated for event, block in pairs]
        names = [block.category for block in of_events]
        return memory_curve(changes, names, parts, None if peaks is None else peaks(parts))

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Tensors made in this context are not memory of the device, then or later."""
        with replaced(self, "_paused", True):
            yield

    def works_on(self, parameter: torch.Tensor) -> None:
        """The optimizer comes to a parameter, with operators that are not recorded."""
        if self.phase == "optimizer":
            self.optimizer.owners((parameter,), self._known_block)

    def finish(self) -> Tape:
        """Return the tape; later deaths are not recorded."""
        self._known.clear()
        return self.tape

    def begins(self) -> None:
        """An operator begins."""
        if self.where is not None:
            self.where.look()

    def note_operator(self, call: OperatorCall) -> None:
        """Record the storages that an operator returned."""
        if self._paused:
            for tensor in tensors_in(call.result):
                self._leave_out(tensor)
            return
        name, attends = _name_of(call.func)
        if attends and self.phase != "eval":
            self.attention_ops.add(name)
        for tensor in tensors_in(gathered(name, call)):
            number = self.part_of(tensor)
            if number is not None and self.phase in ("forward", "backward", "eval"):
                self.tape.blocks[number].category = WEIGHTS
        owners = self._owners(call.args)
        steps = () if self.steps_of is None else self.steps_of(call)
        self._play(name, steps, list(tensors_in(call.result)), owners, call.args)
        if self.watcher is not None:
            here = None if self.where is None else self.where.region
            self.region_of_operator = here or owners[0].region
            self.watcher(call)

    def _play(
        self,
        name: str,
        steps: Sequence[Step],
        results: Sequence[torch.Tensor],
        owners: Sequence[Place],
        args: Sequence[object],
    ) -> None:
        """Record what an operator allocates and frees."""
        left = dict(enumerate(results))
        if name in _LAST_RESULT_FIRST:
            left = dict(reversed(left.items()))
        held: list[int] = []
        freed: set[int] = set()

        def note(positions: Iterable[int]) -> None:
            for position in positions:
                made = self._note(left.pop(position), name, None, owners[position % len(owners)])
                if made is not None and self.phase == "load":
                    self._note_source(made, args)

        for step in steps:
            if isinstance(step, OnHost):
                self._leave_out(left.pop(step.position))
        if not any(isinstance(step, Result) for step in steps):
            note(list(left))
        for step in steps:
            if isinstance(step, Result):
                note(list(left) if step.position == OTHERS else [step.position])
            elif isinstance(step, Freed):
                freed.add(step.taken)
                self.free_hidden([held[step.taken]])
            elif isinstance(step, Lasting):
                block = TapeBlock(step.size, TEMPORARY, step.name)
                self.lasting.add(self.note_hidden(block))
            elif isinstance(step, Passing):
                self.free_hidden([self._take(step.name, step.size)])
            elif not isinstance(step, OnHost):
                held.append(self._take(name, step))
        note(list(left))
        self.free_hidden([block for at, block in enumerate(held) if at not in freed])
        self.taken = held

    def _take(self, name: str, size: int) -> int:
        """Record the birth of a block that a kernel takes internally; returns the block."""
        block = TapeBlock(int(size), TEMPORARY, name, *self._place(), stream=self.stream)
        if isinstance(size, Scratch):
            block.rows, block.row_sum, block.segments = size.rows, size.row_sum, size.segments
        return self.note_hidden(block)

    def free_hidden(self, blocks: Sequence[int]) -> None:
        """Record the deaths of such blocks, the last first, as C++ does."""
        for block in reversed(blocks):
            self.tape.died(block, self.tape.blocks[block].region)
            self._count(-self.tape.blocks[block].allocated)

    def note_hidden(self, block: TapeBlock) -> int:
        """Record the birth of a block, also of one that no operator shows."""
        number = self.tape.born(block, block.region)
        self._count(block.allocated)
        return number

    def note_resized(self, storage: torch.UntypedStorage) -> None:
        """Record that a storage was resized without an operator, as FSDP does with weights."""
        if self._paused or storage.device.type not in (self.device_type, "meta"):
            return
        address, size = storage._cdata, storage.nbytes()
        traced, emptied = self._known.get(address), self._emptied.pop(address, None)
        before = self.tape.blocks[traced[0]] if traced else emptied and emptied[0]
        if before is None or address in self._outside or (traced and before.size == size):
            return
        self._known.pop(address, None)
        if size:
            module, region = self._place()
            made = replace(before, size=size, module=module, region=region, stream=self.stream)
            self._hold(storage, made)
        else:
            forget = weakref.ref(storage, lambda _: self._emptied.pop(address, None))
            self._emptied[address] = (before, forget)
        if traced is not None:
            self._bury(traced[0])

    def stays_for(self, block: int, tensor: torch.Tensor) -> None:
        """A tensor that a step made instead of a loaded block is there from now on.

        Both events were cut from the tape with the step, which has counted the death.
        """
        loaded, storage = self.tape.blocks[block], tensor.untyped_storage()
        self._hold(storage, replace(loaded, size=storage.nbytes()))
        self.tape.died(block, loaded.region)

    def block_of(self, tensor: object) -> int | None:
        """The block of a tensor's storage; None if it was never recorded or is not a tensor."""
        if not isinstance(tensor, torch.Tensor) or tensor.device.type != self.device_type:
            return None
        traced = self._known.get(tensor.untyped_storage()._cdata)
        return None if traced is None else traced[0]

    def unit_of(self, tensor: object) -> Region | None:
        """The unit of a tensor's block; None outside the repeating layers, or without a block."""
        block = self._known_block(tensor)
        return None if block is None else block.region

    def part_of(self, tensor: torch.Tensor | None) -> int | None:
        """The block of a tensor's storage; of one that is sharded, that of this rank's part."""
        return None if tensor is None else self.block_of(local_part(tensor))

    def _known_block(self, tensor: object) -> TapeBlock | None:
        number = self.block_of(tensor)
        return None if number is None else self.tape.blocks[number]

    def _owners(self, args: Sequence[object]) -> list[Place]:
        """Where results belong if no module runs: in the optimizer step, to its parameters."""
        if self.where is None or self.where.region is not None or self.phase != "optimizer":
            return [NOWHERE]
        return self.optimizer.owners(args, self._known_block)

    def _note_source(self, made: int, args: Sequence[object]) -> None:
        for tensor in args:
            source = self.block_of(tensor)
            if source is not None and source != made:
                self.made_of.setdefault(made, source)
                return

    def _place(self) -> Place:
        return NOWHERE if self.where is None else Place(self.where.module, self.where.region)

    def _note(
        self, tensor: torch.Tensor, name: str, category: str | None, owner: Place
    ) -> int | None:
        storage = tensor.untyped_storage()
        address, size = storage._cdata, storage.nbytes()
        traced = self._known.get(address)
        if traced is not None and self.tape.blocks[traced[0]].size == size:
            return traced[0]
        if traced is None and (
            size == 0 or address in self._outside or tensor.device.type != self.device_type
        ):
            return None
        module, region = owner
        if self.where is not None:
            module, region = self.where.module or module, self.where.region or region
        if category is None:
            category = category_of(tensor, self.phase, self.vocabulary, self.tokens)
        block = TapeBlock(size, category, name, module, region, stream=self.stream)
        number = self._hold(storage, block)
        if traced is not None:  # resize_ allocates the new block before it frees the old one
            self._bury(traced[0])
        return number

    def _hold(self, storage: torch.UntypedStorage, block: TapeBlock) -> int:
        """Record the birth of a block that dies with its storage."""
        if self.limit is not None and self.live + block.size > self.limit:
            raise _out_of_memory(block.size, self.limit, self.live)
        number, address = self.note_hidden(block), storage._cdata
        self._known[address] = (number, weakref.ref(storage, self._death(address)))
        return number

    def found_on_host(self, tensor: torch.Tensor) -> None:
        """A tensor that was counted is not memory of the device."""
        traced = self._known.pop(tensor.untyped_storage()._cdata, None)
        if traced is not None:
            self._bury(traced[0])
            self._leave_out(tensor)

    def _leave_out(self, tensor: torch.Tensor) -> None:
        storage = tensor.untyped_storage()
        address = storage._cdata
        if address not in self._known and address not in self._outside:
            forget = weakref.ref(storage, lambda _: self._outside.pop(address, None))
            self._outside[address] = forget

    def _death(self, address: int) -> Callable[[object], None]:
        def died(reference: object) -> None:
            traced = self._known.get(address)
            if traced is not None and traced[1] is reference:
                del self._known[address]
                self._bury(traced[0])

        return died

    def _bury(self, number: int) -> None:
        block = self.tape.blocks[number]
        here = None if self.where is None else self.where.region
        if here is None and self.phase == "optimizer":
            here = self.optimizer.came_to(block.region)
        self.tape.died(number, here or block.region)
        self._count(-block.size)

    def _count(self, change: int) -> None:
        self.live += change
        if self.live > self.window_peak:
            self.window_peak = self.live
        if self.live > self.peak:
            self.peak = self.live
            self._peak_event = len(self.tape.events)


@cache
def _name_of(func: OpOverload) -> tuple[str, bool]:
    """The name of an operator, and whether it is a kernel of attention."""
    name: str = func._schema.name if hasattr(func, "_schema") else str(func)
    return name, "attention" in name or "flash_attn" in name


def _out_of_memory(requested: int, limit: int, live: int) -> torch.OutOfMemoryError:
    """The error of a crossed budget, in PyTorch's words, so that one parser reads both."""
    return torch.OutOfMemoryError(
        f"CPU out of memory. Tried to allocate {format_size(requested)}. The CPU budget has a "
        f"total capacity of {format_size(limit)} of which {format_size(limit - live)} is free. "
        f"Of the allocated memory {format_size(live)} is allocated by PyTorch, and 0 bytes is "
        "reserved by PyTorch but unallocated."
    )
