"""The memory of a GPU when a request failed, as a bar for each log: held, and asked for."""

from __future__ import annotations

from functools import partial
from pathlib import PurePath

from oomdoctor.records.report.diagnosis import Diagnosis
from oomdoctor.records.report.report import Report
from oomdoctor.render.blocks import Column, table_of
from oomdoctor.render.charts import Chart
from oomdoctor.render.charts.memory_chart import MOST, draw_peaks, height_of
from oomdoctor.render.charts.parts import Peak, part_cells
from oomdoctor.units import format_bytes


def request_chart(report: Report) -> Chart | None:
    """The chart, if a message has the size of its GPU and what was free; of GPUs of one size."""
    whole = [diagnosis for diagnosis in report.diagnoses if diagnosis.numbers.adds_up]
    if not whole:
        return None
    size = whole[0].numbers.capacity_bytes
    alike = [diagnosis for diagnosis in whole if diagnosis.numbers.capacity_bytes == size][:MOST]
    bars, limit = [_bar(diagnosis) for diagnosis in alike], (size or 0, "on the GPU")
    short = max((bar.total for bar in bars), default=0) - limit[0]
    held = f"What held the {format_bytes(size)} of the GPU when the request failed"
    return Chart(
        "request",
        "Memory when it failed",
        f"{held}, and the request, {format_bytes(short)} too much." if short > 0 else f"{held}.",
        table_of(
            bars,
            (
                (Column("log"), lambda bar: bar.label),
                *part_cells(bars),
                (Column("in all", right=True), lambda bar: format_bytes(bar.total)),
            ),
        ),
        partial(draw_peaks, bars, limit),
        partial(height_of, bars),
    )


def _bar(diagnosis: Diagnosis) -> Peak:
    numbers = diagnosis.numbers
    others, used = numbers.other_processes_bytes, numbers.used_bytes
    tensors, cached = numbers.allocated_bytes or 0, numbers.reserved_unallocated_bytes or 0
    # Without a list of processes, the rest may be theirs.
    rest = "other" if others is None or not tensors else "context"
    parts = {
        "whole": tensors,
        "reserved": cached,
        rest: max(0, used - (others or 0) - tensors - cached),
        "others": others or 0,
        "request": numbers.requested_bytes or 0,
    }
    rank = "" if diagnosis.rank is None else f", rank {diagnosis.rank}"
    label = PurePath(diagnosis.source).name + rank
    return Peak(diagnosis.source, label, False, sum(parts.values()), tuple(parts.items()))
