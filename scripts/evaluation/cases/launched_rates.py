"""The times of published runs whose code ran on the emulated GPU, from what it launched."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from itertools import chain
from pathlib import Path

from cases.case import LeftOut
from cases.rated import Judged
from cases.rates import Row, family_of, gpu_of, source_of
from oomdoctor.analysis.simulator.launched import LaunchedStep, last_step
from oomdoctor.analysis.speed.roofline import estimate
from oomdoctor.commands.run.launched_step import timed_step
from oomdoctor.records.job.launches import Launch, read_launches
from oomdoctor.records.job.machine import GpuFacts
from oomdoctor.worker.simulating.noted_calls import costs_of


def judged_launches(rows: Sequence[Row], notes: Path) -> Iterator[Judged | LeftOut]:
    """The rows whose steps are among the notes, each with the estimated time of its second step.

    Left out are those that did not run, and those on cards for which no times are estimated.
    """
    by_id = {row["id"]: row for row in rows}
    names = (notes / "names").read_text(errors="replace").splitlines()
    launches = list(read_launches((notes / "launches").read_bytes(), names))
    with (notes / "calls").open() as lines:
        costs = costs_of(lines)
    ends = [at for at, launch in enumerate(launches) if _ends_step(launch)]
    for line in (notes / "cases.jsonl").read_text().splitlines():
        case = json.loads(line)
        row = by_id.get(case["id"])
        if row is not None and "error" in case:
            yield LeftOut(row["id"], f"its code does not run: {case['error']}")
        elif row is not None:
            second = case["step"] - 1
            begin, end = ends[second - 1], ends[second] + 1
            yield _judged(row, case["batch"], last_step(launches[begin:end], costs))


def _synchronizes(row: Row) -> bool:
    """Whether the code waits for the device before and after each step.

    benchmark_models.py of github ryujaehun/pytorch-gpu-benchmark does, and the scripts after it.
    """
    return row["group"] == "ryu" or "ryujaehun" in row["method"]


def _synchronized_s(step: LaunchedStep, gpu: GpuFacts) -> float:
    """Seconds of a step that begins with an idle device: the host cannot be ahead of it by then."""
    host = device = 0.0
    for cost in chain(*(chain(m.forward, m.backward) for m in step.micro_steps), step.update):
        alone = estimate([(cost, 1)], gpu)
        assert alone is not None  # the step has an estimate
        host += alone.host_s
        device = max(device, host) + alone.device_s
    return device


def _ends_step(launch: Launch) -> bool:
    return launch.kind == "mark" and launch.name is None


def _judged(row: Row, batch: int, step: LaunchedStep) -> Judged | LeftOut:
    gpu = gpu_of(row)
    timed, reason = timed_step(step, gpu)
    if timed is None or timed.uncertainty is None:
        return LeftOut(row["id"], reason or "a peak of the card is not known")
    return Judged(
        row["id"],
        "training" if row["kind"] == "train" else row["kind"],
        source_of(row),
        gpu.name,
        row["model"],
        row["trust"],
        _synchronized_s(step, gpu) if _synchronizes(row) else timed.step.seconds,
        row["step_s"] if "step_s" in row else batch / row["value"],
        timed.uncertainty,
        settings=repr((row["precision"], row.get("kernels"), batch)),
        tokens=batch,
        family=family_of(row),
    )
