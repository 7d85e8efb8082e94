"""Time real steps after a warm-up, and repeat them until the spread is small.

On CUDA, events time the work when it runs, not when it is queued. On the CPU, the clock is enough.
Rank 0 decides how many steps all ranks take: clocks differ, and a rank that takes a step more than
the others waits for them in vain.

Other processes make a step slower than it is on an idle machine. The kernel counts the busy time of
each core, and of this process; the rest was used by others. For the GPU, the driver is asked.
"""

from __future__ import annotations

import itertools
import os
import statistics
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeAlias

import torch

from oomdoctor.records.job.measurement import Load, Timing
from oomdoctor.records.job.result import ProbeJob
from oomdoctor.worker.measuring import nvml
from oomdoctor.worker.protocol import Marks, own_uuid
from oomdoctor.worker.training.batch import Batch
from oomdoctor.worker.training.setup import Setup
from oomdoctor.worker.training.step import training_step

Stamp: TypeAlias = float | torch.cuda.Event  # a moment on the CPU, or on the GPU

MAX_WARMUP = 5
MANY = 8  # samples for which quartiles mean something
STEADY = 0.05  # two successive steps that are this close end the warm-up
FEW = 3  # fewer steps do not show how much they vary, so slow ones get up to OVERTIME
OVERTIME = 3.0
# The kernel counts in hundredths of a second, so less than this says little.
_LEAST_S = 0.2
# Of a line of /proc/stat: user, nice, system, irq, softirq, steal (man 5 proc). The rest is idle,
# or already counted as user.
_BUSY = (0, 1, 2, 5, 6, 7)


@dataclass(slots=True)
class StepTimes:
    """Seconds of one step: its micro-steps in order, and the optimizer after them."""

    micro: list[float]
    optimizer: float
    skipped: bool

    @property
    def total(self) -> float:
        return sum(self.micro) + self.optimizer


def time_steps(
    setup: Setup, batches: list[Batch], job: ProbeJob, marks: Marks
) -> tuple[Timing, int]:
    """The timing of a rung, and how many optimizer steps the gradient scaler skipped.

    `marks` are those that the Trainer was built with. Skipped steps have no optimizer time and do
    not count.
    """
    start, clocks = time.perf_counter(), begin()
    warmup = _warm_up(setup, batches, marks, start + job.timing_limit_s / 3)
    skipped = sum(step.skipped for step in warmup)
    steps: list[StepTimes] = []
    stopped_by: Literal["spread", "step_limit", "time_limit"] = "step_limit"
    settled = 0  # steps in a row with a small spread: once may be luck
    while len(steps) < job.max_timed_steps:
        step = _one_step(setup, batches, marks)
        skipped += step.skipped
        if not step.skipped:
            steps.append(step)
        passed = time.perf_counter() - start
        enough = len(steps) >= FEW or passed > OVERTIME * job.timing_limit_s
        late = passed > job.timing_limit_s and enough
        spread = relative_spread([step.total for step in steps])
        small = spread is not None and spread <= job.spread_target
        settled = settled + 1 if small else 0
        at_rest = len(steps) >= job.min_timed_steps and settled >= 2
        at_end = late and (bool(steps) or skipped > job.max_timed_steps)
        choice = as_first_rank(1 if at_rest else 2 if at_end else 0, setup.device)
        if choice:
            stopped_by = "spread" if choice == 1 else "time_limit"
            break
    used = steps or warmup
    accumulation = job.config.accumulation_steps()
    per_step = [_mean_micro_step(step.micro, accumulation) for step in used]
    optimizer = [step.optimizer for step in used]
    return (
        Timing(
            micro_step_s=statistics.median(per_step),
            micro_step_spread=relative_spread(per_step),
            optimizer_step_s=statistics.median(optimizer),
            optimizer_step_spread=relative_spread(optimizer),
            first_untraced_step_s=warmup[0].total,
            warmup_steps=len(warmup),
            timed_steps=len(used),
            stopped_by=stopped_by,
            load=since(clocks, setup.device),
        ),
        skipped,
    )


def relative_spread(samples: list[float]) -> float | None:
    """Half the distance between the quartiles, divided by the median; None below two samples.

    Quartiles of few samples mean little, so below `MANY` samples it is half of the whole range.
    """
    if len(samples) < 2:
        return None
    lower, middle, upper = statistics.quantiles(samples, n=4, method="inclusive")
    if len(samples) < MANY:
        lower, upper = min(samples), max(samples)
    return (upper - lower) / 2 / middle


