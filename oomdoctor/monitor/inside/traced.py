"""The memory of a process by torch's own trace, read and cleared at each step.

It tells every peak with its phase, module and line, and takes time, which does not matter on an
emulated GPU.

Phase and module at a time are from torch's public hooks. Those of modules change nothing of what
they see. In the backward pass, the node that made a module's output calls back when it is about to
run. Code that torch compiles is left alone.
"""

from __future__ import annotations

import os
import threading
import time
import warnings
from array import array
from bisect import bisect_right
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from oomdoctor.monitor.inside import allocator_history, launches, past_memory
from oomdoctor.monitor.inside.allocator_history import History, Request, read_all
from oomdoctor.monitor.inside.ending import frames_here
from oomdoctor.monitor.inside.memory import DeviceMemory
from oomdoctor.records.report.watch import StepPeaks

_MOST_FRAMES = 60
_MOST = 200_000


class TracedMemory(DeviceMemory):
    """Memory by the trace. `on_forward` is called before each pass of an outermost module.

    With `goes_past`, it looks for the first request that is granted past the limit of the card.
    """

    stops_to_look = True
    """Whether reading it takes the time of the training, so that a record follows at once."""
    past: dict[str, Any] | None = None
    """The first request that a real card would not have met, as the record has those."""

    def __init__(
        self, folder: Path, on_forward: Callable[[], None], *, goes_past: bool = False
    ) -> None:
        super().__init__()  # nothing is written to its live log
        self._folder, self._pid = folder, os.getpid()
        self._goes_past = goes_past
        self._position = Position(on_forward)
        self._histories: dict[int, History] = {}
        self._places: dict[int, dict[str, Any]] = {}
        self._written: dict[int, int] = {}

    def begin(self) -> None:
        """Record allocations, and add hooks to modules."""
        allocator_history.start()
        if self._goes_past:
            past_memory.begin()
        self._position.begin()

    def read(self, step: int) -> None:
        """Read the trace, and note where the training was at a new peak."""
        before = {device: history.peak.at_us for device, history in self._histories.items()}
        first = past_memory.first() if self._goes_past else None
        read_all(self._histories, step, first)
        if first is not None and self.past is None:
            self.past = self._request(first)
        for device, history in self._histories.items():
            if history.peak.at_us != before.get(device):
                self._places[device] = {
                    **self._position.at(history.peak.at_us),
                    "step": step,
                    "frames": history.peak.frames[:_MOST_FRAMES],
                }
            self._ask_outside(device)

    def _request(self, first: dict[str, int]) -> dict[str, Any]:
        """What the record says of a request granted past the limit, except for its step."""
        history = self._histories.get(first["device"])
        request = None if history is None else history.request
        if request is None:  # its entry is lost: what the device knows
            request = Request(first["size"], 0, 0, first["at_us"], [])
        return {
            "device": first["device"],
            "at": first["at_us"] / 1e6,
            "requested_bytes": request.requested_bytes,
            "total_bytes": first["total_bytes"],
            "free_bytes": first["free_bytes"],
            "allocated_bytes": request.allocated_bytes,
            "reserved_bytes": request.reserved_bytes,
            "frames": request.frames[:_MOST_FRAMES],
            **self._position.at(request.at_us),
            "snapshot": None,
        }

    def end_step(self, step: int) -> None:
        """Keep what the step needed and what it left."""
        for device, history in self._histories.items():
            at_end = StepPeaks(
                step=step,
                peak_allocated_bytes=history.step_allocated,
                peak_reserved_bytes=history.step_reserved,
                allocated_bytes=history.allocated,
                reserved_bytes=history.reserved,
            )
            self._keep_step(device, at_end)
            history.begin_step()

    def forget(self) -> None:
        """Forget the places of this step."""
        self._position.forget()

    def between_steps(self) -> None:
        """An optimizer step has ended, and nothing is known of what follows."""
        self._position.enter("other")

    @property
    def without_gradients(self) -> bool:
        """Whether a module has run without gradients, as in an evaluation."""
        return self._position.without_gradients

    def place(self) -> dict[str, Any]:
        """Where the training is, by the hooks."""
        return self._position.place(self._position.phase, self._position.module)

    def devices(self) -> list[dict[str, Any]]:
        """The devices with a trace; the events since the last call are written to a file."""
        return [self._device(history) for history in self._histories.values()]

    def _device(self, history: History) -> dict[str, Any]:
        self._write_events(history)
        return self._record_of(
            history.device,
            peak=self._places.get(history.device),
            curve=history.curve.points,
            events_are_whole=history.is_whole,
        )

    def _write_events(self, history: History) -> None:
        """Append what is new: three numbers an event (block, size or minus its size, stream)."""
        path = self._folder / f"events-{self._pid}-{history.device}.bin"
        at = self._written.get(history.device, 0)
        if at == len(history.blocks):
            return
        flat = array("q", bytes(24 * (len(history.blocks) - at)))
        columns = (history.blocks, history.sizes, history.streams)
        for place, column in enumerate(columns):
            flat[place::3] = column[at:]
        with path.open("ab") as file:
            flat.tofile(file)
        self._written[history.device] = len(history.blocks)


