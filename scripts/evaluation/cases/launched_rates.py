"""The times of published runs whose code ran on the emulated GPU, from what it launched."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path

from cases.rated import Judged
from cases.rates import Row, gpu_of, source_of
from oomdoctor.analysis.simulator.launched import LaunchedStep, last_step
from oomdoctor.commands.run.launched_step import timed_step
from oomdoctor.records.job.launches import Launch, read_launches
from oomdoctor.worker.simulating.noted_calls import costs_of


def judged_launches(rows: Sequence[Row], notes: Path) -> Iterator[Judged]:
    """The rows whose steps are among the notes, each with the estimated time of its second step."""
    by_id = {row["id"]: row for row in rows}
    names = (notes / "names").read_text(errors="replace").splitlines()
    launches = list(read_launches((notes / "launches").read_bytes(), names))
    with (notes / "calls").open() as lines:
        costs = costs_of(lines)
    ends = [at for at, launch in enumerate(launches) if _ends_step(launch)]
    cases = (notes / "cases.jsonl").read_text().splitlines()
    for number, line in enumerate(cases, 1):
        row = by_id.get(json.loads(line)["id"])
        if row is not None:
            yield _judged(row, last_step(launches[: ends[2 * number - 1] + 1], costs))


def _ends_step(launch: Launch) -> bool:
    return launch.kind == "mark" and launch.name is None


def _judged(row: Row, step: LaunchedStep) -> Judged:
    gpu = gpu_of(row)
    timed, reason = timed_step(step, gpu)
    assert timed is not None and timed.uncertainty is not None, reason
    return Judged(
        row["id"],
        "training",
        source_of(row),
        gpu.name,
        row["model"],
        row["trust"],
        timed.step.seconds,
        row["step_s"],
        timed.uncertainty,
        settings=repr((row["precision"], row["kernels"], row["micro_batch"])),
        tokens=row["global_batch"],
    )
