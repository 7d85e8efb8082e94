"""One rung by both ways: its training step on the emulated card, and the simulation of it.

Both run in the worker that `probe` and `plan` use, with the same interpreter, whose torch is a CUDA
build. The emulated card has room for everything, so that peaks are those without a limit; where the
real size may decide, the step runs a second time on a card of that size.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from emulated.rungs import EmulatedRung
from oomdoctor.analysis.memory.overhead import context_bytes, device_total_bytes
from oomdoctor.commands.jobs.host import WorkerHost
from oomdoctor.commands.jobs.launch import launch
from oomdoctor.emulator.card import Card, Devices
from oomdoctor.emulator.enter import entered
from oomdoctor.records.job.model import LayerStack, ModelRef, ModelSpec
from oomdoctor.records.job.result import ProbeJob, Reply
from oomdoctor.records.job.simulation import SimulationRequest, Target
from oomdoctor.system.catalogue import find_gpu
from oomdoctor.system.environment import variable, worker_environment
from oomdoctor.system.models.hub import resolve

_ROOMY = 8 << 40
_DEADLINE_S = 900.0
_ONE_THREAD = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}


@dataclass(frozen=True, slots=True)
class Peaks:
    """Peaks on a card without a limit, and whether the rung fits the card's real size."""

    allocated: int
    reserved: int
    fits: bool


@dataclass(frozen=True, slots=True)
class Compared:
    """A rung by both ways, or why one of them has no answer."""

    emulated: Peaks | None
    simulated: Peaks | None
    reason: str | None = None


class Both:
    """Runs rungs by both ways. Its hosts are kept for all rungs; `compare` is for one at a time."""

    def __init__(self, python: Path, folder: Path, cache: Path, stack: ExitStack) -> None:
        self.python, self.folder, self.cache, self._stack = python, folder, cache, stack
        self._hosts: dict[str, WorkerHost] = {}
        self._stacks: dict[str, tuple[LayerStack, ...]] = {}
        self._count = 0

    def compare(
        self, rung: EmulatedRung, emulated: Peaks | str | None = None, spec: ModelSpec | None = None
    ) -> Compared:
        """The rung by both ways, the first of which may be known; of its model or of `spec`."""
        spec = spec or resolve(ModelRef(rung.model, source="catalogue"))
        simulated = self._simulated(rung, spec)
        if isinstance(simulated, str):
            return Compared(None, None, f"simulated: {simulated}")
        emulated = emulated or self.emulated(rung, spec)
        if isinstance(emulated, str):
            return Compared(None, simulated, f"emulated: {emulated}")
        return Compared(emulated, simulated)

    def emulated(self, rung: EmulatedRung, spec: ModelSpec) -> Peaks | str:
        """The peaks on the emulated card; a sentence if it has none."""
        job = ProbeJob(
            "measure",
            rung.name,
            spec,
            rung.config,
            "cuda",
            timing_limit_s=0.0,
            min_timed_steps=1,
            max_timed_steps=1,
        )
        roomy = self._ask(self._emulated_host(rung.card, roomy=True), job)
        if roomy is None or roomy.measurement is None:
            return _why(roomy)
        found = roomy.measurement
        reserved = found.peak_reserved_bytes or 0
        fits = reserved <= target_of(rung.card).limit_bytes
        if not fits:
            real = self._ask(self._emulated_host(rung.card, roomy=False), job)
            if real is None or real.status not in ("measured", "oom"):
                return _why(real)
            fits = real.status == "measured"
        return Peaks(found.peak_allocated_bytes, reserved, fits)

    def _simulated(self, rung: EmulatedRung, spec: ModelSpec) -> Peaks | str:
        job = ProbeJob("inspect", rung.name, spec, rung.config, "cpu")
        host = self._simulator(rung.card)
        if rung.model not in self._stacks:
            inspected = self._ask(host, job)
            if inspected is None or inspected.inspection is None:
                return _why(inspected)
            self._stacks[rung.model] = inspected.inspection.stacks
        size = rung.config.micro_batch_size
        assert isinstance(size, int)
        request = SimulationRequest(
            (size,), (target_of(rung.card),), self._stacks[rung.model], every_size=True
        )
        reply = self._ask(
            host, replace(job, mode="simulate", device_type="cuda", simulation=request)
        )
        if reply is None or not reply.predictions:
            return _why(reply)
        (found,) = reply.predictions[0].sizes
        return Peaks(
            found.measurement.peak_allocated_bytes,
            found.measurement.peak_reserved_bytes or 0,
            found.devices[0].fits,
        )

    def _ask(self, host: WorkerHost, job: ProbeJob) -> Reply | None:
        self._count += 1
        folder = self.folder / f"job-{self._count:04}"
        folder.mkdir()
        _, reply = launch(
            host,
            job,
            folder,
            usable_bytes=None,
            deadline_s=_DEADLINE_S,
            on_phase=lambda phase: None,
            stop=lambda: False,
        )
        return reply

    def _emulated_host(self, card: str, *, roomy: bool) -> WorkerHost:
        return self._host(f"{card} {roomy}", card, "0", roomy=roomy)

    def _simulator(self, card: str) -> WorkerHost:
        """The host of all simulations; it sees no card, but torch finds its CUDA libraries."""
        return self._host("simulator", card, None, roomy=True)

    def _host(self, name: str, card: str, visible: str | None, *, roomy: bool) -> WorkerHost:
        if name not in self._hosts:
            folder = self.folder / re.sub(r"\W+", "-", name)
            session = folder / "session"
            session.mkdir(parents=True)
            devices = Devices(emulated_card(card, roomy=roomy))
            own = self._stack.enter_context(
                entered(self.python, devices, session, self.cache, variable("CC"))
            )
            environment = worker_environment(visible) | _ONE_THREAD | own.variables
            isolated = visible is not None
            host = WorkerHost(str(self.python), environment, folder, isolated=isolated)
            self._hosts[name] = self._stack.enter_context(host)
        return self._hosts[name]


@contextmanager
def both(python: Path, folder: Path, cache: Path) -> Iterator[Both]:
    """Workers for rungs; `folder` must exist and keeps jobs and logs."""
    with ExitStack() as stack:
        yield Both(python, folder, cache, stack)


def target_of(card: str) -> Target:
    """The card as `plan` sees it, without a headroom."""
    gpu = find_gpu(card)
    assert gpu is not None, card
    total, _ = device_total_bytes(gpu)
    return Target(card, total, total, context_bytes(gpu).likely, gpu)


def emulated_card(card: str, *, roomy: bool) -> Card:
    """The card as the emulator shows it; with room for everything if it shall be `roomy`."""
    target = target_of(card)
    gpu = target.gpu
    assert gpu is not None and gpu.compute_capability is not None
    major, minor = (int(part) for part in gpu.compute_capability.split("."))
    total = _ROOMY if roomy else target.total_bytes
    return Card(
        gpu.name,
        (major, minor),
        total,
        _ROOMY if roomy else gpu.total_bytes or total,
        target.overhead_bytes,
        gpu.multiprocessors,
        gpu.l2_bytes,
        gpu.memory_bus_bits,
    )


def _why(reply: Reply | None) -> str:
    if reply is None:
        return "the worker did not answer"
    failure = reply.failure
    return reply.reason or (f"{failure.code}: {failure.message}" if failure else reply.status)
