"""One process of a watched command: its steps, its devices, and the record that it leaves.

The record is written when CUDA starts, after each optimizer step or some seconds without one, when
memory runs out and when the interpreter ends. So a process that is killed leaves that of its last
step.
"""

from __future__ import annotations

import atexit
import json
import os
import sysconfig
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from oomdoctor.monitor.inside import peaks, reads
from oomdoctor.monitor.inside.agreement import agree
from oomdoctor.monitor.inside.alone import VARIABLE
from oomdoctor.monitor.inside.ending import StepMemory, wants_to_stop
from oomdoctor.monitor.inside.failure import (
    frames_here,
    last_exception,
    on_out_of_memory,
    script_file,
)
from oomdoctor.monitor.inside.folder import rank_and_world, replace_file
from oomdoctor.monitor.inside.history import History, read_all, start
from oomdoctor.monitor.inside.pending import wait_for_watchdog
from oomdoctor.monitor.inside.position import Position

_MOST_STEPS = 200  # in the record: the first and the last ones
_MOST_FRAMES = 60
_FIRST_FORWARDS = 4  # before which torch may still hold what later ones do not need
_INTERVAL_S = 5.0  # between two readings without an optimizer step
trainers = 0  # transformers' Trainers that are training now; they are stopped as a callback does
engines = 0  # steps of DeepSpeed's engines that are being taken; they say themselves when they end


