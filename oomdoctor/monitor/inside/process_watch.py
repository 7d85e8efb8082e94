"""One process of a watched command: its steps, its memory, and the record that it leaves.

The record is written when CUDA starts, when memory runs out and when the interpreter ends. On an
emulated GPU it is also written after each optimizer step or a few seconds without one, on a real
one every second by a thread. So a process that is killed leaves that of its last step or second.

A process is watched from its first use of CUDA on. One that never uses CUDA is not.
"""

from __future__ import annotations

import atexit
import json
import os
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import wraps
from pathlib import Path
from typing import Any, NoReturn

from oomdoctor.emulator.variables import ALONE
from oomdoctor.monitor.inside import (
    card_shares,
    ending,
    graphs,
    launches,
    memory,
    passes,
    past_memory,
    process_facts,
)
from oomdoctor.monitor.inside import unknown_reads as reads
from oomdoctor.monitor.inside.allocator_history import Snapshots, leave_to_the_script
from oomdoctor.monitor.inside.memory import CountedMemory
from oomdoctor.monitor.inside.traced import TracedMemory
from oomdoctor.monitor.shared_folder import asked, rank_and_world, replace_file
from oomdoctor.system.environment import WATCH_FOLDER, allocator_settings, variable

_FIRST_FORWARDS = 4  # before which torch may still hold what later ones do not need
_MOST_CYCLE = 4  # backward passes after which memory may repeat, without an optimizer
_INTERVAL_S = 5.0  # between two readings without an optimizer step
_WRITE_S = 1.0  # between two records of the thread
_LAST_S = 10.0  # for the last one, where a process is ended at once
trainers = 0  # transformers' Trainers that are training now; they are stopped as a callback does
engines = 0  # steps of DeepSpeed's engines that are being taken; they say themselves when they end
_watch: Watch | None = None


