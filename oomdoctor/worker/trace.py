"""Every birth and death of tensor storage, recorded under a dispatch mode.

Storages are counted, not tensors: views, in-place results, saved tensors and tied weights share
one. What an operator allocates and frees inside itself is not a tensor and is not seen. On the
CPU this trace is the measurement and enforces the budget; on CUDA it only says what the peak is
made of.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

WEIGHTS, GRADIENTS, OPTIMIZER = "weights", "gradients", "optimizer"
ACTIVATIONS, LOGITS, OTHER = "activations", "logits", "other"
CATEGORIES = (WEIGHTS, GRADIENTS, OPTIMIZER, ACTIVATIONS, LOGITS, OTHER)


@dataclass(slots=True)
class Block:
    """One storage: its bytes and what it is. `category` is corrected when its owner is known."""

    size: int
    category: str


class AllocationTrace:
    """Counts live storage bytes on one device type and keeps the events between births and deaths.

    Invariant: `live` equals the sum of `size` over blocks that were born and have not died.
    `limit` in bytes raises `torch.OutOfMemoryError`, worded as PyTorch words it, at the allocation
    that crosses it. `vocabulary` and `tokens` (of one micro-batch) tell logits from activations.
    """

    def __init__(
        self, device_type: str, *, limit: int | None = None, vocabulary: int = 0, tokens: int = 0
    ) -> None:
        self.device_type = device_type
        self.limit = limit
        self.vocabulary = vocabulary
        self.tokens = tokens
        self.phase = "init"
        self.live = 0
        self.peak = 0
        self.window_peak = 0
        self.attention_ops: set[str] = set()
        self._blocks: list[Block] = []
        self._events: list[tuple[int, int]] = []  # (block, change of bytes)
        self._peak_event = 0
        self._known: dict[int, tuple[int, Any]] = {}  # storage address -> (block, weak reference)

    def recording(self) -> AbstractContextManager[Any]:
        """A dispatch mode under which every operator's results are recorded."""
        return _dispatch_mode(self)

    def enter(self, phase: str) -> None:
        """Begin a phase: its peak starts at what is alive now."""
        self.phase = phase
        self.window_peak = self.live

    def adopt(self, tensors: Iterable[Any], category: str) -> None:
        """Say what these tensors are, and count those born before the recording."""
        for tensor in tensors:
            for plain in _plain_tensors(tensor):
                if plain.device.type != self.device_type:
                    continue
                block = self._note(plain, category)
                if block is not None:
                    self._blocks[block].category = category

    def breakdown(self) -> Mapping[str, int]:
        """Bytes by category at the event of the highest `live`; they add up to `peak`."""
        alive: dict[int, int] = {}
        for block, change in self._events[: self._peak_event]:
            alive[block] = alive.get(block, 0) + change
        totals = dict.fromkeys(CATEGORIES, 0)
        for block, size in alive.items():
            totals[self._blocks[block].category] += size
        return totals

    def note_results(self, func: Any, result: Any) -> None:
        """Record the storages that an operator returned."""
        name = func._schema.name if hasattr(func, "_schema") else str(func)
        if self.phase != "eval" and ("attention" in name or "flash_attn" in name):
            self.attention_ops.add(name)
        for tensor in _tensors_in(result):
            if tensor.device.type == self.device_type:
                self._note(tensor, None)

    def _note(self, tensor: Any, category: str | None) -> int | None:
        storage = tensor.untyped_storage()
        address, size = storage._cdata, storage.nbytes()
        known = self._known.get(address)
        if known is not None:
            block = known[0]
            if self._blocks[block].size != size:  # resize_ of a storage that is alive
                self._change(block, size - self._blocks[block].size)
            return block
        if size == 0:
            return None
        block = len(self._blocks)
        self._blocks.append(Block(0, category or self._category(tensor)))
        self._known[address] = (block, weakref.ref(storage, self._death(address, block)))
        self._change(block, size)
        return block

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
        return OTHER

    def _death(self, address: int, block: int) -> Callable[[Any], None]:
        def died(_: Any) -> None:
            known = self._known.get(address)
            if known is not None and known[0] == block:
                del self._known[address]
            self._change(block, -self._blocks[block].size)

        return died

    def _change(self, block: int, change: int) -> None:
        if change > 0 and self.limit is not None and self.live + change > self.limit:
            self._forget(block)
            raise _out_of_memory(change, self.limit, self.live)
        self._blocks[block].size += change
        self._events.append((block, change))
        self.live += change
        if self.live > self.window_peak:
            self.window_peak = self.live
        if self.live > self.peak:
            self.peak = self.live
            self._peak_event = len(self._events)

    def _forget(self, block: int) -> None:
        for address, (known, _) in self._known.items():
            if known == block and self._blocks[block].size == 0:
                del self._known[address]
                return


def _out_of_memory(requested: int, limit: int, live: int) -> Any:
    """The same words as PyTorch's allocator, so that one parser reads both."""
    import torch

    return torch.OutOfMemoryError(
        f"CPU out of memory. Tried to allocate {_size(requested)}. The CPU budget has a total "
        f"capacity of {_size(limit)} of which {_size(limit - live)} is free. Of the allocated "
        f"memory {_size(live)} is allocated by PyTorch, and 0 bytes is reserved by PyTorch but "
        "unallocated."
    )


def _size(size: int) -> str:
    """As c10's `format_size` prints: two digits, binary units."""
    if size <= 1024:
        return f"{size} bytes"
    if size <= 1024**2:
        return f"{size / 1024:.2f} KiB"
    if size <= 1024**3:
        return f"{size / 1024**2:.2f} MiB"
    return f"{size / 1024**3:.2f} GiB"


def _tensors_in(result: Any) -> Iterator[Any]:
    import torch

    if isinstance(result, torch.Tensor):
        yield result
    elif isinstance(result, list | tuple):
        for item in result:
            yield from _tensors_in(item)


def _plain_tensors(tensor: Any) -> Iterator[Any]:
    """The tensor and the ones a quantised parameter carries beside it (bitsandbytes)."""
    yield tensor
    state = getattr(tensor, "quant_state", None)
    while state is not None:
        for name in ("absmax", "code", "offset"):
            part = getattr(state, name, None)
            if hasattr(part, "untyped_storage"):
                yield part
        state = getattr(state, "state2", None)
    for name in ("CB", "SCB"):
        part = getattr(tensor, name, None)
        if hasattr(part, "untyped_storage"):
            yield part


def _dispatch_mode(trace: AllocationTrace) -> AbstractContextManager[Any]:
    from torch.utils._python_dispatch import TorchDispatchMode

    class Recording(TorchDispatchMode):  # type: ignore[misc]
        def __torch_dispatch__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            result = func(*args, **(kwargs or {}))
            trace.note_results(func, result)
            return result

    return Recording()
