"""Answer several jobs from memory at the same time.

An answer takes Python alone, a tenth of a second for each rung, so forked processes share the work.
They compute and send back what they found; whatever happens to them, the jobs are still answered
here. There are no more than a login node allows.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass

from oomdoctor.records.result import ProbeJob
from oomdoctor.runs.jobs.remembered import Known, Memory

_MOST_PROCESSES = 2
_FEWEST_JOBS = 4  # for fewer it is not worth starting processes


@dataclass(frozen=True, slots=True)
class Answer:
    """What is known of a job, None if nothing is, and how long that took."""

    known: Known | None
    elapsed_s: float


def answer(memory: Memory, job: ProbeJob) -> Answer:
    """Answer one job from memory."""
    begin = time.monotonic()
    known = memory.answer(job)
    return Answer(known, time.monotonic() - begin)


def answers(memory: Memory, jobs: Sequence[ProbeJob]) -> Iterator[Answer]:
    """The answers to the jobs, in their order."""
    processes = min(_MOST_PROCESSES, len(os.sched_getaffinity(0)))
    kept = [job for job in jobs if memory.keeps(job)]
    found: list[Answer] = []
    if processes > 1 and len(kept) >= _FEWEST_JOBS:
        for each in _in_parallel(memory, jobs, processes):
            found.append(each)
            yield each
    for job in jobs[len(found) :]:
        yield answer(memory, job)


def _in_parallel(memory: Memory, jobs: Sequence[ProbeJob], processes: int) -> Iterator[Answer]:
    """As many answers, from the first on, as the processes can give."""
    # Few plans need these modules, and all would wait for them.
    import multiprocessing
    from concurrent.futures import ProcessPoolExecutor
    from concurrent.futures.process import BrokenProcessPool

    context = multiprocessing.get_context("fork")  # the modules are loaded already
    pool = ProcessPoolExecutor(processes, context, _leave_signals_to_the_parent)
    # One of them may be killed, and the machine may allow no more.
    with suppress(BrokenProcessPool, OSError), pool:
        try:
            yield from pool.map(answer, [memory] * len(jobs), jobs)
        finally:
            pool.shutdown(cancel_futures=True)


def _leave_signals_to_the_parent() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
