"""Two worker hosts that simulate rungs in parallel, each with one thread.

Simulations do not affect each other, so unlike measurements they may run at the same time. More
than two workers gain little, and a login node may not allow more.
"""

from __future__ import annotations

import math
import os
import queue
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from oomdoctor.records.result import Attempt, ProbeJob, Reply
from oomdoctor.runs.jobs.host import WorkerHost
from oomdoctor.runs.jobs.launch import launch
from oomdoctor.system.environment import worker_environment
from oomdoctor.system.store.run_folders import RunFolder

_MOST_HOSTS = 2
_ONE_THREAD = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}


@dataclass(frozen=True, slots=True)
class Ended:
    """A finished job: its number among the jobs, the attempt, and the reply if there is one."""

    number: int
    attempt: Attempt
    reply: Reply | None
    folder: Path


class Simulators:
    """Running worker hosts; a context manager that ends them.

    Invariant: a host works on one job at a time.
    """

    def __init__(
        self, python: str, folder: RunFolder, deadline_s: float, stop: Callable[[], bool]
    ) -> None:
        count = min(_MOST_HOSTS, len(os.sched_getaffinity(0)))
        environment = worker_environment(None) | _ONE_THREAD
        self._folder, self._deadline_s, self._stop = folder, deadline_s, stop
        self._hosts = [
            WorkerHost(python, environment, folder.path, isolated=False) for _ in range(count)
        ]
        self._idle: queue.SimpleQueue[WorkerHost] = queue.SimpleQueue()
        self._naming = threading.Lock()
        self._broken = threading.Event()

    def __enter__(self) -> Self:
        for host in self._hosts:
            host.start()  # they load their libraries at the same time
            self._idle.put(host)
        return self

    def __exit__(self, *_: object) -> None:
        for host in self._hosts:
            host.close()

    def run(
        self, jobs: Sequence[ProbeJob], on_start: Callable[[int], None] = lambda number: None
    ) -> Iterator[Ended]:
        """The jobs as they finish; `on_start` gets the number of each job when it starts.

        Raises:
            Stopped: `stop()` became true; no worker is running.
            OomDoctorError: no worker can be started (exit 5).
        """
        with ThreadPoolExecutor(len(self._hosts)) as threads:
            left: set[Future[Ended]] = {
                threads.submit(self._one, number, job, on_start) for number, job in enumerate(jobs)
            }
            try:
                while left:
                    done, left = wait(left, return_when=FIRST_COMPLETED)
                    for future in done:
                        yield future.result()
            except BaseException:
                self._broken.set()  # otherwise the pool would wait for the remaining jobs
                for future in left:
                    future.cancel()
                raise

    def run_one(
        self, job: ProbeJob, on_phase: Callable[[str], None]
    ) -> tuple[Attempt, Reply | None]:
        """Run one job without a deadline; `on_phase` gets each phase.

        Raises:
            Stopped: `stop()` became true; the worker is dead.
            OomDoctorError: no worker can be started (exit 5).
        """
        ended = self._one(0, job, lambda number: None, on_phase, math.inf)
        return ended.attempt, ended.reply

    def _one(
        self,
        number: int,
        job: ProbeJob,
        on_start: Callable[[int], None],
        on_phase: Callable[[str], None] = lambda phase: None,
        deadline_s: float | None = None,
    ) -> Ended:
        host = self._idle.get()
        try:
            on_start(number)
            with self._naming:
                folder = self._folder.job_folder(job.label, None)
            attempt, reply = launch(
                host,
                job,
                folder,
                usable_bytes=None,
                deadline_s=self._deadline_s if deadline_s is None else deadline_s,
                on_phase=on_phase,
                stop=lambda: self._broken.is_set() or self._stop(),
            )
        finally:
            self._idle.put(host)
        return Ended(number, attempt, reply, folder)
