"""A measured training run, and its prediction: what the accuracy and peer benchmarks compare.

A case says what ran, on which card, and what was read there. Where the code that ran differs from
today's libraries, it names the adaptations of `old_code` under which it is predicted; the product
knows nothing of them.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from multiprocessing import get_context
from typing import Literal

from oomdoctor.analysis.overhead import context_bytes
from oomdoctor.records.config import TrainConfig
from oomdoctor.records.model import ModelSpec
from oomdoctor.records.result import ProbeJob
from oomdoctor.records.simulation import PhasePeak, Prediction, SimulationRequest, Target
from oomdoctor.system.catalogue import find_gpu

Metric = Literal["allocated", "reserved", "device"]
Origin = Literal["measured", "published"]
BAND = 0.02  # of the measured bytes: a smaller difference decides no "fits"
_NO_LIMIT = 1 << 60


@dataclass(frozen=True, slots=True)
class Reading:
    """Bytes that a run reported; `beside_bytes` of them lie outside PyTorch's allocator."""

    metric: Metric
    measured_bytes: int
    beside_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Case:
    """A run and its readings. `not_expressible` says why it cannot be predicted as it was.

    `ran_out_at_bytes` is what a run was allowed that ran out of memory, context included.
    """

    id: str
    origin: Origin
    stack: str
    model: ModelSpec
    config: TrainConfig
    gpu: str
    readings: tuple[Reading, ...]
    adaptations: tuple[str, ...] = ()
    not_expressible: str | None = None
    ran_out_at_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class Outcome:
    """The predicted bytes of each reading of a case, in their order; or why there are none.

    `fits_where_it_ran_out` is None for a run that did not run out of memory.
    """

    case: Case
    predicted_bytes: tuple[int, ...]
    fits_where_it_ran_out: bool | None
    phases: tuple[PhasePeak, ...]
    seconds: float
    fault: str | None


def outcomes(
    cases: Iterable[Case],
    *,
    processes: int,
    detail: bool = False,
    on_done: Callable[[Outcome], None] = lambda _: None,
) -> list[Outcome]:
    """Every expressible case predicted, in order, by a pool of processes of their own."""
    chosen = [case for case in cases if case.not_expressible is None]
    found = []
    # Adaptations patch libraries and fake tensors are process-wide: one case at a time in each.
    with ProcessPoolExecutor(processes, mp_context=get_context("spawn")) as pool:
        for outcome in pool.map(predict, chosen, [detail] * len(chosen)):
            on_done(outcome)
            found.append(outcome)
    return found


def predict(case: Case, detail: bool = False) -> Outcome:
    """One case simulated. What cannot be simulated is told, not raised."""
    from oomdoctor.worker.unsupported import UnsupportedError

    begin = time.perf_counter()
    try:
        with _adapted(case):
            prediction = _simulated(case, detail)
    except (UnsupportedError, ImportError) as error:
        return Outcome(case, (), None, (), time.perf_counter() - begin, str(error))
    (size,) = prediction.sizes
    (forecast,) = size.forecasts
    measurement = size.measurement
    inside = {"allocated": measurement.peak_allocated_bytes}
    for metric in ("reserved", "device"):
        inside[metric] = measurement.peak_reserved_bytes or 0
    predicted = tuple(inside[r.metric] + r.beside_bytes for r in case.readings)
    fits = forecast.fits if case.ran_out_at_bytes is not None else None
    return Outcome(case, predicted, fits, size.phases, time.perf_counter() - begin, None)


@contextlib.contextmanager
def _adapted(case: Case) -> Iterator[None]:
    import old_code

    with contextlib.ExitStack() as stack:
        for name in case.adaptations:
            stack.enter_context(old_code.ADAPTATIONS[name].apply(case.config))
        yield


def parameters_of(case: Case) -> int:
    """Parameters of the model, tied weights once."""
    from oomdoctor.worker.inspection import inspect_model

    job = ProbeJob("inspect", case.id, case.model, case.config, "cpu")
    return inspect_model(job).parameters.total


def _simulated(case: Case, detail: bool) -> Prediction:
    import torch

    from oomdoctor.worker.inspection import inspect_model
    from oomdoctor.worker.progress import PhaseFile
    from oomdoctor.worker.simulate import simulate

    torch.set_num_threads(1)
    job = ProbeJob("inspect", case.id, case.model, case.config, "cpu")
    size = case.config.micro_batch_size
    assert isinstance(size, int)
    gpu = find_gpu(case.gpu)
    # A rung within the band of what was lacking is neither right nor wrong.
    usable = round((case.ran_out_at_bytes or _NO_LIMIT) * (1 - BAND))
    target = Target(case.gpu, usable, usable, context_bytes(gpu).likely, gpu)
    request = SimulationRequest((size,), (target,), inspect_model(job).stacks, detail=detail)
    return simulate(
        replace(job, mode="simulate", device_type="cuda", simulation=request), PhaseFile(None)
    )
