"""Two worker hosts that simulate rungs in parallel, each with one thread.

Simulations do not affect each other, so unlike measurements they may run at the same time. More
than two workers gain little, and a login node may not allow more; where memory is short there is
one. What an earlier run found needs no worker, and none is started until a job needs it.

Answer several jobs from memory at the same time.
An answer takes Python alone, a tenth of a second for each rung, so forked processes share the work.
They compute and send back what they found; whatever happens to them, the jobs are still answered
here. There are no more than a login node allows.
"""

from __future__ import annotations

import math
import os
import queue
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Self, TypeVar

from oomdoctor.commands.jobs.host import WorkerHost
from oomdoctor.commands.jobs.launch import Launched, attempt_of, launch
from oomdoctor.commands.jobs.remembered import Memory
from oomdoctor.records.codec import dumps
from oomdoctor.records.job.result import Attempt, ProbeJob, Reply
from oomdoctor.system.environment import worker_environment
from oomdoctor.system.machine.limits import available_memory
from oomdoctor.system.store.run_folders import RunFolder
from oomdoctor.units import MIB, timestamp

_MOST_HOSTS = 2
# Measured for models from 124M to 405B parameters: all processes of a plan take 0.9 to 1.3 GiB with
# two hosts.
_MEMORY_OF_TWO = 1536 * MIB
ONE_THREAD = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
# Libraries that compile functions when they are imported take a second longer for it.
COMPILES_NOTHING = {"TORCHDYNAMO_DISABLE": "1"}

Numbered = tuple[int, ProbeJob]
OnStart = Callable[[int], None]
"""Gets the number of each job when it starts."""
Result = TypeVar("Result")
_MOST_PROCESSES = 2
_FEWEST_JOBS = 4  # for fewer it is not worth starting processes


@dataclass(frozen=True, slots=True)
class Ended:
    """A finished job: its number among the jobs, the attempt, and the reply if there is one."""

    number: int
    attempt: Attempt
    reply: Reply | None


class Simulators:
    """Answers from memory, and running worker hosts; a context manager that ends the hosts.

    Invariant: a host works on one job at a time. With `fresh`, nothing is answered from memory.
    The hosts get `variables` added to their environment. `before_start` is called once, before they
    start, and may raise. `expected` jobs will come, so as many hosts start with the first one.
    """

    def __init__(
        self,
        python: str,
        folder: RunFolder,
        deadline_s: float,
        stop: Callable[[], bool],
        *,
        fresh: bool = False,
        variables: Mapping[str, str] | None = None,
        before_start: Callable[[], None] = lambda: None,
        expected: int = 1,
    ) -> None:
        self._expected = expected
        self._before_start: Callable[[], None] | None = before_start
        environment = worker_environment(None) | ONE_THREAD | COMPILES_NOTHING
        environment |= variables or {}
        self._folder, self._deadline_s, self._stop = folder, deadline_s, stop
        self.memory = Memory(python, environment, fresh=fresh)
        self._hosts = [
            WorkerHost(python, environment, folder.path, isolated=False) for _ in range(_how_many())
        ]
        self._idle: queue.LifoQueue[WorkerHost] = queue.LifoQueue()  # one that runs comes first
        self._naming = threading.Lock()
        self._broken = threading.Event()

    def __enter__(self) -> Self:
        for host in reversed(self._hosts):
            self._idle.put(host)
        return self

    def __exit__(self, *_: object) -> None:
        for host in self._hosts:
            host.close()

    def run(
        self, jobs: Sequence[ProbeJob], on_start: OnStart = lambda number: None
    ) -> Iterator[Ended]:
        """The jobs as they finish; `on_start` gets the number of each job when it starts.

        Raises:
            Stopped: `stop()` became true; no worker is running.
            OomDoctorError: no worker can be started (exit 5).
        """
        open_jobs = []
        for number, ended in enumerate(answers(self.memory, jobs)):
            if ended is None:
                open_jobs.append((number, jobs[number]))
            else:
                on_start(number)
                yield ended
        if open_jobs:
            if self._before_start is not None:
                self._before_start()
                self._before_start = None
            for host in self._hosts[: max(len(open_jobs), self._expected)]:
                host.start()  # they load their libraries at the same time
            yield from self._launched(open_jobs, on_start)

    def run_one(self, job: ProbeJob, on_phase: Callable[[str], None]) -> Launched:
        """Run one job without a deadline; `on_phase` gets each phase.

        Raises:
            Stopped: `stop()` became true; the worker is dead.
            OomDoctorError: no worker can be started (exit 5).
        """
        (ended,) = self._together([(0, job)], lambda number: None, on_phase, math.inf)
        return ended.attempt, ended.reply

    def _launched(self, jobs: Sequence[Numbered], on_start: OnStart) -> Iterator[Ended]:
        with ThreadPoolExecutor(len(self._hosts)) as threads:
            left: set[Future[list[Ended]]] = {
                threads.submit(self._together, group, on_start) for group in self._groups(jobs)
            }
            for group_ended in as_they_end(left, self._broken):
                yield from group_ended

    def _groups(self, jobs: Sequence[Numbered]) -> list[list[Numbered]]:
        """Jobs that differ in the sequence length alone, so that one model serves them.

        They are cut into as many parts as keep every worker busy.
        """
        alike: dict[str, list[Numbered]] = {}
        for number, job in jobs:
            config = replace(job.config, sequence_length=1)
            own = replace(job, label="", config=config)
            key = dumps(own) if self.memory.may_share(job) else str(number)
            alike.setdefault(key, []).append((number, job))
        most = max(1, math.ceil(len(jobs) / len(self._hosts)))
        return [
            group[start : start + most]
            for group in alike.values()
            for start in range(0, len(group), most)
        ]

    def _together(
        self,
        group: Sequence[Numbered],
        on_start: OnStart,
        on_phase: Callable[[str], None] = lambda phase: None,
        deadline_s: float | None = None,
    ) -> list[Ended]:
        """Run jobs that differ in the sequence length alone."""
        number, job = group[0]
        host = self._idle.get()
        try:
            on_start(number)
            with self._naming:
                folder = self._folder.job_folder(job.label, None)
                whole = self.memory.prepared([each for _, each in group], folder)
            limit_s = self._deadline_s if deadline_s is None else deadline_s
            attempt, reply = launch(
                host,
                whole,
                folder,
                usable_bytes=None,
                deadline_s=limit_s * len(group),
                on_phase=on_phase,
                stop=lambda: self._broken.is_set() or self._stop(),
            )
            if reply is not None:
                for _, each in group if reply.status == "predicted" else group[:1]:
                    self.memory.keep(each, reply, folder, timestamp())
        finally:
            self._idle.put(host)
        ended = [Ended(number, attempt, reply)]
        for other in group[1:]:
            on_start(other[0])
            answered = answer(self.memory, *other, now=True)
            ended += (
                [answered] if answered is not None else self._together([other], lambda number: None)
            )
        return ended


