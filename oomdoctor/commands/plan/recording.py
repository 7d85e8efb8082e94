"""A simulated rung as a memory snapshot, for `plan --snapshot`."""

from __future__ import annotations

import re

from oomdoctor.analysis.allocator.records import Mark
from oomdoctor.analysis.allocator.settings import AllocatorSettings
from oomdoctor.analysis.simulator.card import card_of
from oomdoctor.analysis.simulator.playback import Layout
from oomdoctor.analysis.simulator.recorded import Store
from oomdoctor.analysis.simulator.recordings import Recordings, not_recorded
from oomdoctor.analysis.simulator.sizes import Sizes
from oomdoctor.commands.jobs.simulators import Simulators
from oomdoctor.commands.plan.findings import Findings
from oomdoctor.commands.plan.tasks import Task
from oomdoctor.records.configuration.config import is_zero
from oomdoctor.records.job.result import ProbeJob
from oomdoctor.records.report.report import RungFile
from oomdoctor.records.report.run import Place
from oomdoctor.records.report.warnings import warning
from oomdoctor.snapshot.phases import own_frames
from oomdoctor.snapshot.writing import Allocations, write_snapshot
from oomdoctor.system.catalogue import speed_errors
from oomdoctor.system.store.run_folders import RunFolder


def record_snapshot(findings: Findings, simulators: Simulators, folder: RunFolder) -> None:
    """Write the snapshot of the rung that the plan asks for, at the micro-batch size of its row.

    What cannot be simulated has none; its row says why.

    Raises:
        Stopped: told to stop.
        OSError: the file cannot be written.
    """
    label, (card,) = findings.request.snapshot, findings.cards
    rung = next(rung for rung in findings.ladder(card) if rung.label == label)
    row = findings.row(card, rung)
    size = row.micro_batch_size
    made: Allocations | None = None
    if size is None or findings.inspection is None:
        reason = row.reason or "it was not simulated"
    elif is_zero(rung.config):
        reason = "a model of DeepSpeed's buffers gives its peak, and has no order of allocations"
    else:
        made = _simulated(findings.job(Task(rung, (size,), (card,))), simulators)
        reason = "simulations are not kept here (OOMDOCTOR_CACHE_SIZE is 0)"
    if size is None or made is None:
        findings.warn([warning("not_recorded", kind="snapshot", label=rung.label, reason=reason)])
        return
    slug = re.sub(r"[^\w.+-]+", "-", rung.label)
    file = folder.path / f"snapshot-{slug}.pickle"
    write_snapshot(made, file)
    findings.files += (RungFile("snapshot", rung.label, size, str(file)),)


def _simulated(job: ProbeJob, simulators: Simulators) -> Allocations | None:
    """The allocations of a job's rung, which is simulated if an earlier run kept no recording."""
    made = _allocations(job, simulators)
    if made is None:
        for _ in simulators.run([job]):
            pass
        made = _allocations(job, simulators)
    return made


def _allocations(job: ProbeJob, simulators: Simulators) -> Allocations | None:
    """The allocations of a job's rung; None if its simulation was not kept."""
    pack = simulators.memory.recordings(job)
    if pack is None:
        return None
    assert job.simulation is not None and isinstance(job.config.micro_batch_size, int)
    (target,) = job.simulation.targets
    card = card_of(target)
    store = Store({}, {})
    recordings = Recordings(pack.facts, card, pack.recordings, not_recorded, store)
    for recorded in pack.recordings:
        store.number(recorded)
    sizes = Sizes(job.config, recordings, card, speed_errors(), store)
    layout = sizes.layout(job.config.micro_batch_size)
    return of_layout(layout, sizes.settings, target.limit_bytes)


def of_layout(layout: Layout, settings: AllocatorSettings, limit_bytes: int | None) -> Allocations:
    """The events of a rung at one size, for a device with a limit."""
    order = layout.order

    def frames(number: int, phase: str) -> tuple[Place, ...]:
        block = layout.blocks[order.origin[number]]
        module = re.sub(r"\.\d+\.", ".*.", block.module + ".")[:-1]
        return own_frames(module, block.operator, phase, block.category)

    return Allocations(
        events=order.events,
        sizes=[layout.sizes[origin] for origin in order.origin],
        marks=[Mark(start, phase, start in order.emptied) for start, _, phase in order.windows],
        frames=frames,
        settings=settings,
        written_by="oomdoctor plan: simulated, not measured",
        limit_bytes=limit_bytes,
    )
