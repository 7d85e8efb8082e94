"""Work on each of some cases in a few processes, so that none of them can end the others."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from multiprocessing import get_context
from typing import TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")
_LONGEST = 300  # characters of a reason


@dataclass(frozen=True, slots=True)
class Fault:
    """Why the work on a case came to nothing."""

    reason: str


def run_each(
    work: Callable[[Item], Result], items: Sequence[Item], processes: int
) -> Iterator[tuple[Item, Result | Fault]]:
    """What `work` makes of each item, in order, whatever becomes of the others.

    Work patches libraries and fake tensors are process-wide: a process has one item at a time.
    """
    with _pool(processes) as pool:
        futures = [pool.submit(_guarded, work, item) for item in items]
        for item, future in zip(items, futures, strict=True):
            try:
                yield item, future.result()
            except BrokenProcessPool:
                yield item, _alone(work, item)


def _pool(processes: int) -> ProcessPoolExecutor:
    return ProcessPoolExecutor(processes, mp_context=get_context("spawn"))


def _alone(work: Callable[[Item], Result], item: Item) -> Result | Fault:
    """A death breaks the whole pool: who died of it shows where each has a process of its own."""
    with _pool(1) as pool:
        try:
            return pool.submit(_guarded, work, item).result()
        except BrokenProcessPool:
            return Fault("its process died")


def _guarded(work: Callable[[Item], Result], item: Item) -> Result | Fault:
    from oomdoctor.worker.protocol import UnsupportedError

    try:
        return work(item)
    except UnsupportedError as error:
        reason = str(error)
    except Exception as error:  # noqa: BLE001 - a fault of one case must not end the others
        reason = f"it failed: {type(error).__name__}: {error}"
    return Fault(textwrap.shorten(reason, _LONGEST, placeholder=" ..."))
