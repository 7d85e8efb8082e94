"""Simulates a training that ran out of memory, and each remedy that `explain` proposes for it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from functools import partial

from oomdoctor.analysis.command_line import size_text
from oomdoctor.errors import ExitCode
from oomdoctor.records.config import Recipe, Rung, TrainConfig, config_faults
from oomdoctor.records.diagnosis import Diagnosis, Remedy
from oomdoctor.records.model import ModelRef
from oomdoctor.records.plan import PlanRequest
from oomdoctor.records.report import Report, SurveyRequest
from oomdoctor.records.result import ProbeResult
from oomdoctor.runs.events import Listener
from oomdoctor.runs.plan.run import run_plan
from oomdoctor.system.store.run_folders import RunFolder
from oomdoctor.units import format_bytes

_AS_IT_WAS = "the training"
_LIMIT_S = 600.0  # of one simulation
_SEGMENTS = {"shell": "export PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True"}


@dataclass(frozen=True, slots=True)
class Checked:
    """A diagnosis after the simulation; `fault` says why nothing could be simulated, if so."""

    diagnosis: Diagnosis
    fault: str | None = None


def unknown(found: Diagnosis) -> str | None:
    """What a simulation would have to know and the diagnosis does not say; None if it knows all."""
    if found.resource != "gpu" or found.config is None:
        if found.resource != "gpu":
            return "GPU memory did not run out"
        if found.model is None:
            return "the model is not known; add --model MODEL"
        return "add --micro-batch N and --seq-len N; sharded trainings cannot be simulated"
    if found.numbers.capacity_bytes is None:
        return "the message does not say how much memory the GPU has"
    return None


def check(
    found: Diagnosis,
    python: str,
    folder: RunFolder,
    *,
    on_event: Listener,
    stop: Callable[[], ExitCode | None],
) -> Checked:
    """The diagnosis with what its training needs and its remedies free, by simulation.

    What could not be simulated keeps its arithmetic. Remedies that are enough come first.

    Raises:
        OomDoctorError: the model cannot be used (exit 4), or no worker can be started (exit 5).
        ValueError: `unknown` says what is missing.
    """
    if found.config is None or found.model is None or (missing := unknown(found)) is not None:
        raise ValueError(missing)
    simulate = partial(_simulate, found, python, folder, on_event, stop)
    changed = [_changed(found.config, remedy.changes) for remedy in found.remedies]
    labels = {found.config: _AS_IT_WAS}
    for remedy, config in zip(found.remedies, changed, strict=True):
        if config is not None:
            labels.setdefault(config, remedy.change)
    report = simulate(labels)
    rows = {row.label: row for row in report.results if row.peak_device_bytes is not None}
    before = rows.get(_AS_IT_WAS)
    if before is None:
        reasons = [fault.message for fault in report.errors]
        reasons += [row.reason for row in report.results if row.reason is not None]
        return Checked(found, reasons[0] if reasons else "the simulation gave no peak")
    room, peak = _room(found), before.peak_device_bytes or 0
    wasteful = {_expandable(c): label for c, label in labels.items() if _wastes(rows, label, room)}
    whole = {row.label: row for row in simulate(wasteful).results} if wasteful else {}
    remedies = [_of_training_itself(whole.get(_AS_IT_WAS), peak, room)]
    for remedy, config in zip(found.remedies, changed, strict=True):
        label = labels.get(config, "") if config is not None else ""
        simulated = _checked(remedy, peak, rows.get(label), room)
        remedies.append(_with_segments(simulated, peak, whole.get(label), room))
    kept = [remedy for remedy in remedies if remedy is not None]
    answer = replace(
        found,
        simulated_bytes=peak,
        remedies=tuple(sorted(kept, key=_place)),
        oddities=(*found.oddities, *_fits_anyway(peak, room)),
    )
    return Checked(answer)


def _changed(config: TrainConfig, changes: Mapping[str, object]) -> TrainConfig | None:
    """The rung with the changes of a remedy; None if it has none, or they contradict."""
    if not changes:
        return None
    changed = TrainConfig(**{**asdict(config), **changes})
    return None if config_faults(changed) else changed


def _simulate(
    found: Diagnosis,
    python: str,
    folder: RunFolder,
    on_event: Listener,
    stop: Callable[[], ExitCode | None],
    labels: Mapping[TrainConfig, str],
) -> Report:
    assert found.config is not None and found.model is not None  # `unknown` was asked
    ladder = tuple(Rung(label, config) for config, label in labels.items())
    request = SurveyRequest(
        model=ModelRef(name=found.model),
        recipe=Recipe("none", "", ladder, "command line"),
        device="cuda",
        vram_bytes=None,
        headroom=0.0,
        sequence_length=found.config.sequence_length,
        effective_batch_size=found.config.effective_batch_size,
        micro_batch_size=None,
        weights="synthetic",
        evaluate=False,
        eval_batch_size=8,
        rank_by="memory",
        tokens=10**6,
        time_limit_s=None,
        rung_limit_s=_LIMIT_S,
        python=python,
        seed=0,
        plan=PlanRequest(gpus=(size_text(found.numbers.capacity_bytes or 0),), suggest=False),
    )
    return run_plan(request, folder, on_event=on_event, stop=stop)


def _expandable(config: TrainConfig) -> TrainConfig:
    return replace(config, allocator="expandable_segments")


def _wastes(rows: Mapping[str, ProbeResult], label: str, room: int) -> bool:
    """Whether what it allocates would fit, but what the allocator reserves for it does not."""
    row = rows.get(label)
    if row is None or row.config.allocator != "default" or row.peak_device_bytes is None:
        return False
    outside = row.peak_device_bytes - (row.peak_reserved_bytes or 0)
    return (row.peak_allocated_bytes or 0) + outside <= room < row.peak_device_bytes


def _of_training_itself(row: ProbeResult | None, before: int, room: int) -> Remedy | None:
    """Expandable segments, if they alone make the training fit."""
    if row is None or row.peak_device_bytes is None or row.peak_device_bytes > room:
        return None
    plain = Remedy("Turn on expandable segments", None, "rule", _SEGMENTS)
    return _checked(plain, before, row, room)


def _with_segments(remedy: Remedy, before: int, row: ProbeResult | None, room: int) -> Remedy:
    """The remedy with expandable segments, if it is enough only with them."""
    if remedy.enough or row is None or row.peak_device_bytes is None:
        return remedy
    if row.peak_device_bytes > room:
        return remedy
    both = replace(
        remedy,
        change=f"{remedy.change}, with expandable segments",
        lines={**remedy.lines, **_SEGMENTS},
        changes={**remedy.changes, "allocator": "expandable_segments"},
    )
    return _checked(both, before, row, room)


def _room(found: Diagnosis) -> int:
    """What this process may use of the GPU at most."""
    numbers = found.numbers
    room = (numbers.capacity_bytes or 0) - (numbers.other_processes_bytes or 0)
    return room if numbers.allowed_bytes is None else min(room, numbers.allowed_bytes)


def _checked(remedy: Remedy, before: int, row: ProbeResult | None, room: int) -> Remedy:
    """The remedy with the peak of its simulation; as it was if there is none."""
    if row is None or row.peak_device_bytes is None:
        return remedy
    after = row.peak_device_bytes
    return replace(
        remedy,
        frees_bytes=max(0, before - after),
        basis="predicted",
        arithmetic=f"peak {format_bytes(before)} -> {format_bytes(after)}",
        leaves_bytes=after,
        enough=after <= room,
    )


def _place(remedy: Remedy) -> int:
    """First what is enough by simulation, last what is not; otherwise the order stays."""
    if remedy.basis != "predicted":
        return 1
    return 0 if remedy.enough else 2


def _fits_anyway(peak: int, room: int) -> tuple[str, ...]:
    if peak > room:
        return ()
    return (
        f"simulated as described, the training needs {format_bytes(peak)} and fits in "
        f"{format_bytes(room)}: a setting differs from what was assumed, a batch was longer, or "
        "memory was kept from earlier steps",
    )
