"""What `probe --calibrate` keeps, and what it refuses to keep."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from calibration_make import PRODUCT, times

from oomdoctor.commands.devices.cards import card_named
from oomdoctor.commands.probe import calibrate as module
from oomdoctor.commands.probe.calibrate import CalibrationRequest, calibrate
from oomdoctor.errors import ExitCode, OomDoctorError
from oomdoctor.records.job.costs import Calibration, LearnedFactors
from oomdoctor.records.job.device_times import DeviceTimes, MeasuredKernel
from oomdoctor.records.job.machine import EMULATED, Gpu
from oomdoctor.records.job.measurement import Load
from oomdoctor.records.report.calibration import CalibrationAnswer
from oomdoctor.system.catalogue import find_gpu
from oomdoctor.system.machine.devices import Device
from oomdoctor.system.store.calibration import Learned, everything, recall, remember
from oomdoctor.units import GIB, MIB

CARD = Gpu(0, "GPU-1", "NVIDIA A100-SXM4-80GB", 80 * GIB, 80 * GIB, "8.0", ())
FACTS = find_gpu(CARD.name)
assert FACTS is not None
VERSIONS = {"torch": "2.13.0"}
TIMES = times(FACTS, {"matmul": 1.5})
BUSY = Load(cpus=8, threads=1, own_cpus=0.9, foreign_cpus=0.0, foreign_gpu=0.3)


@pytest.fixture(autouse=True)
def _machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    monkeypatch.setattr(module, "list_gpus", lambda: (CARD,))
    monkeypatch.setattr(module, "installed_versions", lambda: VERSIONS)
    monkeypatch.setattr(module, "driver_version", lambda: "550.54")
    monkeypatch.setattr(module.device, "as_it_is_now", lambda device: device)


def calibrated(
    monkeypatch: pytest.MonkeyPatch, taken: DeviceTimes = TIMES, device: str = "cuda"
) -> CalibrationAnswer:
    """The answer on a machine on which the worker measured these times."""
    monkeypatch.setattr(module, "_measured", lambda *_: taken)
    request = CalibrationRequest(device, None, "python", wait=False)
    return calibrate(request, say=lambda _: None, stop=lambda: None)


def test_later_plans_use_what_was_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    answer = calibrated(monkeypatch)
    assert answer.kept and answer.reason is None
    assert (answer.device_name, answer.driver_version) == (CARD.name, "550.54")
    card = card_named("A100 SXM4 80GB", 0.0)
    assert card.speed is not None and card.calibrated_by is not None
    assert [each.factor for each in card.speed.kernels] == pytest.approx([1.5, 1.0, 1.0])
    assert card.speed.error == pytest.approx(0.0, abs=1e-9)
    by = card.calibrated_by
    assert (by.timed_at, by.relative, by.gpu_name) == (answer.measured_at, False, CARD.name)
    assert by.factors == LearnedFactors()


def test_relatives_use_it_too_but_not_its_error(monkeypatch: pytest.MonkeyPatch) -> None:
    calibrated(monkeypatch)
    card = card_named("A100 SXM4 40GB", 0.0)
    assert card.speed is not None and card.calibrated_by is not None
    assert card.speed.kernels and card.speed.error is None
    assert card.calibrated_by.relative and card.calibrated_by.gpu_name == CARD.name
    other = card_named("H100 SXM", 0.0)
    assert (other.speed, other.calibrated_by) == (None, None)


def test_a_card_with_measured_configurations_is_no_relative(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    calibrated(monkeypatch)
    taught = Calibration(1.2, 1.2, 1.0)
    remember(Learned("NVIDIA A100-SXM4-40GB", "550.54", None, taught, 1), VERSIONS)
    assert card_named("A100 SXM4 40GB", 0.0).speed == taught


def test_it_replaces_factors_but_not_the_context(monkeypatch: pytest.MonkeyPatch) -> None:
    before = Learned(CARD.name, "550.54", 400 * MIB, Calibration(1.3, 1.3, 1.0), 2)
    remember(before, VERSIONS)
    calibrated(monkeypatch)
    after = recall(CARD.name, "550.54", VERSIONS)
    assert after is not None
    assert after.speed == Calibration()
    assert (after.overhead_bytes, after.times) == (400 * MIB, TIMES)
    assert card_named("A100 SXM4 80GB", 0.0).context.likely == 400 * MIB


def test_the_cpu_has_a_file_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    answer = calibrated(monkeypatch, replace(TIMES, clock="wall"), "cpu")
    assert answer.kept and answer.driver_version is None
    assert "cores" in answer.device_name
    assert [step.uncalibrated_s for step in answer.steps] == [None]


@pytest.mark.parametrize(
    ("taken", "code", "exit_code"),
    [
        (replace(TIMES, load=BUSY), "device_busy", ExitCode.MACHINE_UNFIT),
        (times(FACTS, {}, spread=0.3), "not_settled", ExitCode.INCONCLUSIVE),
        (
            replace(TIMES, kernels=(MeasuredKernel(PRODUCT, 1e-5, 0.0),)),
            "time_not_believable",
            ExitCode.MACHINE_UNFIT,
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_is_not_believable_is_not_kept(
    monkeypatch: pytest.MonkeyPatch, taken: DeviceTimes, code: str, exit_code: ExitCode
) -> None:
    with pytest.raises(OomDoctorError) as caught:
        calibrated(monkeypatch, taken)
    assert (caught.value.code, caught.value.exit_code) == (code, exit_code)
    assert "nothing was kept" in caught.value.message
    assert list(everything()) == []


def test_cpu_time_of_one_thread_needs_no_idle_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    busy = replace(BUSY, foreign_gpu=None, cpus=2, foreign_cpus=1.9)
    assert calibrated(monkeypatch, replace(TIMES, clock="cpu", load=busy), "cpu").kept
    with pytest.raises(OomDoctorError, match="other processes"):
        calibrated(monkeypatch, replace(TIMES, clock="wall", load=busy), "cpu")


def test_an_unknown_card_is_refused_before_anything_is_measured(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "list_gpus", lambda: (replace(CARD, name="NVIDIA Nonesuch 9"),))
    with pytest.raises(OomDoctorError) as caught:
        calibrated(monkeypatch)
    assert caught.value.code == "unknown_card"


def test_nothing_is_kept_of_an_emulated_gpu(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    emulated = Device("cuda", replace(CARD, name=CARD.name + EMULATED, emulated=True))
    monkeypatch.setattr(module, "choose_device", lambda *_: emulated)
    answer = calibrated(monkeypatch)
    assert not answer.kept and "emulated" in (answer.reason or "")
    assert answer.steps == () and {term.factor for term in answer.terms} == {None}
    assert list(everything()) == []


def test_an_interrupted_one_keeps_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def stopped(*_: object, **__: object) -> None:
        raise module.Stopped

    monkeypatch.setattr(module, "launch", stopped)
    request = CalibrationRequest("cpu", None, "python", wait=False)
    with pytest.raises(OomDoctorError) as caught:
        calibrate(request, say=lambda _: None, stop=lambda: ExitCode.INTERRUPTED)
    assert caught.value.exit_code == ExitCode.INTERRUPTED
    assert list(everything()) == []
