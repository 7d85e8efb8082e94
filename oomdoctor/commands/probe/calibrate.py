"""`probe --calibrate`: measure a device's operators, and keep the times for later estimates.

What is not believable is not kept: times of an emulated GPU, of a device that others used, times
that varied, or rates above the card's peaks.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median

from oomdoctor.analysis.speed.calibrated import cpu_facts, host_operator_s
from oomdoctor.analysis.speed.calibration_models import calibration_models
from oomdoctor.analysis.speed.calibration_summary import checked_steps, measured_terms
from oomdoctor.analysis.speed.limits import highest_share
from oomdoctor.analysis.speed_verdict import MOST_SPREAD, disturbed
from oomdoctor.commands.devices import device, emulated
from oomdoctor.commands.jobs.host import WorkerHost
from oomdoctor.commands.jobs.launch import Stopped, launch
from oomdoctor.errors import ExitCode, OomDoctorError, machine_error
from oomdoctor.package_data import data_of
from oomdoctor.records.job.costs import Calibration
from oomdoctor.records.job.device_times import DeviceTimes
from oomdoctor.records.job.machine import GpuFacts
from oomdoctor.records.job.result import OUTCOME_WORDS, ProbeJob
from oomdoctor.records.report.calibration import CalibrationAnswer
from oomdoctor.system.environment import worker_environment
from oomdoctor.system.machine.capabilities import installed_versions
from oomdoctor.system.machine.devices import Device, choose_device
from oomdoctor.system.machine.lock import device_lock
from oomdoctor.system.machine.nvml import driver_version, list_gpus
from oomdoctor.system.store.calibration import Learned, name_of, recall, remember
from oomdoctor.units import format_percent, timestamp

_BUDGET_S: float = data_of("calibration.toml")["budget_s"]
_DEADLINE_S = 300.0  # slow devices need more than the budget for the least number of rounds
_UNREAL = "nothing is kept of an emulated GPU: it runs no kernels, so its times mean nothing"
_AGAIN = "end the other processes, and run it again"


@dataclass(frozen=True, slots=True)
class CalibrationRequest:
    """What to measure: the `--device`, or the card of `--emulate`, with an interpreter."""

    device: str
    emulate: str | None
    python: str
    wait: bool


def calibrate(
    request: CalibrationRequest, *, say: Callable[[str], None], stop: Callable[[], ExitCode | None]
) -> CalibrationAnswer:
    """Measure a device in a separate process, and keep the times.

    Raises:
        OomDoctorError: the device cannot be used or is not known, others used it, or it is faster
            than it can be (exit 5); its times varied (exit 6); interrupted (exit 130, 143).
    """
    versions = installed_versions()
    with tempfile.TemporaryDirectory(prefix="oomdoctor-calibrate-") as name:
        folder = Path(name)
        with _device(request, folder, say) as (chosen, variables):
            facts = _known(chosen)
            say(f"measuring {name_of(chosen)} for about half a minute")
            times = _measured(request, chosen, variables, folder, stop)
    if chosen.gpu is not None and chosen.gpu.emulated:
        return answer_of(
            Learned(name_of(chosen), None, None, Calibration(), 0), times, None, _UNREAL
        )
    kept = Learned(
        name_of(chosen),
        driver_version() if chosen.gpu is not None else None,
        overhead_bytes=None,
        speed=Calibration(),  # those of configurations were relative to other estimates
        rungs=0,
        times=times,
        timed_at=timestamp(),
        torch=versions.get("torch"),
    )
    facts = facts or cpu_facts(kept.gpu_name, times)
    check(times, facts)
    before = recall(kept.gpu_name, kept.driver_version, versions)
    if before is not None and before.cap_bytes is None:
        kept = replace(kept, overhead_bytes=before.overhead_bytes, rungs=before.rungs)
    remember(kept, versions)
    return answer_of(kept, times, facts)


def answer_of(
    learned: Learned, times: DeviceTimes, facts: GpuFacts | None, reason: str | None = None
) -> CalibrationAnswer:
    """What is reported of times; the facts are None on an emulated GPU, and `reason` is given."""
    return CalibrationAnswer(
        device_name=learned.gpu_name,
        driver_version=learned.driver_version,
        torch=learned.torch,
        measured_at=learned.timed_at or timestamp(),
        elapsed_s=times.elapsed_s,
        kept=reason is None,
        reason=reason,
        clock=times.clock,
        rounds=times.rounds,
        launch_s=times.launch_s,
        host_operator_s=host_operator_s(times),
        terms=measured_terms(times, facts),
        steps=() if facts is None else checked_steps(times, facts),
    )


@contextmanager
def _device(
    request: CalibrationRequest, folder: Path, say: Callable[[str], None]
) -> Iterator[tuple[Device, dict[str, str]]]:
    """The locked device, and the variables for processes that shall see it."""
    if request.emulate is not None:
        emulated.check_possible(request.python, "--emulate")
        gpus = emulated.emulated_gpus(request.emulate)
        with emulated.emulating(
            gpus, request.python, folder, on_build=lambda: say(emulated.BUILDING)
        ) as variables:
            yield emulated.device_of(gpus), variables
        return
    chosen = choose_device(request.device, list_gpus())
    name = chosen.gpu.uuid if chosen.gpu is not None else "cpu"
    with device_lock(name, request.wait, say):
        yield device.as_it_is_now(chosen), {}


def _known(chosen: Device) -> GpuFacts | None:
    """The published facts of the card; None on the CPU."""
    if chosen.gpu is None:
        return None
    facts = device.known_card(chosen.gpu.name, chosen.gpu.total_bytes)
    if facts is None and not chosen.gpu.emulated:
        raise machine_error(
            "unknown_card",
            f"the published peaks of {chosen.gpu.name} are not known, so no time can be estimated",
            "`oomdoctor gpus` lists the cards; `oomdoctor probe MODEL` measures without them",
        )
    return facts


def _measured(
    request: CalibrationRequest,
    chosen: Device,
    variables: dict[str, str],
    folder: Path,
    stop: Callable[[], ExitCode | None],
) -> DeviceTimes:
    """What the worker measured.

    Raises:
        OomDoctorError: it failed (exit 5), or it was told to stop (exit 130 or 143).
    """
    model, config = calibration_models(chosen.type)[0]
    job = ProbeJob(
        mode="calibrate",
        label="calibrate",
        model=model,
        config=config,
        device_type=chosen.type,
        timing_limit_s=_BUDGET_S,
    )
    uuid = chosen.gpu.uuid if chosen.gpu is not None else None
    environment = worker_environment(uuid) | variables
    with WorkerHost(request.python, environment, folder) as host:
        try:
            attempt, reply = launch(
                host,
                job,
                folder,
                usable_bytes=None,
                deadline_s=_DEADLINE_S,
                stop=lambda: stop() is not None,
            )
        except Stopped:
            code = stop()
            assert code is not None  # the reason to stop
            raise OomDoctorError(
                "interrupted", "interrupted; nothing was kept", None, code
            ) from None
    if reply is not None and reply.times is not None:
        return reply.times
    tail = attempt.failure.log_tail if attempt.failure is not None else ""
    raise machine_error(
        "not_calibrated",
        f"the device could not be measured: {attempt.reason or OUTCOME_WORDS[attempt.outcome]}",
        tail.strip().splitlines()[-1] if tail.strip() else None,
    )


def check(times: DeviceTimes, facts: GpuFacts) -> None:
    """Check that times can be kept.

    Raises:
        OomDoctorError: others used the device, or it cannot be that fast (exit 5); the times varied
            (exit 6).
    """
    if times.clock != "cpu" and times.load is not None and disturbed(times.load):
        raise machine_error(
            "device_busy",
            "other processes used the device while it was measured; nothing was kept",
            _AGAIN,
        )
    share = max((highest_share(kernel, facts) for kernel in times.kernels), default=0.0)
    if share > 1:
        raise machine_error(
            "time_not_believable",
            f"an operator reached {format_percent(share)} of what {facts.name} can do; nothing was "
            "kept",
            "check the clocks, and that the device is what its name says",
        )
    spreads = [kernel.spread for kernel in times.kernels if kernel.spread is not None]
    varied = median(spreads) if spreads else 0.0
    if varied > MOST_SPREAD:
        raise OomDoctorError(
            "not_settled",
            f"the times varied by {format_percent(varied)}; nothing was kept",
            _AGAIN,
            ExitCode.INCONCLUSIVE,
        )
