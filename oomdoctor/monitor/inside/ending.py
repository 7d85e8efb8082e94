"""When the training is stopped: after a number of steps, or once memory repeats.

All ranks stop after the same step: each says whether it could, and waits for the others. They
cannot ask each other through torch, because that would be part of the user's training.

NCCL's watchdog, a thread of torch, looks every 100 ms which collectives are done and drops their
tensors, such as the first buckets of DistributedDataParallel. A step on a real GPU takes longer
than that. One on an emulated GPU may take 5 ms, and would need memory that a real one does not, so
it waits for the watchdog.
"""

from __future__ import annotations

import os
import sys
import threading
import time
import traceback
from contextlib import suppress
from pathlib import Path
from typing import Any

from oomdoctor.analysis.own_code import is_ours
from oomdoctor.monitor.shared_folder import replace_file
from oomdoctor.records.report.watch import StepPeaks

TYPED = "<string>"
_SPAWNED = "--multiprocessing-fork"  # such a process runs its parent's code
_RAY = ("ray", "_private", "workers", "default_worker.py")  # runs functions and classes of others
_MOST_TEXT = 4000
_MOST_FRAMES = 60
_PATIENCE_S = 120.0  # the slowest rank may still compile its kernels
_POLL_S = 0.005


def wants_to_stop(
    asked: Any, step: int, devices: list[list[StepPeaks]], most_cycle: int = 1
) -> str | None:
    """Why this process could stop now: "steps" or "steady"; None if it goes on.

    `asked` is what the user chose, `devices` the steps so far of each device. Memory may repeat
    after up to `most_cycle` steps, as where two networks take turns.
    """
    if asked == "all":
        return None
    if isinstance(asked, int):
        return "steps" if step >= asked else None
    cycles = range(1, most_cycle + 1)
    steady = devices and any(all(_repeat(s, step, n) for s in devices) for n in cycles)
    return "steady" if steady else None


def _repeat(steps: list[StepPeaks], step: int, cycle: int) -> bool:
    last = steps[-2 * cycle :]
    if len(last) < 2 * cycle or last[-1].step != step:
        return False
    return all(now.repeats(before) for before, now in zip(last, last[cycle:], strict=False))


def last_exception() -> dict[str, Any] | None:
    """The exception that ended the program, as the interpreter remembers it; None without one."""
    error = getattr(sys, "last_exc", None) or getattr(sys, "last_value", None)
    if error is None:
        return None
    return {
        "type": type(error).__name__,
        "message": str(error)[:_MOST_TEXT],
        "frames": _told(traceback.extract_tb(error.__traceback__)),
    }


def frames_here(thread: int | None = None) -> list[dict[str, Any]]:
    """The frames of a thread now without ours, innermost first; of this thread if none is named."""
    frame = sys._current_frames().get(thread) if thread is not None else sys._getframe(1)
    return _told(traceback.extract_stack(frame))


def _told(frames: traceback.StackSummary) -> list[dict[str, Any]]:
    """The innermost frames that are not those with which we watch."""
    return [
        {"filename": frame.filename, "line": frame.lineno, "name": frame.name}
        for frame in reversed(frames)
        if not is_ours(frame.filename)
    ][:_MOST_FRAMES]


def script_file() -> str | None:
    """The file of the script that runs, which may lie among the installed packages.

    Code of the command line (`python -c`) is named as in a traceback. A worker of Ray has none.
    """
    file = getattr(sys.modules.get("__main__"), "__file__", None)
    if is_ray_worker():
        return None
    return TYPED if file is None and typed_code() is not None else file


def is_ray_worker() -> bool:
    """Whether Ray started this process, and catches how its code ends."""
    file = getattr(sys.modules.get("__main__"), "__file__", None)
    return file is not None and Path(file).parts[-len(_RAY) :] == _RAY


def typed_code() -> str | None:
    """The code of `python -c CODE`; None if this is no such process."""
    words = sys.orig_argv
    if sys.argv[:1] != ["-c"] or "-c" not in words or _SPAWNED in words:
        return None
    return words[words.index("-c") + 1]


def waits_for_a_person() -> bool:
    """Whether this process runs what a person types, as a notebook's kernel does."""
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    return shell is not None or hasattr(sys, "ps1")


def ends_a_loop_only() -> bool:
    """Whether SystemExit here would end an event loop in a thread, and nothing else.

    Those who wait for what runs in the loop would wait forever. So Ray runs the methods of an
    actor that has an asynchronous one.
    """
    if threading.current_thread() is threading.main_thread() or "asyncio" not in sys.modules:
        return False
    return sys.modules["asyncio"]._get_running_loop() is not None


def agree(folder: Path, rank: int, world: int, step: int, could_stop: bool) -> bool | None:
    """Whether all ranks could stop after this step; None if some did not answer.

    A rank that ended has no more answers, so nobody waits for it.
    """
    votes = folder / "votes"
    votes.mkdir(exist_ok=True)
    (votes / f"{rank}.pid").write_text(str(os.getpid()))
    replace_file(votes / f"{step}.{rank}", "1" if could_stop else "0")
    end = time.monotonic() + _PATIENCE_S
    waiting = [other for other in range(world) if other != rank]
    agreed = could_stop
    while waiting:
        for other in list(waiting):
            with suppress(OSError):
                agreed &= (votes / f"{step}.{other}").read_text() == "1"
                waiting.remove(other)
        if not waiting:
            break
        if time.monotonic() > end or any(_has_ended(votes / f"{o}.pid") for o in waiting):
            return None
        time.sleep(_POLL_S)
    with suppress(OSError):  # all have read the votes of the step before the last
        (votes / f"{step - 2}.{rank}").unlink()
    return agreed


def _has_ended(pid_file: Path) -> bool:
    from oomdoctor.system.store.live_logs import is_alive

    with suppress(OSError, ValueError):
        return not is_alive(int(pid_file.read_text()))
    return False


def wait_for_watchdog() -> None:
    """Wait until the watchdogs of all process groups have looked: up to about 100 ms."""
    c10d = sys.modules.get("torch.distributed.distributed_c10d")
    if c10d is None or not c10d.is_initialized():
        return
    for group in list(c10d._world.pg_map):
        with suppress(AttributeError, RuntimeError):  # this rank may not be in it
            group._wait_for_pending_works()