def as_they_end(left: set[Future[Result]], broken: threading.Event) -> Iterator[Result]:
    """The results as they come; if the caller breaks off, `broken` is set and the rest canceled."""
    try:
        while left:
            done, left = wait(left, return_when=FIRST_COMPLETED)
            for future in done:
                yield future.result()
    except BaseException:
        broken.set()  # otherwise the pool would wait for what remains
        for future in left:
            future.cancel()
        raise


def _how_many() -> int:
    """How many hosts this machine has the cores and the memory for."""
    if available_memory() < _MEMORY_OF_TWO:
        return 1
    return min(_MOST_HOSTS, len(os.sched_getaffinity(0)))


def answer(memory: Memory, number: int, job: ProbeJob, *, now: bool = False) -> Ended | None:
    """The end of a job that memory answers, None of another; `now` if this run simulated it."""
    begin = time.monotonic()
    remembered = memory.answer(job)
    if remembered is None:
        return None
    elapsed_s, made_at = time.monotonic() - begin, None if now else remembered.made_at
    return Ended(number, attempt_of(job, remembered.reply, elapsed_s, made_at), remembered.reply)


def answers(memory: Memory, jobs: Sequence[ProbeJob]) -> Iterator[Ended | None]:
    """The answers to the jobs, in their order."""
    processes = min(_MOST_PROCESSES, len(os.sched_getaffinity(0)))
    kept = [job for job in jobs if memory.keeps(job)]
    done = 0
    if processes > 1 and len(kept) >= _FEWEST_JOBS:
        for each in _in_parallel(memory, jobs, processes):
            done += 1
            yield each
    for number, job in enumerate(jobs[done:], done):
        yield answer(memory, number, job)


def _in_parallel(
    memory: Memory, jobs: Sequence[ProbeJob], processes: int
) -> Iterator[Ended | None]:
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
            yield from pool.map(answer, [memory] * len(jobs), range(len(jobs)), jobs)
        finally:
            pool.shutdown(cancel_futures=True)


def _leave_signals_to_the_parent() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
