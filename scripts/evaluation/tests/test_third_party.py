"""Scripts of others on the emulated GPU: what was reached, and is told."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from third import inputs, sources
from third.rows import ROWS, Row
from third_party import table

ROOT = Path(__file__).parents[3]
READINGS = json.loads((ROOT / "tests" / "data" / "emulated" / "third_party.json").read_text())
KNOWN = {r["name"]: r for r in READINGS}
# They compare trained weights, which no kernel computed.
NEED_VALUES = {"accelerate-test"}


# Their data ends before three steps.
SHORT = {"lightning", "torchtune-lora-distributed"}


def test_readings_are_of_rows() -> None:
    order = [row.name for row in ROWS]
    assert [r["name"] for r in READINGS] == [name for name in order if name in KNOWN]


def test_all_ended_but_those_that_need_values() -> None:
    assert {r["name"] for r in READINGS if r["result"] != "ended"} == NEED_VALUES


def test_training_was_stopped_after_the_steps_that_were_asked_for() -> None:
    for r in READINGS:
        if r["steps_asked"] != "all" and r["name"] not in SHORT:
            assert {rank["steps"] for rank in r["ranks"]} == {int(r["steps_asked"])}, r["name"]


def test_the_documentation_shows_them() -> None:
    assert table(READINGS) in (ROOT / "docs" / "emulation.md").read_text()


def test_inputs_are_the_same_at_each_run(tmp_path: Path) -> None:
    for name in ("a", "b"):
        inputs.make(tmp_path / name)
    files = [file for file in (tmp_path / "a").rglob("*") if file.is_file()]
    assert len(files) > 15
    for file in files:
        if file.suffix != ".safetensors":  # 2 GB of nothing
            other = tmp_path / "b" / file.relative_to(tmp_path / "a")
            assert file.read_bytes() == other.read_bytes()


def _git(folder: Path, *words: str) -> str:
    own = ["-c", "user.name=a", "-c", "user.email=a@example.com"]
    command = ["git", *own, "-C", str(folder), *words]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


def test_a_repository_is_checked_out_from_a_clone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clone = tmp_path / "clone"
    clone.mkdir()
    _git(clone, "init", "--quiet")
    (clone / "train.py").write_text("first")
    _git(clone, "add", ".")
    _git(clone, "commit", "--quiet", "--message", "first")
    commit = _git(clone, "rev-parse", "HEAD")
    (clone / "train.py").write_text("second")
    _git(clone, "commit", "--quiet", "--all", "--message", "second")
    row = Row("a", "", "train.py", "", "some/one", commit)
    monkeypatch.setattr(sources, "ROWS", (row,))
    sources.fetch(tmp_path / "sources", {"some/one": clone})
    found = sources.script_of(row, Path(sys.executable), tmp_path / "sources")
    assert found is not None and found.read_text() == "first"


def test_a_repository_that_cannot_be_had_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sources, "ROWS", (Row("a", "", "a.py", "", "some/one", "0" * 40),))
    with pytest.raises(SystemExit, match="--checkout some/one=FOLDER"):
        sources.fetch(tmp_path / "sources", {"some/one": tmp_path / "nothing"})
    with pytest.raises(SystemExit, match="no row is from other/one"):
        sources.fetch(tmp_path / "sources", {"other/one": tmp_path})


@pytest.mark.slow
def test_peaks_are_those_that_were_reached(tmp_path: Path) -> None:
    python = os.environ.get("OOMDOCTOR_THIRD_PYTHON")
    if not python:
        pytest.skip("OOMDOCTOR_THIRD_PYTHON names the interpreter that third_party.py --make made")
    file = tmp_path / "found.json"
    script = ROOT / "scripts" / "evaluation" / "third_party.py"
    words = [sys.executable, script, "--python", python, "--write", file, "--only", "trl-kto"]
    subprocess.run(words, check=True, timeout=1200)
    for found in json.loads(file.read_text()):
        assert found["ranks"] == KNOWN[found["name"]]["ranks"]
