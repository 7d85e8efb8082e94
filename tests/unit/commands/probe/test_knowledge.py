"""The first measured rungs correct the predictions of the others, here and in later surveys."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from analysis_make import timing
from calibration_make import times
from plan_make import measured

from oomdoctor.analysis.memory.overhead import context_bytes
from oomdoctor.analysis.search.from_prediction import RungPrediction
from oomdoctor.analysis.speed.limits import can_be_true
from oomdoctor.commands.devices.calibrations import speed_here
from oomdoctor.commands.probe.knowledge import Knowledge
from oomdoctor.records.configuration.config import Rung, TrainConfig
from oomdoctor.records.job.costs import Calibration, LearnedFactors
from oomdoctor.records.job.machine import EMULATED, Gpu
from oomdoctor.records.job.result import Attempt
from oomdoctor.system.catalogue import find_gpu
from oomdoctor.system.machine import nvml
from oomdoctor.system.machine.devices import Device
from oomdoctor.system.machine.nvml import driver_version
from oomdoctor.system.store.calibration import Learned, name_of, remember
from oomdoctor.units import GIB, MIB

CARD = Gpu(0, "GPU-1", "NVIDIA L4", 22 * GIB, 22 * GIB, "8.9", ())
FACTS = find_gpu(CARD.name, CARD.total_bytes)
VERSIONS = {"torch": "2.13.0"}
RUN, DATE = "run-1", "2026-01-02T03:04:05+00:00"
CONFIG = TrainConfig(effective_batch_size=4, sequence_length=512, micro_batch_size=2)
RUNG = Rung("full", replace(CONFIG, micro_batch_size="auto"))
MEASURED_S = 1.1  # two micro-steps of 0.5 s and an optimizer step of 0.1 s
RATE = 4 * 512 / MEASURED_S


@pytest.fixture(autouse=True)
def _own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))


def knows(gpu: Gpu | None = CARD, cap_bytes: int | None = None) -> Knowledge:
    device = Device("cuda" if gpu else "cpu", gpu)
    return Knowledge(device, VERSIONS, RUN, DATE, cap_bytes).recalled()


def attempt(overhead: int | None = 500 * MIB) -> Attempt:
    measurement = replace(measured(GIB), overhead_bytes=overhead, timing=timing())
    return Attempt(CONFIG, "fits", measurement, None, None, None, 1.0)


def estimates(factor: float, limit: str = "device") -> dict[str, RungPrediction]:
    """The rung was estimated to run `factor` times as fast as it did."""
    return {
        RUNG.config.key(): RungPrediction({2: GIB}, {2: RATE * factor}, {2: limit}),
        "device": RungPrediction({1: GIB}, {1: 1000.0}, {1: "device"}),
        "host": RungPrediction({1: GIB}, {1: 1000.0}, {1: "host"}),
    }


def test_the_measured_context_moves_every_peak_and_is_kept() -> None:
    assumed = context_bytes(FACTS).likely
    predictions = {
        RUNG.config.key(): RungPrediction({2: GIB}),
        "other": RungPrediction({1: 2 * GIB}),
    }
    corrected = knows().learn(RUNG, attempt(assumed + 100 * MIB), predictions, trusted=True)
    assert corrected["other"].peaks == {1: 2 * GIB + 100 * MIB}
    later = knows()
    assert later.learned is not None
    assert later.learned.overhead_bytes == assumed + 100 * MIB
    assert later.learned.calibrated_by() is None


def test_only_the_first_rung_teaches() -> None:
    knowledge = knows()
    once = knowledge.learn(RUNG, attempt(500 * MIB), estimates(1.2), trusted=True)
    assert knowledge.learn(RUNG, attempt(900 * MIB), once, trusted=True) is once


def test_the_cpu_teaches_nothing() -> None:
    knowledge = knows(None)
    predictions = estimates(1.2)
    assert knowledge.learn(RUNG, attempt(), predictions, trusted=True) is predictions
    assert knowledge.learned is None


def test_a_measured_cpu_has_speeds() -> None:
    assert knows(None).learned is None
    assert speed_here(None, None) == (None, None)
    assert FACTS is not None
    name = name_of(Device("cpu", None))
    remember(Learned(name, None, None, Calibration(), 0, times=times(FACTS, {})), VERSIONS)
    learned = knows(None).learned
    facts, speed = speed_here(learned, None)
    assert facts is not None and facts.vendor == "CPU" and facts.bf16_flops
    assert speed is not None and speed.kernels and speed.host == 0.0


def test_a_survey_corrects_what_was_measured_alone() -> None:
    """Its factor comes on top, and the measured operators stay."""
    assert FACTS is not None
    taken = times(FACTS, {"matmul": 1.5})
    remember(Learned(CARD.name, driver_version(), None, Calibration(), 0, times=taken), VERSIONS)
    knowledge = knows()
    knowledge.learn(RUNG, attempt(), estimates(1.25), trusted=True)
    later = knows().learned
    assert later is not None and later.times == taken
    assert later.speed == Calibration(1.25, 1.25, 1.0)
    _, speed = speed_here(later, FACTS)
    assert speed is not None and speed.compute == 1.25
    assert speed.kernels[0].factor == pytest.approx(1.5)


def test_a_slower_device_slows_what_the_device_limits() -> None:
    knowledge = knows()
    corrected = knowledge.learn(RUNG, attempt(), estimates(1.25), trusted=True)
    assert corrected["device"].rates[1] == pytest.approx(1000 / 1.25)
    assert corrected["host"].rates[1] == 1000
    assert knowledge.learned is not None
    by = knowledge.learned.calibrated_by()
    assert by is not None
    assert (by.run, by.date) == (RUN, DATE)
    assert by.factors == LearnedFactors(1.25, 1.25, 1.0)


def test_a_fast_host_says_nothing_about_the_device() -> None:
    """A small model that waits for the host once made an H100 five times as fast."""
    knowledge = knows()
    corrected = knowledge.learn(RUNG, attempt(), estimates(0.4, "host"), trusted=True)
    assert corrected["host"].rates[1] == pytest.approx(1000 / 0.4)
    assert corrected["device"].rates[1] == 1000
    assert knowledge.learned is not None
    assert knowledge.learned.speed == Calibration(launch=0.4)


def test_times_that_cannot_be_trusted_teach_only_the_context() -> None:
    knowledge = knows()
    corrected = knowledge.learn(RUNG, attempt(), estimates(1.25), trusted=False)
    assert corrected["device"].rates == {1: 1000.0}
    assert knowledge.learned is not None
    assert knowledge.learned.overhead_bytes == 500 * MIB
    assert knowledge.learned.speed == Calibration()
    # A later rung may still teach the speed.
    peaks = corrected["device"].peaks
    corrected = knowledge.learn(RUNG, attempt(900 * MIB), corrected, trusted=True)
    assert corrected["device"].rates[1] == pytest.approx(800)
    assert corrected["device"].peaks == peaks


@pytest.mark.parametrize("factor", [0.1, 10.0])
def test_an_estimate_that_is_far_off_is_not_the_machine(factor: float) -> None:
    knowledge = knows()
    corrected = knowledge.learn(RUNG, attempt(), estimates(factor), trusted=True)
    assert corrected["device"].rates == {1: 1000.0}
    assert knowledge.learned is not None
    assert knowledge.learned.speed == Calibration()


def test_no_estimate_goes_beyond_the_card() -> None:
    knowledge = knows()
    corrected = knowledge.learn(RUNG, attempt(), estimates(0.3), trusted=True)
    assert knowledge.learned is not None and FACTS is not None
    assert can_be_true(knowledge.learned.speed, FACTS)
    assert 1000 < corrected["device"].rates[1] < 1000 / 0.3


def test_an_emulated_gpu_teaches_its_survey_and_nothing_is_kept() -> None:
    emulated = replace(CARD, name=CARD.name + EMULATED, emulated=True)
    knowledge = knows(emulated)
    assert knowledge.facts() == knows().facts()
    knowledge.learn(RUNG, attempt(), estimates(1.25), trusted=True)
    assert knowledge.learned is not None
    assert knowledge.learned.speed == Calibration()
    assert knows(emulated).learned is None
    assert knows(CARD).learned is None


def test_a_cap_is_kept_apart() -> None:
    knows(cap_bytes=16 * GIB).learn(RUNG, attempt(), estimates(1.25), trusted=True)
    assert knows().learned is None
    found = knows(cap_bytes=16 * GIB).learned
    assert found is not None
    assert found.cap_bytes == 16 * GIB


def test_a_stored_speed_that_cannot_be_true_is_ignored_with_a_note() -> None:
    bad = Learned(CARD.name, nvml.driver_version(), MIB, Calibration(0.2, 0.2, 0.2), 1)
    remember(bad, VERSIONS)
    knowledge = knows()
    assert knowledge.learned is None
    (warning,) = knowledge.warnings
    assert warning.code == "calibration_ignored"
    assert "NVIDIA L4" in warning.message
    # The next measurement takes its place.
    knowledge.learn(RUNG, attempt(), estimates(1.25), trusted=True)
    later: Any = knows()
    assert (later.learned.speed.compute, later.warnings) == (1.25, ())
