"""All ranks stop after the same step: each says whether it could, and waits for the others.

They cannot ask each other through torch, because that would be part of the user's training.

Collectives that are done: let torch drop what it holds for them.

NCCL's watchdog, a thread of torch, looks every 100 ms which collectives are done and drops their
tensors, such as the first buckets of DistributedDataParallel. A step on a real GPU takes longer
than that. One on an emulated GPU may take 5 ms, and would need memory that a real one does not.
"""

from __future__ import annotations

import os
import sys
import time
from contextlib import suppress
from pathlib import Path

_PATIENCE_S = 120.0  # the slowest rank may still compile its kernels
_POLL_S = 0.005


def agree(folder: Path, rank: int, world: int, step: int, could_stop: bool) -> bool | None:
    """Whether all ranks could stop after this step; None if some did not answer.

    A rank that ended has no more answers, so nobody waits for it.
    """
    votes = folder / "votes"
    votes.mkdir(exist_ok=True)
    (votes / f"{rank}.pid").write_text(str(os.getpid()))
    _vote(votes / f"{step}.{rank}", could_stop)
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


def _vote(path: Path, could_stop: bool) -> None:
    beside = path.with_name(f".{path.name}")
    beside.write_text("1" if could_stop else "0")
    beside.replace(path)


def _has_ended(pid_file: Path) -> bool:
    try:
        os.kill(int(pid_file.read_text()), 0)
    except ProcessLookupError:
        return True
    except (OSError, ValueError):
        return False
    return False


def wait_for_watchdog() -> None:
    """Wait until the watchdogs of all process groups have looked: up to about 100 ms."""
    c10d = sys.modules.get("torch.distributed.distributed_c10d")
    if c10d is None or not c10d.is_initialized():
        return
    for group in list(c10d._world.pg_map):
        with suppress(AttributeError, RuntimeError):  # this rank may not be in it
            group._wait_for_pending_works()
