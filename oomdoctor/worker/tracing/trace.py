"""Every birth and death of tensor storage, recorded under a dispatch mode.

Storages are counted, not tensors: views, in-place results, saved tensors and tied weights share
one. What an operator allocates and frees inside itself is not a tensor and is not seen. On the
CPU this trace is the measurement and enforces the budget; on CUDA it only says what the peak is
made of.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from typing import Any

from oomdoctor.analysis.simulator.tape import Region, Tape, TapeBlock
from oomdoctor.worker.tracing.cpu_limit import out_of_memory
from oomdoctor.worker.tracing.tensors import plain_tensors, tensors_in
from oomdoctor.worker.tracing.whereabouts import NOWHERE, Place, Whereabouts

WEIGHTS, GRADIENTS, OPTIMIZER = "weights", "gradients", "optimizer"
ACTIVATIONS, LOGITS = "activations", "logits"
INPUTS, TEMPORARY = "inputs", "temporary"
CATEGORIES = (WEIGHTS, GRADIENTS, OPTIMIZER, ACTIVATIONS, LOGITS, INPUTS, TEMPORARY)
Watcher = Callable[[Any, Any, Any, Any], None]  # operator, args, kwargs, result


class AllocationTrace:
    """Counts live storage bytes on one device type and keeps every birth and death on a tape.

    Invariant: `live` equals the sum of the sizes of the tape's blocks that were born and have not
    died. `limit` in bytes raises `torch.OutOfMemoryError`, worded as PyTorch words it, at the
    allocation that crosses it. `vocabulary` and `tokens` (of one micro-batch) tell logits from
    activations. `where` says to which module a birth belongs; `watcher` is told every operator.
    """

    def __init__(
        self,
        device_type: str,
        *,
        limit: int | None = None,
        vocabulary: int = 0,
        tokens: int = 0,
        where: Whereabouts | None = None,
        watcher: Watcher | None = None,
    ) -> None:
        self.device_type = device_type
        self.limit = limit
        self.vocabulary = vocabulary
        self.tokens = tokens
        self.where = where
        self.watcher = watcher
        self.phase = "init"
        self.live = 0
        self.peak = 0
        self.window_peak = 0
        self.attention_ops: set[str] = set()
        self.tape = Tape()
        self.made_of: dict[int, int] = {}  # while loading: block -> the block it was made from
        self._peak_event = 0
        self._known: dict[int, tuple[int, Any]] = {}  # storage address -> (block, weak reference)
        self.region_of_operator: Region | None = None
        self.last_owner = NOWHERE
        self.stepping = False  # the optimizer is at its parameters
        self._one_by_one = False  # one after the other, not in lists
        self._paused = False
        self._outside: dict[int, Any] = {}  # storages that are no memory of the device

    def recording(self) -> AbstractContextManager[Any]:
        """A dispatch mode under which every operator's results are recorded."""
        return _dispatch_mode(self)

    def enter(self, phase: str) -> None:
        """Begin a phase: its peak starts at what is alive now."""
        self.phase = phase
        self.window_peak = self.live
        if self.where is not None:
            self.where.enter(phase)

    def adopt(
        self,
        tensors: Iterable[Any],
        category: str,
        region: Region | None = None,
        module: str = "",
    ) -> list[int]:
        """Say what these tensors are, and count those born before the recording; their blocks.

        With `region` they belong to that unit from now on, with `module` to the module there.
        """
        blocks = []
        for tensor in tensors:
            for plain in plain_tensors(tensor):
                if plain.device.type != self.device_type:
                    continue
                number = self._note(plain, "", category, Place(module, region))
                if number is not None:
                    block = self.tape.blocks[number]
                    block.category = category
                    block.region = region or block.region
                    block.module = module or block.module
                    blocks.append(number)
        return blocks

    def breakdown(self) -> Mapping[str, int]:
        """Bytes by category at the event of the highest `live`; they add up to `peak`."""
        totals = dict.fromkeys(CATEGORIES, 0)
        for event in self.tape.events[: self._peak_event]:
            block = self.tape.blocks[abs(event) - 1]
            totals[block.category] += block.size if event > 0 else -block.size
        return totals

    @contextmanager
    def paused(self) -> Iterator[None]:
        """What is made within is no memory of the device, then and later."""
        self._paused = True
        try:
            yield
        finally:
            self._paused = False

    def step_begins(self, begins: bool) -> None:
        """The optimizer comes to its parameters, or is through with them."""
        self.stepping = begins
        self.last_owner, self._one_by_one = NOWHERE, False

    def finish(self) -> Tape:
        """The tape; what dies later is not recorded any more."""
        self._known.clear()
        return self.tape

    def note_operator(self, func: Any, args: Any, kwargs: Any, result: Any) -> None:
        """Record the storages that an operator returned."""
        if self._paused:
            for tensor in tensors_in(result):
                self._leave_out(tensor)
            return
        name = func._schema.name if hasattr(func, "_schema") else str(func)
        if self.phase != "eval" and ("attention" in name or "flash_attn" in name):
            self.attention_ops.add(name)
        owners = self._owners(args)
        for position, tensor in enumerate(tensors_in(result)):
            if tensor.device.type == self.device_type:
                owner = owners[position % len(owners)]
                made = self._note(tensor, name, None, owner)
                if self.phase == "load" and made is not None:
                    self._note_source(made, args)
        if self.watcher is not None:
            self.region_of_operator = self._place().region or owners[0].region
            self.watcher(func, args, kwargs, result)

    def note_hidden(self, name: str, sizes: Iterable[int]) -> None:
        """Record blocks that a kernel takes and gives back within itself, all at once."""
        module, region = self._place()
        born = [
            self.tape.born(TapeBlock(size, TEMPORARY, name, module, region), region)
            for size in sizes
        ]
        self._count(sum(self.tape.blocks[block].size for block in born))
        for block in born:
            self.tape.died(block, region)
            self._count(-self.tape.blocks[block].size)

    def note_lasting(self, name: str, size: int) -> None:
        """Record a block that stays for the life of the process, such as a workspace."""
        self.tape.born(TapeBlock(size, TEMPORARY, name), None)
        self._count(size)

    def _owners(self, args: Any) -> list[Place]:
        """Outside of the model: the places of the operator's first tensors, one for each result.

        A result without a tensor to follow belongs to the parameter that was treated last.
        """
        if self.where is None or self.where.region is not None or self.phase != "optimizer":
            return [NOWHERE]
        first = next((arg for arg in args if isinstance(arg, list | tuple) and arg), None)
        tensors = first if first is not None else args
        owners = []
        for tensor in tensors:
            known = self.block_of(tensor)
            if known is not None:
                followed = self.tape.blocks[known]
                owners.append(Place(followed.module, followed.region))
                self.last_owner = owners[-1]
                self._one_by_one = first is None and self.stepping
            elif first is not None:
                owners.append(self.last_owner)
        return owners or [self.last_owner]

    def _note_source(self, made: int, args: Any) -> None:
        for tensor in args:
            source = self.block_of(tensor)
            if source is not None and source != made:
                self.made_of.setdefault(made, source)
                return

    def block_of(self, tensor: Any) -> int | None:
        """The block of a tensor's storage, None where it was never recorded."""
        if not hasattr(tensor, "untyped_storage") or tensor.device.type != self.device_type:
            return None
        known = self._known.get(tensor.untyped_storage()._cdata)
        return None if known is None else known[0]

    def _place(self) -> Place:
        return NOWHERE if self.where is None else Place(self.where.module, self.where.region)

    def _note(self, tensor: Any, name: str, category: str | None, owner: Place) -> int | None:
        storage = tensor.untyped_storage()
        address, size = storage._cdata, storage.nbytes()
        if address in self._outside:
            return None
        known = self._known.get(address)
        if known is not None and self.tape.blocks[known[0]].size == size:
            return known[0]
        if size == 0 and known is None:
            return None
        if self.limit is not None and self.live + size > self.limit:
            raise out_of_memory(size, self.limit, self.live)
        here = self._place()
        module, region = here.module or owner.module, here.region or owner.region
        block = TapeBlock(size, category or self._category(tensor), name, module, region)
        number = self.tape.born(block, region)
        self._known[address] = (number, weakref.ref(storage, self._death(address)))
        self._count(size)
        if known is not None:  # resize_ takes the new before it gives back the old
            self._bury(known[0])
        return number

    def _leave_out(self, tensor: Any) -> None:
        storage = tensor.untyped_storage()
        address = storage._cdata
        if address not in self._known and address not in self._outside:

            def forget(_: Any) -> None:
                self._outside.pop(address, None)

            self._outside[address] = weakref.ref(storage, forget)

    def _category(self, tensor: Any) -> str:
        import torch

        shape = tensor.shape
        scores = self.vocabulary and len(shape) >= 2 and shape[-1] == self.vocabulary
        if scores and tensor.numel() >= self.tokens * self.vocabulary:
            return LOGITS
        if self.phase in ("forward", "eval"):
            return ACTIVATIONS
        # Backward itself runs without grad mode: with it, checkpointing recomputes a forward.
        if self.phase == "backward" and torch.is_grad_enabled():
            return ACTIVATIONS
        return TEMPORARY

    def _death(self, address: int) -> Callable[[Any], None]:
        def died(reference: Any) -> None:
            known = self._known.get(address)
            if known is not None and known[1] is reference:
                del self._known[address]
                self._bury(known[0])

        return died

    def _bury(self, number: int) -> None:
        block = self.tape.blocks[number]
        here = self._place().region
        self.tape.died(number, here or self._stepped(block.region) or block.region)
        self._count(-block.size)

    def _stepped(self, owner: Region | None) -> Region | None:
        """In the optimizer's loop over parameters: the unit it has come to, if it is the next one.

        What a loop made for one parameter dies when it makes the same for the next.
        """
        by_one = self._one_by_one and self.phase == "optimizer"
        now = self.last_owner.region if by_one else None
        if owner is None or now is None or owner[0] != now[0]:
            return None
        return now if abs(now[1] - owner[1]) <= 1 else None

    def _count(self, change: int) -> None:
        self.live += change
        if self.live > self.window_peak:
            self.window_peak = self.live
        if self.live > self.peak:
            self.peak = self.live
            self._peak_event = len(self.tape.events)


def _dispatch_mode(trace: AllocationTrace) -> AbstractContextManager[Any]:
    import torch
    from torch.utils._python_dispatch import TorchDispatchMode

    device_of = torch.ops.prim.device.default

    class Recording(TorchDispatchMode):  # type: ignore[misc]
        def __torch_dispatch__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            if func is device_of:  # what a fake tensor asks for its device; nothing is made
                return args[0].fake_device
            if trace.where is not None:
                trace.where.look()
            result = func(*args, **(kwargs or {}))
            trace.note_operator(func, args, kwargs or {}, result)
            return result

    return Recording()
