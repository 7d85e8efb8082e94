"""The first measured rung corrects the predictions of the others, here and in later surveys."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from plan_make import measured

from oomdoctor.analysis.memory.overhead import context_bytes
from oomdoctor.analysis.search.from_prediction import RungPrediction
from oomdoctor.records.config import Rung, TrainConfig
from oomdoctor.records.machine import Gpu
from oomdoctor.records.result import Attempt
from oomdoctor.runs.survey.knowledge import Knowledge
from oomdoctor.system.catalogue import find_gpu
from oomdoctor.system.machine.devices import Device
from oomdoctor.units import GIB, MIB

CARD = Gpu(0, "GPU-1", "NVIDIA L4", 22 * GIB, 22 * GIB, "8.9", ())
VERSIONS = {"torch": "2.13.0"}
CONFIG = TrainConfig(effective_batch_size=4, sequence_length=512, micro_batch_size=2)
RUNG = Rung("full", replace(CONFIG, micro_batch_size="auto"))


@pytest.fixture(autouse=True)
def _own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))


def attempt(overhead: int) -> Attempt:
    measurement = replace(measured(GIB), overhead_bytes=overhead)
    return Attempt(CONFIG, "fits", measurement, None, None, None, 1.0)


def test_the_measured_context_moves_every_peak_and_is_kept() -> None:
    assumed = context_bytes(find_gpu(CARD.name, CARD.total_bytes)).likely
    predictions = {
        RUNG.config.key(): RungPrediction({2: GIB}),
        "other": RungPrediction({1: 2 * GIB}),
    }
    knowledge = Knowledge.of(Device("cuda", CARD), VERSIONS)
    corrected = knowledge.learn(RUNG, attempt(assumed + 100 * MIB), predictions)
    assert corrected["other"].peaks == {1: 2 * GIB + 100 * MIB}
    later = Knowledge.of(Device("cuda", CARD), VERSIONS)
    assert later.learned is not None
    assert later.learned.overhead_bytes == assumed + 100 * MIB


def test_only_the_first_rung_teaches() -> None:
    knowledge = Knowledge.of(Device("cuda", CARD), VERSIONS)
    predictions = {"other": RungPrediction({1: GIB})}
    once = knowledge.learn(RUNG, attempt(500 * MIB), predictions)
    assert knowledge.learn(RUNG, attempt(900 * MIB), once) is once


def test_the_cpu_teaches_nothing() -> None:
    knowledge = Knowledge.of(Device("cpu", None), VERSIONS)
    predictions = {"other": RungPrediction({1: GIB})}
    assert knowledge.learn(RUNG, attempt(500 * MIB), predictions) is predictions
    assert knowledge.learned is None
