"""What was learned comes back for the same machine and for no other."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from oomdoctor.records.costs import Calibration
from oomdoctor.system.store.calibration import Learned, recall, remember

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


def test_a_damaged_file_counts_as_none(tmp_path: Path) -> None:
    remember(LEARNED, VERSIONS)
    (file,) = tmp_path.rglob("calibration/*.json")
    file.write_text("{")
    assert recall("NVIDIA L4", "550.54", VERSIONS) is None


def test_the_name_of_the_file_is_safe(tmp_path: Path) -> None:
    remember(replace(LEARNED, gpu_name="../../evil\nGPU"), VERSIONS)
    (file,) = tmp_path.rglob("calibration/*.json")
    assert file.name.startswith("evil-gpu-")
