"""Open a simulated device, build a rung on it, and hand out the recorder of its steps."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace

from oomdoctor.analysis.memory.zero.setting import setting_of
from oomdoctor.analysis.simulator.zero.rung import alone_config
from oomdoctor.records.config import TrainConfig, is_zero, trains_with_trl
from oomdoctor.records.result import ProbeJob
from oomdoctor.worker.protocol.progress import PhaseFile
from oomdoctor.worker.protocol.unsupported import UnsupportedError
from oomdoctor.worker.simulating.cuda import flash_package
from oomdoctor.worker.simulating.cuda.as_on_cuda import as_on_cuda
from oomdoctor.worker.simulating.device.fake import simulated_device
from oomdoctor.worker.simulating.instruments import instruments_for
from oomdoctor.worker.simulating.load import load
from oomdoctor.worker.simulating.ranks.replicas import as_alone
from oomdoctor.worker.simulating.ranks.world import fake_world
from oomdoctor.worker.simulating.recorder import Recorder
from oomdoctor.worker.training.build import import_libraries
from oomdoctor.worker.training.support import check_supported


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
    built_as = replace(job, config=flash_package.built_as(config))
    instruments = instruments_for(job.simulation, progress)
    trace = instruments.trace
    import_libraries()
    with ExitStack() as stack:
        device = stack.enter_context(simulated_device(cuda=job.simulation.as_cuda))
        if job.simulation.as_cuda:
            stack.enter_context(
                as_on_cuda(job.config, instruments.choices, trace, instruments.managed)
            )
        stack.enter_context(fake_world(config, device, trace))
        stack.enter_context(device.observed_by(trace))
        stack.callback(trace.finish)  # before the device closes, so no death is recorded
        with device.real_too():
            loaded = load(built_as, instruments, shallow=shallow, replicated=replicated)
        yield Recorder(built_as, instruments, loaded)


def _one_rank(job: ProbeJob) -> TrainConfig:
    """The training to simulate: with DDP and ZeRO that of one GPU without the others.

    Raises:
        UnsupportedError: it is not in the model of ZeRO.
    """
    config = job.config
    if trains_with_trl(config):
        check_supported(config, job.device_type, simulated=True)
    if config.sharding == "ddp":
        return as_alone(config)
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
