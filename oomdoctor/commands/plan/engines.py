"""How a plan answers for a rung: by its own engine on the emulated card, or by simulation.

The engine of several GPUs (FSDP, DDP, DeepSpeed) runs its own code there with one rank, and its
peak is exact. That needs an interpreter whose torch has a CUDA build. Elsewhere, and for questions
that take many runs, the rung is simulated. Unsloth compiles its layers for the card, and
Transformer Engine has its own kernels, so these run there or not at all.

Each rung that runs is one process, two at a time.

For several GPUs one rank runs, and the card has room for any rung, so a rung that does not fit
still says what it needs. A rung close to the limit runs again with the limit of the real card,
where the allocator gives back what it holds beyond the tensors. Unsloth sizes its buffers by the
free memory, so for it the card is as large as the real one.
"""

from __future__ import annotations

import os
import queue
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import replace
from typing import Self

from oomdoctor.commands.devices import emulated
from oomdoctor.commands.devices.cards import Card
from oomdoctor.commands.jobs.host import WorkerHost
from oomdoctor.commands.jobs.launch import launch
from oomdoctor.commands.jobs.simulators import COMPILES_NOTHING, ONE_THREAD, Ended, as_they_end
from oomdoctor.commands.plan.findings import Findings
from oomdoctor.records.configuration.config import Rung, TrainConfig
from oomdoctor.records.job.result import Attempt
from oomdoctor.records.report.report import Warn
from oomdoctor.records.report.warnings import warning
from oomdoctor.system.environment import is_emulating, worker_environment
from oomdoctor.system.store.run_folders import RunFolder, save_attempt

Chosen = Callable[[TrainConfig], bool]
_LANES = 2
_LANE = "engines-"
_ROOM = 16  # times the memory of the card


def is_sharded(config: TrainConfig) -> bool:
    """Whether a rung trains on several GPUs, or needs an engine for them."""
    return config.sharding != "none"


def is_unsloth(config: TrainConfig) -> bool:
    """Whether Unsloth trains a rung."""
    return config.library == "unsloth"


def not_simulated(config: TrainConfig) -> str | None:
    """What of a rung no simulation knows; None if one knows it all."""
    if is_unsloth(config):
        return "Unsloth"
    if config.fp8 == "transformer_engine":
        return "Transformer Engine"
    if config.sharding == "tensor_parallel":
        return config.sharding
    return "context_parallel_size" if config.context_parallel_size > 1 else None


def runs_on_card_only(config: TrainConfig) -> bool:
    """Whether no simulation knows a rung."""
    return not_simulated(config) is not None


def engine_cards(findings: Findings, chosen: Chosen = is_sharded) -> tuple[Card, ...]:
    """The cards on which the `chosen` rungs of the plan run; none if they are all simulated."""
    request = findings.request
    records = request.snapshot is not None or request.trace is not None
    if findings.plan.asks_more or records or findings.shapes:
        return ()
    if not any(chosen(rung.config) for rung in findings.rungs):
        return ()
    if emulated.why_not(findings.request.python) is not None or is_emulating():
        return ()
    return tuple(card for card in findings.cards if emulated.can_be(card))


def was_stopped_by_host(attempt: Attempt) -> bool:
    """Whether this machine had too little memory for a rung, and not the card."""
    pinned = attempt.oom is not None and attempt.oom.dialect == "cuda_driver"
    return attempt.outcome == "host_oom" or (pinned and attempt.config.offload != "none")


def route_warnings(findings: Findings) -> tuple[Warn, ...]:
    """That rungs are simulated whose engines could run with another interpreter."""
    if not any(is_sharded(rung.config) for rung in findings.rungs):
        return ()
    reason = emulated.why_not(findings.request.python)
    if reason is None:
        return ()
    return (warning("engines_not_run", reason=reason.message),)


def inexact_warnings(findings: Findings, folder: RunFolder) -> list[Warn]:
    """What was not exact in the rungs that ran on emulated cards: checks, and engines."""
    checked = [folder.path] if findings.plan.verify else []
    return emulated.inexact_parts(*checked, *sorted(folder.path.glob(f"{_LANE}*")))