def _mean_micro_step(micro: list[float], accumulation: int) -> float:
    """The mean micro-step of a full accumulation, from the first one and later ones.

    The first creates the gradients and the others add to them, so their times differ.
    """
    if len(micro) == 1:
        return micro[0]
    later = statistics.fmean(micro[1:])
    return (micro[0] + (accumulation - 1) * later) / accumulation


def _warm_up(setup: Setup, batches: list[Batch], marks: Marks, deadline: float) -> list[StepTimes]:
    steps = [_one_step(setup, batches, marks)]
    steady = False
    while len(steps) < MAX_WARMUP:
        enough = steady or time.perf_counter() >= deadline
        if as_first_rank(int(enough), setup.device):
            break
        steps.append(_one_step(setup, batches, marks))
        before, after = steps[-2].total, steps[-1].total
        steady = not steps[-1].skipped and abs(after - before) <= STEADY * before
    return steps


def _one_step(setup: Setup, batches: list[Batch], marks: Marks) -> StepTimes:
    stamps: list[tuple[str, Stamp]] = []
    stamp = _cuda_stamp if setup.device.type == "cuda" else time.perf_counter

    def mark(phase: str) -> None:
        if phase != "backward":
            stamps.append((phase, stamp()))

    marks.listen(mark)
    training_step(setup, batches, marks)
    stamps.append(("end", stamp()))
    if setup.device.type == "cuda":
        torch.cuda.synchronize()
    spans = [
        (phase, _seconds(begin, end)) for (phase, begin), (_, end) in itertools.pairwise(stamps)
    ]
    return StepTimes(
        micro=[span for phase, span in spans if phase == "forward"],
        optimizer=sum(span for phase, span in spans if phase == "optimizer"),
        skipped=bool(getattr(setup.trainer.accelerator, "optimizer_step_was_skipped", False)),
    )


def _cuda_stamp() -> torch.cuda.Event:
    event = torch.cuda.Event(enable_timing=True)
    event.record()
    return event


def _seconds(begin: Stamp, end: Stamp) -> float:
    if isinstance(begin, float):
        return float(end - begin)
    return float(begin.elapsed_time(end)) / 1000


@dataclass(frozen=True, slots=True)
class Start:
    """The clocks at the start; times in seconds, `busy_s` None if the kernel does not count."""

    wall_s: float
    own_s: float
    busy_s: float | None
    unix_us: int


def begin() -> Start:
    """The clocks now."""
    return Start(time.perf_counter(), time.process_time(), _busy_seconds(), int(time.time() * 1e6))


def since(start: Start, device: torch.device) -> Load | None:
    """Who used the device since `start`; None if that was too short to tell."""
    passed = time.perf_counter() - start.wall_s
    if passed < _LEAST_S:
        return None
    own = time.process_time() - start.own_s
    busy, foreign = _busy_seconds(), None
    if start.busy_s is not None and busy is not None:
        foreign = max(0.0, busy - start.busy_s - own) / passed
    on_gpu = device.type == "cuda"
    return Load(
        cpus=len(os.sched_getaffinity(0)),
        threads=1 if on_gpu else torch.get_num_threads(),  # one thread issues the work of a GPU
        own_cpus=own / passed,
        foreign_cpus=foreign,
        foreign_gpu=nvml.foreign_utilization(own_uuid() if on_gpu else None, start.unix_us),
    )


def _busy_seconds(stat: Path = Path("/proc/stat")) -> float | None:
    """Seconds in which the cores that this process may use were busy, since the machine started."""
    try:
        lines = stat.read_text(encoding="ascii").splitlines()
    except (OSError, UnicodeDecodeError):
        return None
    wanted = {f"cpu{number}" for number in os.sched_getaffinity(0)}
    ticks = 0
    for line in lines:
        name, *counts = line.split()
        if name in wanted and len(counts) > max(_BUSY):
            ticks += sum(int(counts[field]) for field in _BUSY)
    return ticks / os.sysconf("SC_CLK_TCK") if ticks else None


def as_first_rank(choice: int, device: torch.device) -> int:
    """What rank 0 chose; all ranks have to call this. One process keeps its own choice."""
    import torch.distributed as dist

    if not (dist.is_available() and dist.is_initialized()) or dist.get_world_size() == 1:
        return choice
    told = torch.tensor([choice], device=device)
    dist.broadcast(told, src=0)
    return int(told.item())
