"""Is what oomdoctor measures true? Each rung against a real transformers.Trainer run.

    python scripts/evaluation/truth.py --model HuggingFaceTB/SmolLM2-135M --device cpu --seq-len 64

For each rung: oomdoctor's worker, a Trainer of `--steps` steps that knows nothing of oomdoctor
(`trainer_run.py`), oomdoctor's worker again, so that a machine that slows down does not take
sides. Exit code 0 when every rung is within the goal, 3 when one is outside or did not run.

What is compared:
  speed      median seconds of an optimizer step, as tokens/s at the effective batch. Ours: timed
             micro-steps and updates put together. Theirs: from the end of one step of the Trainer's
             loop to the end of the next, with its data loading, logging and scheduler.
  allocated  CUDA: the caching allocator's peak of either process, loading included. CPU: ours are
             the bytes of tensors by the trace; theirs all that PyTorch's CPU allocator gave out
             (the profiler's record) plus weights and buffers. Temporaries inside an operator are
             in theirs only.
  reserved   CUDA: what the caching allocator took from the driver.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from oomdoctor.analysis.speed.throughput import tokens_per_s, tokens_per_s_spread
from oomdoctor.commands.jobs.host import WorkerHost
from oomdoctor.commands.jobs.launch import launch
from oomdoctor.records.configuration.config import Rung, TrainConfig
from oomdoctor.records.job.measurement import Measurement
from oomdoctor.records.job.model import ModelRef, ModelSpec
from oomdoctor.records.job.result import Attempt, ProbeJob
from oomdoctor.system.environment import worker_environment
from oomdoctor.system.machine.devices import Device, choose_device
from oomdoctor.system.machine.nvml import list_gpus
from oomdoctor.system.models.hub import resolve
from oomdoctor.system.recipes.recipes import parse_rung
from oomdoctor.units import format_bytes, format_rate

TRAINER = Path(__file__).with_name("trainer_run.py")
GOALS = {"cuda": 0.03, "cpu": 0.10}
RUNGS = (
    "weights_dtype=bfloat16",
    "weights_dtype=float32,autocast_dtype=bfloat16",
    "weights_dtype=bfloat16,activation_checkpointing=full",
    "method=lora,autocast_dtype=bfloat16,activation_checkpointing=full",
    "method=qlora,quantization=nf4,autocast_dtype=bfloat16,activation_checkpointing=full",
)


@dataclass(frozen=True, slots=True)
class Side:
    """What one side measured of a rung; None where the device has no such figure."""

    tokens_per_s: float
    allocated_bytes: int
    reserved_bytes: int | None
    rss_bytes: int | None
    spread: float | None  # of the step, half the distance between the quartiles over the median


@dataclass(frozen=True, slots=True)
class Row:
    """One rung: all runs of ours, theirs, and ours / theirs - 1; `fault` instead of figures."""

    label: str
    ours: tuple[Side, ...]
    theirs: Side | None
    speed: float | None
    allocated: float | None
    reserved: float | None
    fault: str | None


def main() -> int:
    """Compare every rung, print the table, judge."""
    options = parse_options()
    chosen = choose_device(options.device, list_gpus())
    spec = resolve(ModelRef(name=options.model, task="causal-lm"))
    rungs = [
        parse_rung(
            text,
            sequence_length=options.seq_len,
            effective_batch_size=options.effective_batch,
            micro_batch_size=options.micro_batch,
        )
        for text in options.rung or RUNGS
    ]
    rows = []
    environment = worker_environment(chosen.gpu.uuid if chosen.gpu else None)
    with tempfile.TemporaryDirectory(dir=options.scratch) as scratch:
        folder = Path(scratch)
        (folder / "checkpoint").mkdir()
        (folder / "checkpoint" / "config.json").write_text(json.dumps(dict(spec.config)))
        with WorkerHost(sys.executable, environment, folder) as host:
            for number, rung in enumerate(rungs, 1):
                say(f"[{number}/{len(rungs)}] {rung.label}")
                rows.append(compare(rung, spec, chosen, host, environment, folder, options))
    goal = GOALS[chosen.type]
    if options.json:
        print(json.dumps(document(rows, spec, chosen, goal, options), indent=2))
    else:
        print_table(rows, spec, chosen, goal, options)
    return 0 if worst(rows) is not None and within(rows, goal) else 3


def parse_options() -> argparse.Namespace:
    """The command line; argparse's help is this file's first paragraph."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--model", default="HuggingFaceTB/SmolLM2-135M", help="id or folder")
    parser.add_argument("--device", default="auto", help="auto, cuda, cuda:N, cpu, a GPU's UUID")
    parser.add_argument("--rung", action="append", help="key=value,...; repeatable")
    parser.add_argument("--seq-len", type=int, default=128)
    parser.add_argument("--effective-batch", type=int, default=4)
    parser.add_argument("--micro-batch", type=int, default=2)
    parser.add_argument("--steps", type=int, default=50, help="of the Trainer, warm-up included")
    parser.add_argument("--warmup", type=int, default=5, help="steps of these that do not count")
    parser.add_argument("--once", action="store_true", help="run ours only before theirs")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--scratch", help="folder for checkpoints (default: the system's)")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    if not 1 <= options.warmup < options.steps:
        parser.error("--warmup must be at least 1 and below --steps")
    return options


def compare(
    rung: Rung,
    spec: ModelSpec,
    chosen: Device,
    host: WorkerHost,
    environment: dict[str, str],
    folder: Path,
    options: argparse.Namespace,
) -> Row:
    """Ours, theirs, ours."""
    ours: list[Side] = []
    theirs: Side | None = None
    try:
        ours.append(run_ours(rung, spec, chosen, host, folder, options.seed))
        theirs = run_theirs(rung.config, chosen, environment, folder, options)
        if not options.once:
            ours.append(run_ours(rung, spec, chosen, host, folder, options.seed))
    except RuntimeError as error:
        return Row(rung.label, tuple(ours), theirs, None, None, None, str(error))
    speed = statistics.fmean(side.tokens_per_s for side in ours) / theirs.tokens_per_s - 1
    allocated = max(side.allocated_bytes for side in ours) / theirs.allocated_bytes - 1
    reserved = None
    if theirs.reserved_bytes:
        reserved = max(side.reserved_bytes or 0 for side in ours) / theirs.reserved_bytes - 1
    return Row(rung.label, tuple(ours), theirs, speed, allocated, reserved, None)


def run_ours(
    rung: Rung, spec: ModelSpec, chosen: Device, host: WorkerHost, folder: Path, seed: int
) -> Side:
    """One job through the worker, as a survey launches it."""
    job = ProbeJob(
        mode="measure",
        label=rung.label,
        model=spec,
        config=rung.config,
        device_type=chosen.type,
        seed=seed,
        timing_limit_s=60.0,
        min_timed_steps=5,
    )
    place = Path(tempfile.mkdtemp(prefix="ours-", dir=folder))
    attempt, _ = launch(
        host,
        job,
        place,
        usable_bytes=2**62,
        deadline_s=3600.0,
        on_phase=lambda phase: None,
        stop=lambda: False,
    )
    measured = measurement_of(attempt)
    assert measured.timing is not None
    rate = tokens_per_s(measured.timing, rung.config)
    say(f"    ours   {format_rate(rate)} tokens/s, {format_bytes(measured.peak_allocated_bytes)}")
    return Side(
        rate,
        measured.peak_allocated_bytes,
        measured.peak_reserved_bytes,
        measured.peak_rss_bytes,
        tokens_per_s_spread(measured.timing, rung.config),
    )


def measurement_of(attempt: Attempt) -> Measurement:
    """What was measured, or a RuntimeError that says why nothing was."""
    if attempt.measurement is None:
        told = attempt.reason or (attempt.oom.message if attempt.oom else "no reason was given")
        raise RuntimeError(f"oomdoctor: {attempt.outcome}: {told}")
    return attempt.measurement


def run_theirs(
    config: TrainConfig,
    chosen: Device,
    environment: dict[str, str],
    folder: Path,
    options: argparse.Namespace,
) -> Side:
    """The same settings by a Trainer in a process of its own."""
    place = Path(tempfile.mkdtemp(prefix="theirs-", dir=folder))
    request = {
        "config": asdict(config),
        "checkpoint": str(folder / "checkpoint"),
        "device": chosen.type,
        "steps": options.steps,
        "warmup_steps": options.warmup,
        "profile_steps": 0 if chosen.type == "cuda" else 3,
        "cap_bytes": None,
        "seed": options.seed,
    }
    (place / "spec.json").write_text(json.dumps(request))
    with (place / "log.txt").open("w") as log:
        ended = subprocess.run(
            [sys.executable, str(TRAINER), str(place / "spec.json"), str(place / "out.json")],
            stdout=log,
            stderr=log,
            env=environment,
            check=False,
        )
    if ended.returncode != 0:
        lines = (place / "log.txt").read_text(errors="replace").strip().splitlines()
        raise RuntimeError(f"Trainer: exit code {ended.returncode}: {(lines or ['?'])[-1]}")
    found: dict[str, Any] = json.loads((place / "out.json").read_text())
    tokens = config.effective_batch_size * config.sequence_length
    rate = tokens / statistics.median(found["step_s"])
    say(f"    theirs {format_rate(rate)} tokens/s, {format_bytes(found['peak_allocated_bytes'])}")
    return Side(
        rate,
        found["peak_allocated_bytes"],
        found.get("peak_reserved_bytes"),
        found["peak_rss_bytes"],
        spread_of(found["step_s"]),
    )


def spread_of(samples: list[float]) -> float | None:
    """Half the distance between the quartiles over the median; None for fewer than two."""
    if len(samples) < 2:
        return None
    lower, middle, upper = statistics.quantiles(samples, n=4, method="inclusive")
    return (upper - lower) / 2 / middle


def worst(rows: list[Row]) -> float | None:
    """The largest deviation of any figure, None when nothing could be compared."""
    return max((abs(d) for row in rows for d in deviations(row)), default=None)


def deviations(row: Row) -> list[float]:
    """The known ones of a row."""
    return [d for d in (row.speed, row.allocated, row.reserved) if d is not None]


def within(rows: list[Row], goal: float) -> bool:
    """Whether every rung could be compared and no figure deviates by more than the goal."""
    return all(row.fault is None and all(abs(d) <= goal for d in deviations(row)) for row in rows)


def document(
    rows: list[Row], spec: ModelSpec, chosen: Device, goal: float, options: argparse.Namespace
) -> dict[str, Any]:
    """Everything that was measured, for a file."""
    return {
        "benchmark": "truth",
        "model": spec.id,
        "device": chosen.gpu.name if chosen.gpu else "cpu",
        "sequence_length": options.seq_len,
        "effective_batch_size": options.effective_batch,
        "steps": options.steps,
        "goal": goal,
        "worst": worst(rows),
        "within": within(rows, goal),
        "rows": [asdict(row) for row in rows],
    }


def print_table(
    rows: list[Row], spec: ModelSpec, chosen: Device, goal: float, options: argparse.Namespace
) -> None:
    """One line a rung, then the verdict."""
    where = chosen.gpu.name if chosen.gpu else f"{os.cpu_count()} CPU cores"
    print(
        f"{spec.id} on {where}: sequence length {options.seq_len}, effective batch "
        f"{options.effective_batch}, Trainer {options.steps} steps (first {options.warmup} not "
        "counted); deviation = oomdoctor / Trainer - 1"
    )
    print(f"{'rung':34} {'tok/s ours':>11} {'Trainer':>9} {'dev':>7}", end="")
    print(f" {'allocated ours':>15} {'Trainer':>10} {'dev':>7} {'reserved':>9}  verdict")
    for row in rows:
        if row.fault is not None or row.theirs is None:
            print(f"{row.label:34} {row.fault}")
            continue
        rate = statistics.fmean(side.tokens_per_s for side in row.ours)
        verdict = "within" if within([row], goal) else "outside"
        print(
            f"{row.label:34} {format_rate(rate):>11} {format_rate(row.theirs.tokens_per_s):>9} "
            f"{signed(row.speed):>7} {format_bytes(row.ours[0].allocated_bytes):>15} "
            f"{format_bytes(row.theirs.allocated_bytes):>10} {signed(row.allocated):>7} "
            f"{signed(row.reserved):>9}  {verdict}{unsteady(row, goal)}"
        )
    largest = worst(rows)
    told = "nothing could be compared" if largest is None else f"worst deviation {largest:.1%}"
    verdict = "within" if largest is not None and within(rows, goal) else "outside"
    print(f"{told}, goal {goal:.0%}: {verdict}")


def unsteady(row: Row, goal: float) -> str:
    """A word where the machine itself was less steady than the goal: then run it again."""
    rates = [side.tokens_per_s for side in row.ours]
    sides = [*row.ours, *([row.theirs] if row.theirs else [])]
    drift = max(rates) / min(rates) - 1
    noise = max([drift, *(side.spread or 0.0 for side in sides)])
    return f" (the machine was unsteady: {noise:.0%})" if noise > goal else ""


def signed(share: float | None) -> str:
    """`+2.1%`; a dash where there is nothing to compare."""
    return "–" if share is None else f"{share:+.1%}"


def say(text: str) -> None:
    """Progress, beside the answer."""
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
