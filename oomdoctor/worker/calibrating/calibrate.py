"""Measure a device: its operators in rounds, then steps of small models.

Every round times every operator once, so what changes slowly (clocks, heat, other processes)
touches all alike. Each operator is called before the first round, to warm up, and has the median of
its rounds.
"""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace

import torch

from oomdoctor.analysis.speed.calibration_models import calibration_models
from oomdoctor.records.job.device_times import (
    CountedOperator,
    DeviceTimes,
    MeasuredKernel,
    MeasuredStep,
)
from oomdoctor.records.job.result import ProbeJob
from oomdoctor.worker.calibrating.operators import (
    TABLE,
    Counting,
    Memory,
    Operator,
    one_element,
    operators,
)
from oomdoctor.worker.calibrating.stopwatch import Stopwatch
from oomdoctor.worker.measuring import meters
from oomdoctor.worker.measuring.measure import built
from oomdoctor.worker.measuring.timing import begin, relative_spread, since
from oomdoctor.worker.protocol import PhaseFile, own_device
from oomdoctor.worker.tracing.calls import Recording
from oomdoctor.worker.training.build import import_libraries
from oomdoctor.worker.training.step import whole_step

_LEAST_STEPS = 5
_MOST_STEPS = 50


def calibrate(job: ProbeJob, progress: PhaseFile) -> DeviceTimes:
    """Measure operators and steps on the job's device, in about `job.timing_limit_s` seconds.

    There are at least three rounds over the operators and five steps of each model, however long
    they take.
    """
    start, device = time.perf_counter(), own_device(job.device_type)
    progress.enter("init")
    import_libraries(job.config)
    watch, clocks = Stopwatch(device), begin()
    progress.enter("operators")
    limit = start + TABLE["operators_share"] * job.timing_limit_s
    with torch.no_grad(), _without_denormals():  # what is repeated in place may get very small
        kernels, launch_s, rounds = _operators(device, watch, limit)
    progress.enter("steps")
    models = calibration_models(job.device_type)
    steps = []
    for number, (spec, config) in enumerate(models):
        left = start + job.timing_limit_s - time.perf_counter()
        limit = time.perf_counter() + left / (len(models) - number)
        steps.append(_fitting_step(replace(job, model=spec, config=config), progress, watch, limit))
    return DeviceTimes(
        kernels=kernels,
        launch_s=launch_s,
        host_step=steps[0],
        steps=tuple(steps[1:]),
        clock=watch.clock,
        rounds=rounds,
        elapsed_s=time.perf_counter() - start,
        load=since(clocks, device),
    )


def _operators(
    device: torch.device, watch: Stopwatch, limit: float
) -> tuple[tuple[MeasuredKernel, ...], float, int]:
    """The operators, the seconds of one on one element, and the number of rounds."""
    memory = Memory(device, TABLE["sizes"][device.type]["elements"])
    floor, *others = (one_element(memory), *operators(memory))
    timed = {id(each): _Samples(each, watch) for each in (floor, *others)}
    rounds = 0
    while rounds < TABLE["least_rounds"] or time.perf_counter() < limit:
        for samples in timed.values():
            samples.add(first=rounds)
        rounds += 1
    kernels = tuple(timed[id(each)].measured() for each in others if timed[id(each)].taken)
    return kernels, timed[id(floor)].measured().seconds, rounds


class _Samples:
    """The times of an operator; none if there is too little memory for its results."""

    def __init__(self, operator: Operator, watch: Stopwatch) -> None:
        self._operator, self._watch, self.taken = operator, watch, list[float]()
        self._calls = 0
        with suppress(torch.OutOfMemoryError):
            self._calls = watch.calls_for(operator)

    def add(self, first: int) -> None:
        """Take another sample, whose calls begin with turn `first`."""
        if self._calls:
            with suppress(torch.OutOfMemoryError):
                self.taken.append(self._watch.seconds(self._operator, self._calls, first))

    def measured(self) -> MeasuredKernel:
        """The median of the samples and their spread."""
        spread = relative_spread(self.taken)
        return MeasuredKernel(self._operator.cost, statistics.median(self.taken), spread)


@contextmanager
def _without_denormals() -> Iterator[None]:
    torch.set_flush_denormal(True)
    try:
        yield
    finally:
        torch.set_flush_denormal(False)


def _fitting_step(
    job: ProbeJob, progress: PhaseFile, watch: Stopwatch, limit: float
) -> MeasuredStep:
    """The step at the largest micro-batch that fits, of those that are halves of the job's.

    Raises:
        torch.OutOfMemoryError: one row does not fit.
    """
    while True:
        size = job.config.micro_batch_size
        try:
            return timed_step(job, progress, watch, limit)
        except torch.OutOfMemoryError:
            if not isinstance(size, int) or size == 1:
                raise
        gc.collect()  # what did not fit
        torch.cuda.empty_cache()
        half = replace(job.config, micro_batch_size=size // 2, effective_batch_size=size // 2)
        job = replace(job, config=half)


def timed_step(job: ProbeJob, progress: PhaseFile, watch: Stopwatch, limit: float) -> MeasuredStep:
    """The training step of a job's model: its operators, and the median of its times.

    It is timed at least five times, and until `limit` on the clock of `time.perf_counter`.
    """
    meter = meters.for_job(job)
    setup, held, marks = built(job, meter, progress)
    batches = [held[number % len(held)] for number in range(job.config.accumulation_steps())]
    marks.listen(lambda phase: None)
    for _ in range(2):  # the first step makes the optimizer's states
        whole_step(setup, batches, marks)
    counting = Counting()
    with Recording(counting):
        whole_step(setup, batches, marks)
    taken: list[float] = []
    while len(taken) < _LEAST_STEPS or (len(taken) < _MOST_STEPS and time.perf_counter() < limit):
        _wait_for(setup.device)
        before = watch.now()
        whole_step(setup, batches, marks)
        _wait_for(setup.device)
        taken.append(watch.now() - before)
    del setup, held, batches
    gc.collect()
    counted = tuple(CountedOperator(cost, count) for cost, count in counting.costs.items())
    return MeasuredStep(job.model.id, counted, statistics.median(taken), relative_spread(taken))


def _wait_for(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