class Position:
    """The phases and modules of this step, with the times at which they began.

    `on_forward` is called before each pass of an outermost module.
    """

    def __init__(self, on_forward: Callable[[], None]) -> None:
        self._on_forward = on_forward
        self.phase, self.module = "load", ""
        self.backward_frames: list[dict[str, Any]] = []
        self._times: list[int] = []
        self._places: list[tuple[str, str]] = []
        self._stack: list[tuple[int, str]] = []
        self._names: dict[int, str] = {}
        self._thread: int | None = None
        self.without_gradients = False

    def begin(self) -> None:
        """Add the hooks. torch.compile would warn that there are some; they leave it alone."""
        warnings.filterwarnings("ignore", message=r".*when there are global hooks on modules")
        from torch.nn.modules import module
        from torch.optim import optimizer

        module.register_module_forward_pre_hook(self._before)
        module.register_module_forward_hook(self._after, always_call=True)
        optimizer.register_optimizer_step_pre_hook(self._before_optimizer)

    def enter(self, phase: str, module: str = "") -> None:
        """Note where the training is from now on."""
        self.phase, self.module = phase, module
        launches.note_phase(phase)
        self.without_gradients |= phase == "eval"
        if len(self._times) < _MOST:
            self._times.append(time.time_ns() // 1000)
            self._places.append((phase, module))

    def at(self, time_us: int) -> dict[str, Any]:
        """Where the training was at a time of this step."""
        index = bisect_right(self._times, time_us) - 1
        return self.place(*(self._places[index] if index >= 0 else ("load", "")))

    def place(self, phase: str, module: str) -> dict[str, Any]:
        """A phase and a module as the record says them, and the line that called backward."""
        frames = self.backward_frames
        return {"phase": phase, "module": module or None, "backward_frames": frames}

    def forget(self) -> None:
        """Forget all but the present place, which may have begun earlier."""
        self._times, self._places = self._times[-1:], self._places[-1:]

    def _before(self, module: Any, inputs: Any) -> None:
        import torch

        if torch.compiler.is_compiling():
            return
        with suppress(Exception):
            here = threading.get_ident()
            if not self._stack and self.phase != "backward":
                self._thread = here
            if here != self._thread:  # activations are computed again in the backward pass
                if self.phase == "backward":
                    self.enter("backward", self._names.get(id(module), type(module).__name__))
                return
            if not self._stack:
                self._on_forward()
                if id(module) not in self._names:
                    self._name_all(module)
            name = self._names.get(id(module), type(module).__name__)
            self._stack.append((id(module), name))
            self.enter("forward" if torch.is_grad_enabled() else "eval", name)

    def _after(self, module: Any, inputs: Any, output: Any) -> None:
        import torch

        if torch.compiler.is_compiling():
            return
        with suppress(Exception):
            if threading.get_ident() != self._thread or not self._stack:
                return
            name = self._names.get(id(module), type(module).__name__)
            while self._stack and self._stack.pop()[0] != id(module):
                pass  # a module that was left by an exception
            if self._stack:
                self.enter(self.phase, self._stack[-1][1])
            else:
                self.enter("loss" if torch.is_grad_enabled() else "eval")
            node = _node(output)
            if node is not None:
                node.register_prehook(lambda _: self._in_backward(name))

    def _in_backward(self, name: str) -> None:
        with suppress(Exception):
            if self.phase != "backward":
                # The thread of the script waits in the line that called backward.
                self.backward_frames = frames_here(self._thread)
            self.enter("backward", name)

    def _before_optimizer(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        self._stack.clear()
        self.enter("optimizer", type(optimizer).__name__)

    def _name_all(self, root: Any) -> None:
        for name, module in root.named_modules():
            short = name.replace("_orig_mod.", "").replace("_fsdp_wrapped_module.", "")
            self._names[id(module)] = short.removeprefix("module.") or type(module).__name__


def _node(output: Any) -> Any:
    """The node of the graph that made a module's first tensor; None without one."""
    import torch

    if not isinstance(output, torch.Tensor) and hasattr(output, "values"):
        output = list(output.values())
    values = output if isinstance(output, (tuple, list)) else [output]
    return next((value.grad_fn for value in values if isinstance(value, torch.Tensor)), None)
