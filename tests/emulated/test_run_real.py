"""`run` without --emulate: for what it starts, an emulated GPU is an ordinary one."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from emulated_run import Watched, loop

from oomdoctor.commands.devices.emulated import devices_of, emulated_gpus
from oomdoctor.emulator.enter import entered
from oomdoctor.system.store.cases import open_case
from oomdoctor.units import MIB

RUN = [sys.executable, "-m", "oomdoctor", "run", "--report", "report.json", "--"]
TOKEN = "planted-token-0123456789"
LOGS_IN = 'import os; print("logged in as", os.environ["HF_TOKEN"])\n'
# The fourth step needs more than there is.
GROWS = LOGS_IN + loop().replace("randn(8, 1024", "randn(8 if step < 3 else 40_000, 1024")


@pytest.fixture
def environment(
    watched: Watched, tmp_path: Path, emulator_cache: Path, cuda_python: Path
) -> Iterator[dict[str, str]]:
    """The variables of a machine with a GPU of 1 GiB."""
    session, cache = tmp_path / "session", emulator_cache / "oomdoctor" / "emulator"
    session.mkdir()
    cache.mkdir(parents=True, exist_ok=True)
    devices, path = devices_of(emulated_gpus("1GiB")), watched.environment["PATH"]
    with entered(cuda_python, devices, session, cache, path=path) as found:
        state = {"XDG_STATE_HOME": str(tmp_path / "state"), "HF_TOKEN": TOKEN}
        yield {**watched.environment, **found.variables, **state}


def _run(folder: Path, environment: dict[str, str], script: str, *words: str) -> tuple[Any, Any]:
    (folder / "train.py").write_text(script)
    command = [*RUN, "python", "train.py", *words]
    ended = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
    assert (folder / "report.json").exists(), ended.stderr
    return ended, json.loads((folder / "report.json").read_text())


def test_a_training_that_runs_out_leaves_a_case_and_one_that_does_not_leaves_nothing(
    tmp_path: Path, environment: dict[str, str]
) -> None:
    ended, document = _run(tmp_path, environment, GROWS, f"--hf_token={TOKEN}")
    assert (ended.returncode, document["status"]) == (1, "no")
    assert [line for line in ended.stdout.splitlines() if line.startswith("step")] == [
        "step 0",
        "step 1",
        "step 2",
    ]
    schema = Path(__file__).parents[2] / "oomdoctor" / "data" / "report.schema.json"
    jsonschema.validate(document, json.loads(schema.read_text()))
    (rank,), (device,) = document["ranks"], document["devices"]
    assert (rank["outcome"], rank["steps"], rank["stopped"]) == ("oom", 3, None)
    assert (rank["oom"]["phase"], rank["oom"]["where"]["file"]) == ("forward", "train.py")
    # torch rounds a large request up to 2 MiB before it asks the driver.
    rounded = rank["oom"]["requested_bytes"] - device["oom"]["requested_bytes"]
    assert 0 <= rounded < 2 * MIB
    held = device["at_end"]["categories"]
    assert held["weights_bytes"] and held["optimizer_bytes"] and held["activations_bytes"]
    assert document["diagnoses"][0]["remedies"]

    case = Path(document["run_dir"])
    assert (case / rank["oom"]["snapshot"]).exists()
    for path in [*case.iterdir(), tmp_path / "report.json"]:
        assert TOKEN.encode() not in path.read_bytes(), path
    assert "logged in as (hidden)" in (case / "output.log").read_text()
    # The header, three steps, the failed request and the end.
    assert len((case / "memory-rank0.jsonl").read_text().splitlines()) == 1 + 3 + 2
    assert open_case(str(case))[0].ranks[0].oom is not None

    ended, document = _run(tmp_path, environment, loop(), "--batch_size", "8")
    assert (ended.returncode, document["ranks"][0]["steps"]) == (0, 9)
    larger = document["larger_batch"]
    assert larger["should_fit"] > larger["micro_batch_size"] == 8
    assert "Fits on a GPU" not in ended.stdout and "the end" in ended.stdout
    state = tmp_path / "state" / "oomdoctor"
    assert list((state / "cases").iterdir()) == [case]
    assert list((state / "live").iterdir()) == []
