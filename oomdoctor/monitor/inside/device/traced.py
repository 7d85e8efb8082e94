"""The memory of a process by torch's own trace, read and cleared at each step.

It tells every peak with its phase, module and line, and takes time, which does not matter on an
emulated GPU.
"""

from __future__ import annotations

import os
from array import array
from collections.abc import Callable
from pathlib import Path
from typing import Any

from oomdoctor.monitor.inside.device import history, memory
from oomdoctor.monitor.inside.device.history import History, read_all
from oomdoctor.monitor.inside.device.memory import Live, keep_step
from oomdoctor.monitor.inside.ending import StepMemory
from oomdoctor.monitor.inside.position import Position
from oomdoctor.monitor.inside.process import device_facts, outside_bytes

_MOST_FRAMES = 60


class TracedMemory:
    """Memory by the trace. `on_forward` is called before each pass of an outermost module."""

    stops_to_look = True
    live: Live | None = None

    def __init__(self, folder: Path, on_forward: Callable[[], None]) -> None:
        self._folder, self._pid = folder, os.getpid()
        self._position = Position(on_forward)
        self._histories: dict[int, History] = {}
        self._places: dict[int, dict[str, Any]] = {}
        self._steps: dict[int, list[StepMemory]] = {}
        self._outside: dict[int, int] = {}
        self._written: dict[int, int] = {}

    def begin(self) -> None:
        """Record allocations, and add hooks to modules."""
        history.start()
        self._position.begin()

    def read(self, step: int) -> None:
        """Read the trace, and note where the training was at a new peak."""
        before = {device: one.peak.at_us for device, one in self._histories.items()}
        read_all(self._histories, step)
        for device, one in self._histories.items():
            if one.peak.at_us != before.get(device):
                phase, module = self._position.at(one.peak.at_us)
                self._places[device] = {
                    "phase": phase,
                    "module": module or None,
                    "step": step,
                    "frames": one.peak.frames[:_MOST_FRAMES],
                    "backward_frames": self._position.backward_frames,
                }
            self._outside[device] = max(self._outside.get(device, 0), outside_bytes(device))

    def end_step(self, step: int) -> None:
        """Keep what the step needed and what it left."""
        for device, one in self._histories.items():
            at_end = StepMemory(
                step=step,
                peak_allocated_bytes=one.step_allocated,
                peak_reserved_bytes=one.step_reserved,
                allocated_bytes=one.allocated,
                reserved_bytes=one.reserved,
            )
            keep_step(self._steps.setdefault(device, []), at_end)
            one.begin_step()

    def forget(self) -> None:
        """Forget the places of this step."""
        self._position.forget()

    def between_steps(self) -> None:
        """An optimizer step has ended, and nothing is known of what follows."""
        self._position.enter("other")

    def steps(self) -> list[list[StepMemory]]:
        """The steps so far of each device."""
        return list(self._steps.values())

    def place(self) -> dict[str, Any]:
        """Where the training is, by the hooks."""
        return {
            "phase": self._position.phase,
            "module": self._position.module or None,
            "backward_frames": self._position.backward_frames,
        }

    def devices(self) -> list[dict[str, Any]]:
        """The devices with a trace; the events since the last call are written to a file."""
        return [self._device(one) for one in self._histories.values()]

    def _device(self, one: History) -> dict[str, Any]:
        import torch

        device = one.device
        stats = torch.cuda.memory_stats(device)
        allocated, reserved = memory.peaks_of(device)
        self._write_events(one)
        return {
            "device": device,
            **device_facts(device),
            "peak_allocated_bytes": allocated,
            "peak_reserved_bytes": reserved,
            "allocated_bytes": stats["allocated_bytes.all.current"],
            "reserved_bytes": stats["reserved_bytes.all.current"],
            "retries": stats["num_alloc_retries"],
            "outside_bytes": self._outside.get(device, 0),
            "peak": self._places.get(device),
            "steps": [vars(step) for step in self._steps.get(device, [])],
            "curve": one.curve.points,
            "events_are_whole": one.is_whole,
        }

    def _write_events(self, one: History) -> None:
        """Append what is new: three numbers an event (block, size or minus its size, stream)."""
        path = self._folder / f"events-{self._pid}-{one.device}.bin"
        at = self._written.get(one.device, 0)
        if at == len(one.blocks):
            return
        flat = array("q", bytes(24 * (len(one.blocks) - at)))
        columns = (one.blocks, one.sizes, one.streams)
        for place, column in enumerate(columns):
            flat[place::3] = column[at:]
        with path.open("ab") as file:
            flat.tofile(file)
        self._written[one.device] = len(one.blocks)