class Watch:
    """The watch of the process `pid`."""

    def __init__(self, folder: Path, asked: dict[str, Any]) -> None:
        self.pid = os.getpid()
        self.stopped: str | None = None
        self._folder, self._asked = folder, asked
        self._position = Position(self._between_steps)
        self._histories: dict[int, History] = {}
        self._places: dict[int, dict[str, Any]] = {}
        self._steps: dict[int, list[StepMemory]] = {}
        self._outside: dict[int, int] = {}
        self._counts: dict[int, int] = {}
        self._step = self._forwards = 0
        self._ooms: list[dict[str, Any]] = []
        self._written: dict[int, int] = {}
        self._notes: list[str] = []
        self._read_at = time.monotonic()

    def begin(self) -> None:
        """Start to watch. CUDA has just been initialized."""
        from torch.optim import optimizer

        start()
        self._position.begin()
        optimizer.register_optimizer_step_post_hook(self._after_step)
        on_out_of_memory(self._on_out_of_memory)
        reads.start()
        peaks.start()
        atexit.register(self._at_exit)
        self._write()

    def _after_step(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        if os.getpid() != self.pid or engines:
            return
        # Several optimizers take turns; a step has ended once one of them comes round again.
        self._counts[id(optimizer)] = self._counts.get(id(optimizer), 0) + 1
        if self._counts[id(optimizer)] > self._step:
            self.end_step()

    def end_step(self) -> None:
        """Take note that an optimizer step has ended.

        Raises:
            SystemExit: the training ends here, unless a Trainer ends it.
        """
        stop: str | None = None
        try:
            self._step += 1
            self._read()
            self._end_step()
            stop = self._decide()
            self._write()
            self._position.forget()
            self._position.enter("other")
        except Exception as error:  # noqa: BLE001 - the user's program must not notice
            self._note(error)
        if stop is not None and not trainers:
            raise SystemExit(0)

    def _between_steps(self) -> None:
        """Read and write from time to time where no optimizer steps, as in inference."""
        self._forwards += 1
        if self._forwards <= _FIRST_FORWARDS:
            wait_for_watchdog()
        if os.getpid() != self.pid or time.monotonic() - self._read_at < _INTERVAL_S:
            return
        try:
            self._read()
            self._write()
            self._position.forget()
        except Exception as error:  # noqa: BLE001 - the user's program must not notice
            self._note(error)

    def _decide(self) -> str | None:
        """Why the training stops now; None if it goes on."""
        if self.stopped is not None:
            return None  # the Trainer was asked to stop, and may evaluate and save
        wish = wants_to_stop(self._asked["steps"], self._step, list(self._steps.values()))
        rank, world = rank_and_world()
        if world > 1 and rank is not None and self._asks_others():
            if self._step > self._asked["patience"]:
                return None
            answer = agree(self._folder, rank, world, self._step, wish is not None)
            if answer is None:
                self._notes.append(f"a rank did not answer at step {self._step}")
                self._asked = {**self._asked, "steps": "all"}
            wish = wish if answer else None
        self.stopped = wish
        return wish

    def _asks_others(self) -> bool:
        return self._asked["steps"] == "steady" and VARIABLE not in os.environ

    def _read(self) -> None:
        """Read the trace, and note where the training was at a new peak."""
        self._read_at = time.monotonic()
        before = {device: one.peak.at_us for device, one in self._histories.items()}
        read_all(self._histories, self._step)
        for device, history in self._histories.items():
            if history.peak.at_us != before.get(device):
                phase, module = self._position.at(history.peak.at_us)
                self._places[device] = {
                    "phase": phase,
                    "module": module or None,
                    "step": self._step,
                    "frames": history.peak.frames[:_MOST_FRAMES],
                    "backward_frames": self._position.backward_frames,
                }
            self._outside[device] = max(self._outside.get(device, 0), _outside(device))

    def _end_step(self) -> None:
        for device, history in self._histories.items():
            steps = self._steps.setdefault(device, [])
            steps.append(
                StepMemory(
                    step=self._step,
                    peak_allocated_bytes=history.step_allocated,
                    peak_reserved_bytes=history.step_reserved,
                    allocated_bytes=history.allocated,
                    reserved_bytes=history.reserved,
                )
            )
            if len(steps) > _MOST_STEPS:
                del steps[_MOST_STEPS // 2]
            history.begin_step()

    def _on_out_of_memory(self, device: int, requested: int, total: int, free: int) -> None:
        import torch

        try:
            phase, module = self._position.phase, self._position.module
            self._ooms.append(
                {
                    "device": device,
                    "requested_bytes": requested,
                    "total_bytes": total,
                    "free_bytes": free,
                    "allocated_bytes": torch.cuda.memory_allocated(device),
                    "phase": phase,
                    "module": module or None,
                    "step": self._step + 1,
                    "frames": frames_here(),
                    "backward_frames": self._position.backward_frames,
                }
            )
            del self._ooms[1:-1]
            self._read()
            self._write()
        except Exception as error:  # noqa: BLE001 - the user's program must not notice
            self._note(error)

    def _at_exit(self) -> None:
        if os.getpid() != self.pid:
            return
        with suppress(Exception):
            self._read()
        with suppress(Exception):
            self._write(ended=True)

    def _note(self, error: Exception) -> None:
        if len(self._notes) < 20:
            self._notes.append(f"{type(error).__name__}: {error}"[:500])

    def _write(self, *, ended: bool = False) -> None:
        rank, world = rank_and_world()
        record = {
            "pid": self.pid,
            "rank": rank,
            "world": world,
            "torch": _torch_release(),
            "architectures": _architectures(),
            "allocator": os.environ.get("PYTORCH_ALLOC_CONF")
            or os.environ.get("PYTORCH_CUDA_ALLOC_CONF"),
            "written_at": time.time(),
            "ended": ended,
            "step": self._step,
            "stopped": self.stopped,
            "exception": last_exception() if ended else None,
            "ooms": self._ooms,
            "unknown_reads": reads.unknown_reads(),
            "notes": self._notes,
            "library_folders": _library_folders(),
            "script": script_file(),
            "devices": [self._device(history) for history in self._histories.values()],
        }
        replace_file(self._folder / f"process-{self.pid}.json", json.dumps(record))

    def _device(self, history: History) -> dict[str, Any]:
        import torch

        device = history.device
        stats = torch.cuda.memory_stats(device)
        allocated, reserved = peaks.peaks_of(device)
        self._write_events(history)
        return {
            "device": device,
            "peak_allocated_bytes": allocated,
            "peak_reserved_bytes": reserved,
            "allocated_bytes": stats["allocated_bytes.all.current"],
            "reserved_bytes": stats["reserved_bytes.all.current"],
            "retries": stats["num_alloc_retries"],
            "outside_bytes": self._outside.get(device, 0),
            "peak": self._places.get(device),
            "steps": [vars(step) for step in self._steps.get(device, [])],
            "curve": history.curve.points,
            "events_are_whole": history.is_whole,
        }

    def _write_events(self, history: History) -> None:
        """Append what is new: three numbers an event (block, size or minus its size, stream)."""
        path = self._folder / f"events-{self.pid}-{history.device}.bin"
        at = self._written.get(history.device, 0)
        if at == len(history.blocks):
            return
        from array import array

        flat = array("q", bytes(24 * (len(history.blocks) - at)))
        columns = (history.blocks, history.sizes, history.streams)
        for place, column in enumerate(columns):
            flat[place::3] = column[at:]
        with path.open("ab") as file:
            flat.tofile(file)
        self._written[history.device] = len(history.blocks)


def _outside(device: int) -> int:
    """Bytes of the device that are in use, but not by this process's allocator."""
    import torch

    free, total = torch.cuda.mem_get_info(device)
    return int(total - free - torch.cuda.memory_reserved(device))


def _torch_release() -> list[int]:
    import torch

    return [int(part) for part in torch.__version__.split("+")[0].split(".")[:2]]


def _architectures() -> list[str]:
    """The kinds of GPU that this build of torch has kernels for, such as sm_80."""
    import torch

    return list(torch.cuda.get_arch_list())


def _library_folders() -> list[str]:
    """Folders whose code is not the user's: the standard library, and installed packages."""
    import site

    paths = sysconfig.get_paths()
    found = [paths[name] for name in ("stdlib", "platstdlib", "purelib", "platlib")]
    with suppress(AttributeError):
        found += [*site.getsitepackages(), site.getusersitepackages()]
    return sorted(set(found))
