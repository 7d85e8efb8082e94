"""Collectives that are done: let torch drop what it holds for them.

NCCL's watchdog, a thread of torch, looks every 100 ms which collectives are done and drops their
tensors, such as the first buckets of DistributedDataParallel. A step on a real GPU takes longer
than that. One on an emulated GPU may take 5 ms, and would need memory that a real one does not.
"""

from __future__ import annotations

import sys
from contextlib import suppress


def wait_for_watchdog() -> None:
    """Wait until the watchdogs of all process groups have looked: up to about 100 ms."""
    c10d = sys.modules.get("torch.distributed.distributed_c10d")
    if c10d is None or not c10d.is_initialized():
        return
    for group in list(c10d._world.pg_map):
        with suppress(AttributeError, RuntimeError):  # this rank may not be in it
            group._wait_for_pending_works()