class Engines:
    """Worker hosts that see one emulated card, for the `chosen` rungs of a plan; a context manager
    that ends them.

    Invariant: a host works on one rung at a time. Each sees its own emulated GPUs, because ranks
    of two rungs would take memory from each other.
    """

    def __init__(
        self,
        findings: Findings,
        card: Card,
        folder: RunFolder,
        stop: Callable[[], bool],
        on_build: Callable[[], None],
        chosen: Chosen = is_sharded,
    ) -> None:
        self._on_build = on_build
        self._known, self._card, self._folder, self._stop = findings, card, folder, stop
        self._configs = [rung.config for rung in findings.ladder(card) if chosen(rung.config)]
        self._has_room = not any(map(is_unsloth, self._configs))
        self._hosts: list[WorkerHost] = []
        self._idle: queue.SimpleQueue[WorkerHost] = queue.SimpleQueue()
        self._naming = threading.Lock()
        self._broken = threading.Event()
        self._open = ExitStack()

    def __enter__(self) -> Self:
        python = self._known.request.python
        most = max(min(config.world_size, config.gpus_per_node) for config in self._configs)
        room = _ROOM if self._has_room else 1
        card = replace(self._card, total_bytes=room * self._card.total_bytes)
        gpus = emulated.EmulatedGpus(card, most, alone=True)
        with ExitStack() as opening:
            for lane in range(min(_LANES, len(os.sched_getaffinity(0)), len(self._configs))):
                place = self._folder.path / f"{_LANE}{lane}"
                place.mkdir(exist_ok=True)
                session = emulated.emulating(gpus, python, place, on_build=self._on_build)
                seen = opening.enter_context(session)
                uuids = ",".join(emulated.uuid_of(index) for index in range(most))
                environment = worker_environment(uuids) | ONE_THREAD | seen
                if not any(config.compile or runs_on_card_only(config) for config in self._configs):
                    environment |= COMPILES_NOTHING
                host = opening.enter_context(WorkerHost(python, environment, place))
                host.start()  # they load their libraries at the same time
                self._idle.put(host)
                self._hosts.append(host)
            self._open = opening.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._open.close()

    def run(
        self,
        rungs: Sequence[Rung],
        usable_bytes: int,
        on_start: Callable[[int], None] = lambda number: None,
    ) -> Iterator[Ended]:
        """The rungs as they end; each has a micro-batch size. `on_start` gets their numbers.

        Raises:
            Stopped: told to stop; no rung is running.
            OomDoctorError: no worker can be started (exit 5).
        """
        with ThreadPoolExecutor(len(self._hosts)) as threads:
            left: set[Future[Ended]] = {
                threads.submit(self._one, number, rung, usable_bytes, on_start)
                for number, rung in enumerate(rungs)
            }
            yield from as_they_end(left, self._broken)

    def _one(
        self, number: int, rung: Rung, usable_bytes: int, on_start: Callable[[int], None]
    ) -> Ended:
        host = self._idle.get()
        try:
            on_start(number)
            limit = None if self._has_room else usable_bytes
            attempt = self._launched(host, rung, usable_bytes, limit)
            if self._has_room and _is_close(attempt, usable_bytes):
                limited = self._launched(host, rung, usable_bytes, usable_bytes)
                attempt = limited if limited.outcome == "fits" else attempt
        finally:
            self._idle.put(host)
        return Ended(number, attempt, None)

    def _launched(
        self, host: WorkerHost, rung: Rung, usable_bytes: int, limit_bytes: int | None
    ) -> Attempt:
        request, config = self._known.request, rung.config
        assert isinstance(config.micro_batch_size, int)
        with self._naming:
            folder = self._folder.job_folder(rung.label, config.micro_batch_size)
        job = self._known.measuring_job(self._card, rung, limit_bytes)
        job = replace(job, alone=is_sharded(config))
        attempt, _ = launch(
            host,
            job,
            folder,
            usable_bytes=usable_bytes,
            deadline_s=request.rung_limit_s,
            stop=lambda: self._broken.is_set() or self._stop(),
        )
        save_attempt(folder, attempt)
        return attempt


def _is_close(attempt: Attempt, usable_bytes: int) -> bool:
    """Whether the tensors fit, but not what the allocator held beyond them."""
    measured = attempt.measurement
    if measured is None or attempt.outcome != "oom":
        return False
    return measured.least_bytes() <= usable_bytes