class Watch:
    """The watch of the process `pid`."""

    def __init__(self, folder: Path, asked: dict[str, Any]) -> None:
        self.pid = os.getpid()
        self.stopped: str | None = None
        self.micro_batch_size: int | None = None
        self._folder, self._asked = folder, asked
        self._memory: CountedMemory | TracedMemory = (
            CountedMemory(every_step=asked["steps"] != "all")
            if asked.get("counted")
            else TracedMemory(
                folder, on_forward=self._between_steps, goes_past=bool(asked.get("goes_past"))
            )
        )
        self._snapshots = Snapshots(folder)
        self._counts: dict[int, int] = {}
        self._turns: dict[int, list[int]] = {}
        self._step = self._rounds = self._forwards = 0
        self._unit = "step"
        self._stopped_in: list[dict[str, Any]] = []
        self._passes = passes.Passes(self._end_pass)
        self._graphs = graphs.Graphs(self._end_replay)
        self._ooms: list[dict[str, Any]] = []
        self._pictured = (0, 0)  # the peaks in the snapshot of a run past the limit
        self._pictures: dict[int, tuple[int, str | None]] = {}  # allocated peak and snapshot
        self._past_step: int | None = None
        self._notes: list[str] = []
        self._read_at = time.monotonic()
        self._began_at = time.time()
        self._facts: dict[str, Any] = {}
        self._ended = threading.Event()
        self._writing = threading.Lock()

    def begin(self) -> None:
        """Start to watch. CUDA has just been initialized."""
        import torch
        from torch.optim import optimizer

        self._facts = {
            "torch": [int(part) for part in torch.__version__.split("+")[0].split(".")[:2]],
            "versions": process_facts.versions(),
            "architectures": torch.cuda.get_arch_list(),
        }
        launches.begin(asked=bool(self._asked.get("launches")))
        self._memory.begin()
        optimizer.register_optimizer_step_post_hook(self._after_step)
        self._passes.begin()
        self._graphs.begin()
        torch._C._cuda_attach_out_of_memory_observer(self._on_out_of_memory)
        reads.note_reads(self._asked.get("branches"))
        memory.keep_peaks()
        atexit.register(self._at_exit)
        self._read_before_hard_exits()
        self._write()
        if not self._memory.stops_to_look:
            threading.Thread(target=self._keep_writing, daemon=True).start()

    def _read_before_hard_exits(self) -> None:
        """Write the last record also where the process is ended without its exit functions.

        In a thread, because the caller may hold a lock of torch's allocator.
        """
        end = os._exit

        @wraps(end)
        def ended(status: int) -> NoReturn:
            if os.getpid() == self.pid and not self._ended.is_set():
                last = threading.Thread(target=self._at_exit, daemon=True)
                last.start()
                last.join(_LAST_S)
            end(status)

        os._exit = ended

    def _after_step(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        if os.getpid() != self.pid or self._graphs.take_step():
            return
        # Several optimizers take turns; a step has ended once one of them comes round again.
        taken = self._counts[id(optimizer)] = self._counts.get(id(optimizer), 0) + 1
        if taken <= 2:
            self._turns.setdefault(id(optimizer), []).append(self._step)
        if not engines and taken > self._rounds:
            self._rounds = taken
            self._unit = "step"
            self.end_step()

    def _end_pass(self) -> None:
        if os.getpid() == self.pid and not self._rounds:
            self._unit = "pass"
            self.end_step()

    def _end_replay(self) -> None:
        if os.getpid() == self.pid:
            self._unit = "step"
            self.end_step()

    def end_step(self) -> None:
        """Take note that a step has ended: of the optimizer, or a backward pass without one.

        Raises:
            SystemExit: the training ends here, unless a Trainer ends it. In an event loop of a
                thread the process ends at once, because the exit would end only the loop.
        """
        stop: str | None = None
        with self._quietly():
            self._step += 1
            launches.note_step(self._step)
            reads.new_step()
            self._read(ended=True)
            self._memory.end_step(self._step)
            stop = self._decide()
            if self._memory.stops_to_look or stop is not None:
                self._write()
            self._memory.forget()
            if self._unit == "step":  # a pass ends where the next one begins
                self._memory.between_steps()
        if stop is not None and not trainers:
            if ending.ends_a_loop_only():
                self._leave()
            raise SystemExit(0)

    def _leave(self) -> None:
        """End the process; its last record is written first, as before any such exit."""
        with suppress(Exception):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(0)

    def _between_steps(self) -> None:
        """Read and write from time to time where no optimizer steps, as in inference."""
        self._forwards += 1
        if self._forwards <= _FIRST_FORWARDS:
            ending.wait_for_watchdog()
        if os.getpid() != self.pid or time.monotonic() - self._read_at < _INTERVAL_S:
            return
        with self._quietly():
            self._read()
            self._write()
            self._memory.forget()

    def _keep_writing(self) -> None:
        """Write the record every second until the process ends. Runs in a thread."""
        while not self._ended.wait(_WRITE_S):
            with self._quietly():
                self._write()

    def _decide(self) -> str | None:
        """Why the training stops now; None if it goes on."""
        if self.stopped is not None:
            return None  # the Trainer was asked to stop, and may evaluate and save
        cycle = _MOST_CYCLE if self._unit == "pass" else 1
        wish = ending.wants_to_stop(self._asked["steps"], self._step, self._memory.steps(), cycle)
        if wish == "steady" and (
            self._passes.awaits(self._turns, self._step) or self._graphs.awaits(self._step)
        ):
            wish = None  # as of the generator of a GAN whose critic steps more often
        if wish is None and self._asked["steps"] == "steady":
            wish = self._is_past()
        rank, world = rank_and_world()
        asks_others = self._asked["steps"] == "steady" and variable(ALONE) is None
        if world > 1 and rank is not None and asks_others:
            if self._step > self._asked["patience"]:
                return None
            answer = ending.agree(self._folder, rank, world, self._step, wish is not None)
            if answer is None:
                self._notes.append(f"a rank did not answer at step {self._step}")
                self._asked = {**self._asked, "steps": "all"}
            wish = wish if answer else None
        self.stopped = wish
        self._stopped_in = ending.frames_here() if wish is not None and not trainers else []
        return wish

    def _is_past(self) -> str | None:
        """Whether to give up: a rank is past the limit, and memory does not repeat."""
        if self._past_step is None and (self._folder / "past").exists():
            self._past_step = self._step
        patience = self._asked["patience"]
        if self._past_step is None:
            return None
        # All ranks vote for the last time at this step.
        long = self._step - self._past_step >= patience or self._step == patience
        return "past" if long else None

    def _read(self, *, ended: bool = False) -> None:
        """Read the memory; `ended` says that a step has just ended."""
        self._read_at = time.monotonic()
        past, picture = self._memory.past, self._picture()  # before the trace is cleared
        if self._asked.get("pictures") and past is None and picture is None:
            with self._quietly():
                self._take_pictures()
        self._memory.read(self._step)
        if self._memory.past is not None:
            if past is None:
                self._memory.past["step"] = self._step + (not ended)
            if picture is not None:
                self._memory.past["snapshot"] = picture

    def _picture(self) -> str | None:
        """A snapshot of a device past its limit, if its peaks have grown since the last one."""
        first = past_memory.first() if self._asked.get("goes_past") else None
        if first is None:
            return None
        peaks = memory.peaks_of(first["device"])
        if peaks == self._pictured:
            return None
        self._pictured = peaks
        (self._folder / "past").touch()
        with self._quietly():
            return self._snapshots.write(first["device"])
        return None

    def _take_pictures(self) -> None:
        """Write a snapshot of each device whose allocated peak has grown since the last one."""
        import torch

        for device in range(torch.cuda.device_count()):
            peak, _ = memory.peaks_of(device)
            before, name = self._pictures.get(device, (0, None))
            if peak > before:
                self._pictures[device] = peak, self._snapshots.write(device) or name

    def _on_out_of_memory(self, device: int, requested: int, total: int, free: int) -> None:
        """A request fails, and its error is not raised yet."""
        import torch

        with self._quietly():
            failed = {
                "device": device,
                "at": time.time(),
                "requested_bytes": requested,
                "total_bytes": total,
                "free_bytes": free,
                "allocated_bytes": torch.cuda.memory_allocated(device),
                "reserved_bytes": torch.cuda.memory_reserved(device),
                "step": self._step + 1,
                "frames": ending.frames_here(),
                **self._memory.place(),
                "snapshot": None,
            }
            self._ooms.append(failed)
            del self._ooms[1:-1]
            # The parent asks the driver once it sees this, while the memory is still held.
            (self._folder / f"oom-{self.pid}").write_text(str(failed["at"]))
            self._memory.live.note_failure(self._step + 1, requested)
            self._write()
            with self._quietly():  # the record is worth more
                failed["snapshot"] = self._snapshots.write(device)
            if self._memory.stops_to_look:
                self._read()
            self._write()

    def _at_exit(self) -> None:
        if os.getpid() != self.pid:
            return
        self._ended.set()
        with suppress(Exception):
            self._read()
            if self.stopped is None and not self._rounds and self._passes.is_open():
                self._step, self._unit = self._step + 1, "pass"
                self._memory.end_step(self._step)
        with suppress(Exception):
            self._write(ended=True)
        with suppress(Exception):
            self._memory.live.close(self._step)

    @contextmanager
    def _quietly(self) -> Iterator[None]:
        """Note an error in the record: the user's program must not notice it."""
        try:
            yield
        except Exception as error:  # noqa: BLE001
            if len(self._notes) < 20:
                self._notes.append(f"{type(error).__name__}: {error}"[:500])

    def _write(self, *, ended: bool = False) -> None:
        rank, world = rank_and_world()
        live_log = self._memory.live.path()
        record = {
            "pid": self.pid,
            "rank": rank,
            "world": world,
            **self._facts,
            "library_folders": process_facts.library_folders(),
            "allocator": allocator_settings(),
            "began_at": self._began_at,
            "written_at": time.time(),
            "ended": ended,
            "step": self._step,
            "unit": self._unit,
            "stopped": self.stopped,
            "stopped_in": self._stopped_in,
            "without_gradients": self._memory.without_gradients,
            "micro_batch_size": self.micro_batch_size,
            "resident_bytes": process_facts.resident_bytes(),
            "exception": ending.last_exception() if ended else None,
            "ooms": self._ooms,
            "past": self._memory.past,
            "pictures": {device: name for device, (_, name) in self._pictures.items()},
            "unknown_reads": reads.unknown_reads(),
            "ended_loops": reads.ended_loops(),
            "code": process_facts.code_without_file(reads.files()),
            "own_files": process_facts.own_files() if ended else [],
            "notes": self._notes,
            "sized_by_card": card_shares.sized_by_card(),
            "script": ending.script_file(),
            "is_ray_worker": ending.is_ray_worker(),
            "waits_for_a_person": ending.waits_for_a_person(),
            "live_log": None if live_log is None else str(live_log),
        }
        with self._writing:
            if self._ended.is_set() and not ended:
                return  # the last record has been written
            record["devices"] = self._memory.devices()
            replace_file(self._folder / f"process-{self.pid}.json", json.dumps(record))


def after_torch() -> None:
    """Queue the start of the watch behind the initialization of CUDA.

    A process that never uses CUDA is not watched, and neither is a child that it forks before.
    """
    import torch

    folder = Path(variable(WATCH_FOLDER) or "")
    settings = asked(folder)

    def begin() -> None:
        global _watch
        if _watch is None or _watch.pid != os.getpid():
            _watch = Watch(folder, settings)
            _watch.begin()

    torch.cuda._lazy_call(begin)
    leave_to_the_script()
    passes.note_optimizers()
    card_shares.note_engines()


def current() -> Watch | None:
    """The watch of this process; None before it uses CUDA, and in a forked child."""
    return _watch if _watch is not None and _watch.pid == os.getpid() else None
