"""What was learned comes back for the same machine and for no other."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from oomdoctor.records.job.costs import CalibratedBy, Calibration, LearnedFactors
from oomdoctor.records.job.machine import Gpu
from oomdoctor.system.catalogue import find_gpu
from oomdoctor.system.store.calibration import Learned, device_name, newest, recall, remember

LEARNED = Learned("NVIDIA L4", "550.54", 300_000_000, Calibration(compute=1.2), rungs=1)
VERSIONS = {"torch": "2.13.0", "cuda": "13.0", "transformers": "5.23.0"}


@pytest.fixture(autouse=True)
def _own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))


def test_it_comes_back_for_the_same_gpu_driver_and_libraries() -> None:
    assert recall("NVIDIA L4", "550.54", VERSIONS) is None
    remember(LEARNED, VERSIONS)
    assert recall("NVIDIA L4", "550.54", VERSIONS) == LEARNED


@pytest.mark.parametrize(
    ("gpu", "driver", "versions"),
    [
        ("NVIDIA L40", "550.54", VERSIONS),
        ("NVIDIA L4", "560.00", VERSIONS),
        ("NVIDIA L4", None, VERSIONS),
        ("NVIDIA L4", "550.54", {**VERSIONS, "torch": "2.11.0"}),
    ],
)
def test_another_machine_knows_nothing_of_it(gpu: str, driver: str | None, versions: dict) -> None:
    remember(LEARNED, VERSIONS)
    assert recall(gpu, driver, versions) is None


def test_the_last_word_counts() -> None:
    remember(LEARNED, VERSIONS)
    remember(replace(LEARNED, rungs=2), VERSIONS)
    found = recall("NVIDIA L4", "550.54", VERSIONS)
    assert found is not None
    assert found.rungs == 2


def test_what_was_learned_under_a_cap_goes_first_for_the_same_cap_only() -> None:
    capped = replace(LEARNED, cap_bytes=24, rungs=7)
    remember(capped, VERSIONS)
    assert recall("NVIDIA L4", "550.54", VERSIONS) is None
    assert recall("NVIDIA L4", "550.54", VERSIONS, 16) is None
    assert newest(lambda learned: learned.gpu_name == "NVIDIA L4") == capped
    remember(LEARNED, VERSIONS)
    assert recall("NVIDIA L4", "550.54", VERSIONS, 24) == capped
    assert recall("NVIDIA L4", "550.54", VERSIONS, 16) == LEARNED
    assert recall("NVIDIA L4", "550.54", VERSIONS) == LEARNED
    remember(capped, VERSIONS)  # later, but not for a plan of the whole card
    assert newest(lambda learned: learned.gpu_name == "NVIDIA L4") == LEARNED


def test_slices_stand_apart() -> None:
    card = Gpu(0, "GPU-1", "NVIDIA A100-SXM4-40GB", 40 << 30, None, "8.0", ())
    assert device_name(card) == card.name
    assert find_gpu(device_name(card)) is not None
    named = replace(card, uuid="MIG-1", name="NVIDIA A100-SXM4-40GB MIG 1g.5gb")
    unnamed = replace(card, uuid="MIG-1", total_bytes=5 << 30)
    names = [device_name(gpu) for gpu in (named, unnamed)]
    assert names == ["NVIDIA A100-SXM4-40GB MIG 1g.5gb", "NVIDIA A100-SXM4-40GB MIG 5.00 GiB"]
    for name in names:  # so a plan for the card never takes them
        assert find_gpu(name) is None


def test_the_run_is_told_only_if_it_changed_a_speed() -> None:
    taught = replace(LEARNED, run="r1", date="2026-01-02T03:04:05+00:00")
    assert taught.calibrated_by() == CalibratedBy(
        "r1", "2026-01-02T03:04:05+00:00", "NVIDIA L4", None, LearnedFactors(compute=1.2)
    )
    assert replace(taught, speed=Calibration()).calibrated_by() is None


def test_a_file_of_an_older_version_is_read(tmp_path: Path) -> None:
    remember(LEARNED, VERSIONS)
    (file,) = tmp_path.rglob("calibration/*.json")
    old = json.loads(file.read_text())
    for name in ("run", "date", "cap_bytes"):
        del old[name]
    file.write_text(json.dumps(old))
    assert recall("NVIDIA L4", "550.54", VERSIONS) == LEARNED


def test_a_damaged_file_counts_as_none(tmp_path: Path) -> None:
    remember(LEARNED, VERSIONS)
    (file,) = tmp_path.rglob("calibration/*.json")
    file.write_text("{")
    assert recall("NVIDIA L4", "550.54", VERSIONS) is None


def test_the_name_of_the_file_is_safe(tmp_path: Path) -> None:
    remember(replace(LEARNED, gpu_name="../../evil\nGPU"), VERSIONS)
    (file,) = tmp_path.rglob("calibration/*.json")
    assert file.name.startswith("evil-gpu-")
