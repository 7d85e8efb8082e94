"""Predict one rung at several micro-batch sizes and for several devices, without a device.

The rung is built once, and its step is recorded at a few sizes. `analysis.simulator.predict` says
which, and predicts the rest.
"""

from __future__ import annotations

import sys
import traceback
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from pathlib import Path

from oomdoctor.analysis.memory.zero.setting import setting_of
from oomdoctor.analysis.simulator.card import Card
from oomdoctor.analysis.simulator.orders.depth import IrregularError
from oomdoctor.analysis.simulator.predict import Knowledge, predictions
from oomdoctor.analysis.simulator.recorded import Recorded, RungFacts
from oomdoctor.analysis.simulator.recording_bytes import Pack, packed, unpacked
from oomdoctor.analysis.simulator.zero import alone_config
from oomdoctor.explain.reading.parse import parse_oom
from oomdoctor.records.configuration.config import TrainConfig, is_zero, trains_with_trl
from oomdoctor.records.job.result import ProbeJob
from oomdoctor.records.job.simulation import Prediction
from oomdoctor.system.catalogue import speed_errors
from oomdoctor.worker.protocol import PhaseFile, UnknownValuesError, UnsupportedError
from oomdoctor.worker.replacing import replaced
from oomdoctor.worker.simulating.cuda import attention
from oomdoctor.worker.simulating.cuda.as_on_cuda import as_on_cuda
from oomdoctor.worker.simulating.device.fake import simulated_device
from oomdoctor.worker.simulating.load import instruments_for, load
from oomdoctor.worker.simulating.recorder import Recorder
from oomdoctor.worker.simulating.shallow import IrregularLayersError, unrepeated
from oomdoctor.worker.simulating.world import fake_world, zero3_products
from oomdoctor.worker.tracing import real_values
from oomdoctor.worker.training.build import check_supported, import_libraries
from oomdoctor.worker.training.objectives.images import is_in_tower
from oomdoctor.worker.training.techniques.precision import kept_precision


def simulate(job: ProbeJob, progress: PhaseFile) -> tuple[Prediction, ...]:
    """Predict peaks, fit and times of the job's rung for the sizes and devices it names.

    Raises:
        UnsupportedError: the rung or the model cannot be simulated.
    """
    # Few models need values, and fewer those of large tensors; both make a step take longer.
    usual = (0, real_values.FEW_BYTES) if job.config.routing == "even" else ()
    for largest_bytes in usual:
        with suppress(UnknownValuesError):
            return _at_some_depth(job, progress, largest_bytes)
    return _at_some_depth(job, progress, real_values.MANY_BYTES)


def _at_some_depth(
    job: ProbeJob, progress: PhaseFile, largest_bytes: int
) -> tuple[Prediction, ...]:
    """The predictions, with the values of tensors up to a size; 0 for those of no texts."""
    with_values = largest_bytes > 0
    kept = max(largest_bytes, real_values.FEW_BYTES)
    with replaced(real_values, "largest_bytes", kept):
        for attempt in _attempts(job):
            with suppress(IrregularError, IrregularLayersError):
                return _simulated(attempt, progress, shallow=True, with_values=with_values)
        return _simulated(job, progress, shallow=False, with_values=with_values)


def _attempts(job: ProbeJob) -> Iterator[ProbeJob]:
    """The job, and the job with all layers of its vision encoder."""
    yield job
    assert job.simulation is not None
    stacks = tuple(
        unrepeated(stack) if is_in_tower(stack.path) else stack for stack in job.simulation.stacks
    )
    if stacks != job.simulation.stacks:
        yield replace(job, simulation=replace(job.simulation, stacks=stacks))


