"""The page of `watch`: each GPU with its processes, and each training that writes a live log."""

from __future__ import annotations

from oomdoctor.records.report.report import Report
from oomdoctor.records.report.watch import MemoryTrend, WatchAnswer, WatchedGpu, WatchedTraining
from oomdoctor.render.blocks import Block, Column, Facts, Look, Note, Section, figures, table_of
from oomdoctor.render.words import curve
from oomdoctor.units import DASH, format_bytes, format_percent, format_seconds

_NO_DRIVER = "The driver does not show these GPUs here, so other processes on them are not known."
_EVENTS = {"warning": "Warning", "oom": "Ran out", "skipped": "Skipped"}
_SILENT_STEPS = 20  # after so many times the length of a step without a row, something is wrong
_SILENT_S = 60.0


def watch_sections(report: Report, look: Look) -> list[Section]:
    """GPUs, trainings, then warnings and errors."""
    answer = report.watch
    if answer is None:
        return []
    sections = [_gpu(gpu, answer) for gpu in answer.gpus]
    many = len(answer.trainings) > 2 and not look.verbose
    shown = [max(answer.trainings, key=_share)] if many else answer.trainings
    sections += [_training(training, signs=look.signs) for training in shown]
    if not answer.gpus and not all(training.ended for training in answer.trainings):
        sections.append(Section("", (Note(_NO_DRIVER),)))
    if many:
        left = len(answer.trainings) - 1
        more = f"{left} more ranks are not as full; --verbose shows them."
        sections.append(Section("", (Note(more),)))
    return sections


def _share(training: WatchedTraining) -> float:
    return (training.peak_allocated_bytes or 0) / (
        training.capacity_bytes or training.total_bytes or 1
    )


def _gpu(gpu: WatchedGpu, answer: WatchAnswer) -> Section:
    used = format_bytes(gpu.used_bytes)
    alone = len(gpu.processes) == 1

    def share(used: int | None) -> str:
        return format_percent(None if used is None else used / gpu.total_bytes)

    head = (
        f"GPU {gpu.index}: {gpu.gpu_name}, {used} of {format_bytes(gpu.total_bytes)} in use "
        f"({share(gpu.used_bytes)})"
    )
    blocks: list[Block] = []
    if gpu.processes:
        table = table_of(
            gpu.processes,
            (
                (figures("pid"), lambda process: str(process.pid)),
                (Column("process"), lambda process: process.name or DASH),
                (figures("memory"), lambda process: format_bytes(process.used_bytes)),
                (figures("of GPU"), lambda process: share(process.used_bytes)),
                (
                    Column("", wraps=True),
                    lambda process: "asked for" * (process.asked and not alone),
                ),
            ),
        )
        blocks.append(table)
    elif gpu.used_bytes:
        blocks.append(Note("The driver lists no processes (normal in a container)."))
    if gpu.trend.kind != "too_short":
        blocks.append(Facts((("Trend", _device_trend(gpu.trend)),)))
    return Section(head, tuple(blocks))


def _device_trend(trend: MemoryTrend) -> str:
    if trend.kind == "steady":
        return "no steady growth while watched"
    return f"grows by {format_bytes(trend.per_s_bytes)} per second; " + _until(trend)


def _training(training: WatchedTraining, *, signs: bool) -> Section:
    rank = (
        f", rank {training.rank} of {training.world}"
        if training.world > 1 and training.rank is not None
        else ""
    )
    device = f", its GPU {training.device}" if training.device else ""
    head = f"Job {training.pid}{rank}{device}: {_state(training)}"
    pairs = [("Command", " ".join(training.command))]
    if training.step is not None:
        of = f" of {training.total_steps:,}" if training.total_steps else ""
        each = f", {format_seconds(training.step_s)} each" if training.step_s else ""
        pairs.append(("Step", f"{training.step:,}{of}{each}"))
        pairs.append(("Now", _sizes(training.allocated_bytes, training.reserved_bytes)))
        pairs.append(("Peak", _peak(training)))
        pairs.append(("Trend", _trend(training.trend, ended=training.ended)))
        line = curve([point.peak_allocated_bytes for point in training.memory], signs=signs)
        pairs += [("Peaks", line)] if line else []
    pairs += [
        (_EVENTS[event.event], f"step {event.step:,}: {event.message}")
        for event in training.events
        if event.event in _EVENTS
    ]
    return Section(head, (Facts(tuple(pairs)),))


def _state(training: WatchedTraining) -> str:
    if training.ended:
        return "ended"
    if training.step is None:
        return "running, no step finished yet"
    limit = max(_SILENT_S, _SILENT_STEPS * (training.step_s or 0.0))
    if training.silent_s > limit:
        return f"running, but no step finished for {format_seconds(training.silent_s)}"
    return "running"


def _sizes(allocated: int | None, reserved: int | None) -> str:
    return f"{format_bytes(allocated)} allocated, {format_bytes(reserved)} reserved"


def _peak(training: WatchedTraining) -> str:
    text = _sizes(training.peak_allocated_bytes, training.peak_reserved_bytes)
    if training.capacity_bytes and training.peak_allocated_bytes is not None:
        share = format_percent(training.peak_allocated_bytes / training.capacity_bytes)
        text += f"; {share} of the {format_bytes(training.capacity_bytes)} that it can have"
    return text


def _trend(trend: MemoryTrend, *, ended: bool) -> str:
    if trend.kind == "too_short":
        return "not enough steps to tell"
    if trend.kind == "steady":
        return "no steady growth"
    each = f"{format_bytes(trend.per_step_bytes)} per step"
    return f"grew by {each}" if ended else f"grows by {each}; {_until(trend)}"


def _until(trend: MemoryTrend) -> str:
    parts = []
    if trend.full_at_step is not None:
        parts.append(f"at about step {trend.full_at_step:,}")
    if trend.full_in_s is not None:
        parts.append(f"in about {format_seconds(trend.full_in_s)}")
    return f"full {', '.join(parts)}" if parts else "unknown when it will be full"
