"""A measured training run, and its prediction: what the accuracy and peer benchmarks compare.

A case says what ran, on which card, and what was read there. Where the code that ran differs from
today's libraries, it names the adaptations of `old_code` under which it is predicted; the product
knows nothing of them.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Literal

from cases.each_case import Fault, run_each
from cases.row_lengths import Lengths
from oomdoctor.analysis.memory.overhead import context_bytes, device_total_bytes
from oomdoctor.records.configuration.config import TrainConfig
from oomdoctor.records.job.model import ModelSpec
from oomdoctor.records.job.result import ProbeJob
from oomdoctor.records.job.simulation import PhasePeak, Prediction, SimulationRequest, Target
from oomdoctor.system.catalogue import find_gpu

Metric = Literal["allocated", "reserved", "device"]
Origin = Literal["measured", "published"]
BAND = 0.02  # of the measured bytes: a smaller difference decides no "fits"
NO_LIMIT = 1 << 60


@dataclass(frozen=True, slots=True)
class Reading:
    """Bytes that a run reported; `beside_bytes` of them lie outside PyTorch's allocator.

    `device_bytes` is what the whole card was seen to need in the same run, None where it was not.
    """

    metric: Metric
    measured_bytes: int
    beside_bytes: int = 0
    device_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class Case:
    """A run and its readings.

    `ran_out_at_bytes` is what a run was allowed that ran out of memory, context included.
    `lengths` is None where all batches had the length of the configuration.
    """

    id: str
    origin: Origin
    stack: str
    model: ModelSpec
    config: TrainConfig
    gpu: str
    readings: tuple[Reading, ...]
    adaptations: tuple[str, ...] = ()
    ran_out_at_bytes: int | None = None
    lengths: Lengths | None = None


@dataclass(frozen=True, slots=True)
class LeftOut:
    """A run that cannot be predicted as it was, and why."""

    id: str
    reason: str


@dataclass(frozen=True, slots=True)
class Outcome:
    """The predicted bytes of each reading of a case, in their order; or why there are none.

    `fits_where_it_ran_out` is None for a run that did not run out of memory.
    """

    case: Case
    predicted_bytes: tuple[int, ...]
    fits_where_it_ran_out: bool | None
    phases: tuple[PhasePeak, ...] = ()
    seconds: float = 0.0
    fault: str | None = None


def outcomes(
    cases: Iterable[Case],
    *,
    processes: int,
    detail: bool = False,
    on_done: Callable[[Outcome], None] = lambda _: None,
) -> list[Outcome]:
    """Every case predicted, in order; one that cannot be is told with its fault."""
    found = []
    for case, outcome in run_each(partial(predict, detail=detail), list(cases), processes):
        if isinstance(outcome, Fault):
            outcome = Outcome(case, (), None, fault=outcome.reason)
        on_done(outcome)
        found.append(outcome)
    return found


def predict(case: Case, detail: bool = False) -> Outcome:
    """One case simulated.

    Raises:
        UnsupportedError: the libraries or the simulator cannot run it.
    """
    begin = time.perf_counter()
    gpu = find_gpu(case.gpu)
    # A rung within the band of what was lacking is neither right nor wrong.
    usable = round((case.ran_out_at_bytes or NO_LIMIT) * (1 - BAND))
    target = Target(case.gpu, usable, usable, context_bytes(gpu).likely, gpu)
    prediction = simulated(case, (target,), detail=detail)
    (size,) = prediction.sizes
    (predicted,) = size.devices
    fits = predicted.fits if case.ran_out_at_bytes is not None else None
    found = predicted_bytes(case, prediction)
    return Outcome(case, found, fits, size.phases, time.perf_counter() - begin)


def predicted_bytes(case: Case, prediction: Prediction) -> tuple[int, ...]:
    """What each reading would have been, in their order.

    Raises:
        UnsupportedError: a run of differing lengths that cannot be replayed.
    """
    (size,) = prediction.sizes
    measurement = size.measurement
    inside = {"allocated": measurement.peak_allocated_bytes}
    reserved = measurement.peak_reserved_bytes or 0
    if any(differs_by_length(case, reading.metric) for reading in case.readings):
        reserved = _reserved_over_lengths(case)
    inside |= {"reserved": reserved, "device": reserved}
    return tuple(inside[r.metric] + r.beside_bytes for r in case.readings)


def differs_by_length(case: Case, metric: Metric) -> bool:
    """Whether a reading depends on the lengths before the longest; the peak allocated does not."""
    return case.lengths is not None and metric != "allocated"


def _reserved_over_lengths(case: Case) -> int:
    from cases.differing_lengths import reserved_bytes

    assert case.lengths is not None
    gpu = find_gpu(case.gpu)
    capacity = device_total_bytes(gpu)[0] - context_bytes(gpu).likely if gpu else None
    with _adapted(case):
        job = _job(case, (Target(case.gpu, NO_LIMIT, NO_LIMIT, 0, gpu),))
        return reserved_bytes(job, case.lengths, capacity)


def parameters_of(case: Case) -> int:
    """Parameters of the model, tied weights once."""
    from oomdoctor.worker.training.inspection import inspect_model

    job = ProbeJob("inspect", case.id, case.model, case.config, "cpu")
    return inspect_model(job).parameters.total


def simulated(
    case: Case,
    targets: tuple[Target, ...],
    *,
    detail: bool = False,
    sizes: tuple[int, ...] = (),
    recordings: Path | None = None,
) -> Prediction:
    """The prediction of a case for some devices, with the code that it ran.

    `sizes` are micro-batch sizes to predict instead of its own; what is recorded is added to the
    file `recordings`.

    Raises:
        UnsupportedError: the libraries or the simulator cannot run it.
    """
    from oomdoctor.worker.protocol import PhaseFile
    from oomdoctor.worker.simulating.simulate import simulate

    with _adapted(case):
        job = _job(case, targets, detail=detail)
        assert job.simulation is not None
        request = replace(
            job.simulation,
            micro_batch_sizes=sizes or job.simulation.micro_batch_sizes,
            recordings=None if recordings is None else str(recordings),
        )
        prediction, *_ = simulate(replace(job, simulation=request), PhaseFile(None))
        return prediction


def _job(case: Case, targets: tuple[Target, ...], *, detail: bool = False) -> ProbeJob:
    """The simulation of a case; the code that it ran must be in place."""
    import torch

    from oomdoctor.worker.training.inspection import inspect_model

    torch.set_num_threads(1)
    size = case.config.micro_batch_size
    assert isinstance(size, int)
    job = ProbeJob("inspect", case.id, case.model, case.config, "cpu")
    request = SimulationRequest((size,), targets, inspect_model(job).stacks, detail=detail)
    return replace(job, mode="simulate", device_type="cuda", simulation=request)


@contextlib.contextmanager
def _adapted(case: Case) -> Iterator[None]:
    from old_code.adaptations import ADAPTATIONS

    with contextlib.ExitStack() as stack:
        for name in case.adaptations:
            stack.enter_context(ADAPTATIONS[name].apply(case.config))
        yield