def _simulated(
    job: ProbeJob, progress: PhaseFile, *, shallow: bool, with_values: bool
) -> tuple[Prediction, ...]:
    request = job.simulation
    assert request is not None
    with simulated_rung(job, progress, shallow=shallow) as recorder:
        recorder.with_values = with_values
        facts = recorder.facts()
        predicted = _predicted(job, recorder, facts, request.recordings)
        for other in request.other_lengths:
            recorder.set_length(other.sequence_length)
            config = replace(job.config, sequence_length=other.sequence_length)
            try:
                _predicted(replace(job, config=config), recorder, facts, other.recordings)
            except Exception:  # noqa: BLE001  (it has a job of its own then, which says why)
                traceback.print_exc(file=sys.stderr)
    return predicted


def _predicted(
    job: ProbeJob, recorder: Recorder, facts: RungFacts, recordings: str | None
) -> tuple[Prediction, ...]:
    """The predictions of a job; what they needed is added to the file of recordings."""
    assert job.simulation is not None
    file = Path(recordings) if recordings is not None else None
    pack = _known(file, facts)
    made: list[Recorded] = []

    def record(size: int, card: Card) -> Recorded:
        made.append(recorder.record(size, card))
        return made[-1]

    knowledge = Knowledge(speed_errors(), parse_oom)
    predicted = predictions(job.config, job.simulation, pack, record, knowledge)
    if file is not None and made:
        whole = Pack(facts, (*pack.recordings, *made), pack.computed)
        with suppress(OSError):  # a full disk costs later plans their head start, not this answer
            file.write_bytes(packed(whole))
    return predicted


def _known(file: Path | None, facts: RungFacts) -> Pack:
    """What an earlier simulation that built the rung in the same way recorded."""
    try:
        pack = unpacked(file.read_bytes()) if file is not None else None
    except (OSError, ValueError):
        pack = None
    return pack if pack is not None and pack.facts == facts else Pack(facts, ())


@contextmanager
def simulated_rung(job: ProbeJob, progress: PhaseFile, *, shallow: bool) -> Iterator[Recorder]:
    """Build the job's rung once on a simulated device; the recorder works inside the context.

    With `shallow`, stacks of equal layers have only as many layers as a prediction needs.

    Raises:
        IrregularLayersError: with fewer layers, it is not the same model.
        UnsupportedError: the rung cannot be built or simulated.
    """
    assert job.simulation is not None
    replicated = job.config.sharding == "ddp"
    config = _one_rank(job)
    built_as = replace(job, config=attention.built_as(config))
    instruments = instruments_for(job.simulation, progress)
    trace = instruments.trace
    import_libraries()
    with ExitStack() as stack:
        stack.enter_context(kept_precision())  # a rung may allow TF32
        device = stack.enter_context(simulated_device(cuda=job.simulation.as_cuda))
        if job.simulation.as_cuda:
            stack.enter_context(
                as_on_cuda(job.config, instruments.choices, trace, instruments.managed)
            )
        if job.config.sharding == "zero3":
            stack.enter_context(zero3_products())
        stack.enter_context(fake_world(config, trace))
        stack.enter_context(device.observed_by(trace))
        stack.callback(trace.finish)  # before the device closes, so no death is recorded
        with device.real_too():
            loaded = load(built_as, instruments, shallow=shallow, replicated=replicated)
        yield Recorder(built_as, instruments, loaded, device.answers)


def _one_rank(job: ProbeJob) -> TrainConfig:
    """The training to simulate: with DDP and ZeRO that of one GPU without the others.

    Raises:
        UnsupportedError: it is not in the model of ZeRO.
    """
    config = job.config
    if trains_with_trl(config):
        check_supported(config, job.device_type, simulated=True)
    if config.sharding == "ddp":
        # The step of a rank is the same without the others.
        rows = config.rank_batch_size()
        return replace(config, sharding="none", world_size=1, effective_batch_size=rows)
    if not is_zero(config):
        return config
    check_supported(config, job.device_type, simulated=True)
    try:
        setting_of(config)
    except ValueError as error:
        raise UnsupportedError(
            f"{error}; use probe --emulate, which runs the engine itself"
        ) from error
    return alone_config(config)
