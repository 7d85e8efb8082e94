"""A simulated rung as a memory snapshot or a trace, for `plan --snapshot` and `plan --trace`."""

from __future__ import annotations

import json
import re

from oomdoctor.analysis.allocator.records import Mark
from oomdoctor.analysis.allocator.settings import AllocatorSettings
from oomdoctor.analysis.simulator.card import card_of
from oomdoctor.analysis.simulator.playback import Layout
from oomdoctor.analysis.simulator.recorded import Store
from oomdoctor.analysis.simulator.recordings import Recordings, not_recorded
from oomdoctor.analysis.simulator.sizes import Sizes
from oomdoctor.analysis.simulator.zero import ZeroSizes
from oomdoctor.commands.jobs.simulators import Simulators
from oomdoctor.commands.plan.findings import Findings
from oomdoctor.commands.plan.tasks import Task
from oomdoctor.commands.plan.trace import trace_document
from oomdoctor.records.configuration.config import is_zero
from oomdoctor.records.job.result import FILE_ENDINGS, FileKind, ProbeJob
from oomdoctor.records.report.report import RungFile
from oomdoctor.records.report.run import Place
from oomdoctor.records.report.warnings import warning
from oomdoctor.snapshot.phases import own_frames
from oomdoctor.snapshot.writing import Allocations, write_snapshot
from oomdoctor.system.catalogue import speed_errors
from oomdoctor.system.store.run_folders import RunFolder


def record_files(findings: Findings, simulators: Simulators, folder: RunFolder) -> None:
    """Write the snapshot or the trace that the plan asks for, at the micro-batch size of its row.

    What cannot be simulated has none; its row says why.

    Raises:
        Stopped: told to stop.
        OSError: the file cannot be written.
    """
    asked: tuple[tuple[FileKind, str | None], ...] = (
        ("snapshot", findings.request.snapshot),
        ("trace", findings.request.trace),
    )
    for kind, label in asked:
        if label is not None:
            _record(kind, label, findings, simulators, folder)


def _record(
    kind: FileKind, label: str, findings: Findings, simulators: Simulators, folder: RunFolder
) -> None:
    (card,) = findings.cards
    rung = next(rung for rung in findings.ladder(card) if rung.label == label)
    row = findings.row(card, rung)
    size = row.micro_batch_size
    slug = re.sub(r"[^\w.+-]+", "-", rung.label)
    file = folder.path / f"{kind}-{slug}.{FILE_ENDINGS[kind]}"
    if size is None or findings.inspection is None:
        reason = row.reason or "it was not simulated"
    elif kind == "snapshot" and is_zero(rung.config):
        reason = "a model of DeepSpeed's buffers gives its peak, and has no order of allocations"
    elif kind == "trace" and row.tokens_per_s is None:
        reason = "its speed cannot be estimated"
    else:
        job = findings.job(Task(rung, (size,), (card,)))
        sizes = _simulated(job, simulators)
        reason = "simulations are not kept here (OOMDOCTOR_CACHE_SIZE is 0)"
        if sizes is not None:
            assert job.simulation is not None
            (target,) = job.simulation.targets
            if isinstance(sizes, Sizes) and kind == "snapshot":
                made = of_layout(sizes.layout(size), sizes.settings, target.limit_bytes)
                write_snapshot(made, file)
            else:
                document = trace_document(sizes.slices(target, size), rung.label, card.name)
                file.write_text(json.dumps(document), encoding="utf-8")
            findings.files += (RungFile(kind, rung.label, size, str(file)),)
            return
    findings.warn([warning("not_recorded", kind=kind, label=rung.label, reason=reason)])


def _simulated(job: ProbeJob, simulators: Simulators) -> Sizes | ZeroSizes | None:
    """The sizes of a job's rung, which is simulated if an earlier run kept no recording."""
    made = _kept_sizes(job, simulators)
    if made is None:
        for _ in simulators.run([job]):
            pass
        made = _kept_sizes(job, simulators)
    return made


def _kept_sizes(job: ProbeJob, simulators: Simulators) -> Sizes | ZeroSizes | None:
    """The sizes of a job's rung; None if its simulation was not kept."""
    pack = simulators.memory.recordings(job)
    if pack is None:
        return None
    assert job.simulation is not None
    (target,) = job.simulation.targets
    card = card_of(target)
    store = Store({}, {})
    recordings = Recordings(pack.facts, card, pack.recordings, not_recorded, store)
    for recorded in pack.recordings:
        store.number(recorded)
    kind = ZeroSizes if is_zero(job.config) else Sizes
    return kind(job.config, recordings, card, speed_errors(), store)


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
