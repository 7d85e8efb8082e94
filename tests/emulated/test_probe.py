"""`probe --emulate` and `plan --verify` from the command line, with a tiny model."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from lent_simulators import SimulatorsByPython
from tiny_models import tiny_folder
from weekly_rows import weekly

from oomdoctor.cli.main import run
from oomdoctor.commands.devices.emulated import UUID, devices_of, emulated_gpus
from oomdoctor.commands.probe import calibrate
from oomdoctor.emulator.enter import entered
from oomdoctor.system.environment import state_dir

Ask = Callable[..., dict[str, Any]]
ROOT = Path(__file__).parents[2]
_RUNGS = ("--recipe", "none", "--rung", "method=full", "--rung", "method=lora")
_SIZES = ("--seq-len", "64", "--effective-batch", "4")

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


@pytest.fixture
def report(
    cuda_python: Path,
    emulator_cache: Path,
    one_simulator: SimulatorsByPython,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> Ask:
    """The report of a command line that ends well. All share a simulator, and the stand-ins."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(emulator_cache))
    one_simulator.trusted.add(str(cuda_python))

    def reported(*words: str) -> dict[str, Any]:
        code = run([*words, "--json", "--quiet"])
        out, error = capsys.readouterr()
        assert code == 0, error
        document: dict[str, Any] = json.loads(out)
        return document

    return reported


def test_a_ladder_runs_on_the_emulated_card(report: Ask, cuda_python: Path, tmp_path: Path) -> None:
    model = str(tiny_folder(tmp_path / "model"))
    python = ("--python", str(cuda_python))
    words = ("--emulate", "L4", "--no-predict", "--micro-batch", "4", *_RUNGS, *_SIZES)
    found = report("probe", model, *words, *python)
    machine = found["machine"]
    assert machine["emulated"]
    assert machine["gpu_name"] == "NVIDIA L4 (emulated)"
    assert (machine["gpu_uuid"], machine["driver_version"]) == (UUID, None)
    assert found["warnings"] == []
    for result in found["results"]:
        assert (result["outcome"], result["evidence"]) == ("fits", "emulated")
        assert (result["tokens_per_s"], result["measurement"]["timing"]) == (None, None)
        assert result["micro_batch_size"] == 4
        curve = result["measurement"]["curve"]
        assert max(curve["allocated_bytes"]) == result["peak_allocated_bytes"]
        assert curve["phases"][0] == {"step": "steady", "phase": "forward", "moment": 0}
        assert result["peak_device_bytes"] > result["peak_reserved_bytes"] > 0
    assert found["ranking_reasons"][found["ranking"][0]].startswith("the lowest peak of 2")
    assert "--emulate" not in found["next_on_gpu"][0]
    assert not (state_dir() / "calibration").exists()
    assert not list(Path(found["run_dir"]).glob("emulated"))


def test_a_plan_for_several_gpus_runs_their_engines(
    report: Ask, cuda_python: Path, tmp_path: Path
) -> None:
    model = str(tiny_folder(tmp_path / "model"))
    rungs = ("--recipe", "none", "--rung", "sharding=fsdp", "--rung", "sharding=ddp")
    sizes = ("--seq-len", "64", "--effective-batch", "8")
    found = report(
        *("plan", model, "--gpu", "L4", "--gpus", "4", *rungs, *sizes),
        *("--python", str(cuda_python)),
    )
    assert (found["machine"]["gpus"], found["request"]["gpus"]) == (4, 4)
    for result in found["results"]:
        assert (result["outcome"], result["evidence"]) == ("fits", "emulated")
        assert (result["config"]["world_size"], result["micro_batch_size"]) == (4, 2)
        assert [one["rank"] for one in result["ranks"]] == [0]
    fewest = report(
        *("plan", model, "--gpu", "L4", "--gpus", "2..4", "--min", *rungs, *sizes),
        *("--python", str(cuda_python)),
    )["fewest"]
    assert [(line["gpus"], line["evidence"]) for line in fewest["lines"]] == [(2, "emulated")] * 2


def test_torchs_own_history_of_a_rung_is_recorded(
    report: Ask, cuda_python: Path, tmp_path: Path
) -> None:
    model = str(tiny_folder(tmp_path / "model"))
    words = ("--emulate", "L4", "--no-predict", "--micro-batch", "4", *_RUNGS, *_SIZES)
    rung = "full-bf16"
    found = report("probe", model, *words, "--python", str(cuda_python), "--snapshot", rung)
    (result,), (file,) = found["results"], found["files"]
    assert (result["label"], file["kind"]) == (rung, "snapshot")
    seen = report("snapshot", file["path"])
    (device,) = seen["devices"]
    assert device["steps"] == 3 and device["has_stacks"] and not device["truncated"]
    assert device["peak_allocated_bytes"] == result["peak_allocated_bytes"]


def test_a_plan_is_checked_on_the_emulated_card(
    report: Ask, cuda_python: Path, tmp_path: Path
) -> None:
    model = str(tiny_folder(tmp_path / "model"))
    python = ("--python", str(cuda_python))
    plan = ("plan", model, "--gpu", "RTX 4090", *python, *_RUNGS, *_SIZES)
    # Torch here has no CUDA libraries; it is simulated all the same.
    predicted = report(*plan)
    assert {result["evidence"] for result in predicted["results"]} == {"predicted"}
    found = report(*plan, "--verify")
    for result in found["results"]:
        assert (result["outcome"], result["evidence"]) == ("fits", "emulated")
        assert result["speed_state"] == "estimated"
        assert result["tokens_per_s"] > 0
        assert result["peak_allocated_bytes"] == pytest.approx(
            result["predicted"]["peak_allocated_bytes"], rel=0.01
        )


def test_an_optimizer_that_factors_gradients_runs(
    report: Ask, cuda_python: Path, tmp_path: Path
) -> None:
    """GaLore was refused for want of cuSOLVER, which `run --emulate` has."""
    model = str(tiny_folder(tmp_path / "model"))
    rung = ("--recipe", "none", "--rung", "method=full,optimizer=galore_adamw")
    words = ("--emulate", "L4", "--no-predict", "--micro-batch", "4", *rung, *_SIZES)
    found = report("probe", model, *words, "--python", str(cuda_python))
    (result,) = found["results"]
    assert (result["outcome"], result["evidence"]) == ("fits", "emulated")
    assert [one["code"] for one in found["warnings"]] == ["inexact"]


def test_a_probe_inside_an_emulation_is_emulated(
    cuda_python: Path, emulator_cache: Path, tmp_path: Path
) -> None:
    model = str(tiny_folder(tmp_path / "model"))
    session = tmp_path / "session"
    session.mkdir()
    devices = devices_of(emulated_gpus("L4"))
    words = [cuda_python, "-m", "oomdoctor", "probe", model, "--json", "--quiet", "--no-predict"]
    with entered(
        cuda_python, devices, session, emulator_cache / "oomdoctor" / "emulator"
    ) as inside:
        ended = subprocess.run(
            [*words, *_RUNGS[:4], *_SIZES],
            capture_output=True,
            text=True,
            env=os.environ | {"PYTHONPATH": str(ROOT)} | inside.variables,
            check=False,
        )
    assert ended.returncode == 0, ended.stderr
    found = json.loads(ended.stdout)
    assert found["machine"]["emulated"]
    assert {result["evidence"] for result in found["results"]} == {"emulated"}
    assert [warning["code"] for warning in found["warnings"]] == ["emulated_device"]
    assert not (state_dir() / "calibration").exists()


@pytest.mark.parametrize(
    ("kind", "off_by"), [("whisper", 0), weekly("named-sounds", 0), ("ctc", 1024)]
)
def test_a_step_on_recordings_needs_what_was_predicted(
    report: Ask, kind: str, off_by: int, cuda_python: Path, tmp_path: Path
) -> None:
    """CTC keeps a few numbers more on a GPU than its simulation, in two blocks."""
    model = str(tiny_folder(tmp_path / "model", kind))
    amp = "weights_dtype=float32,autocast_dtype=bfloat16"
    rungs = ("--recipe", "none", "--rung", f"method=full,{amp}", "--rung", f"method=lora,{amp}")
    found = report(
        *("probe", model, "--emulate", "A100 SXM4 80GB", "--micro-batch", "2", *rungs),
        *("--seq-len", "32", "--effective-batch", "4", "--python", str(cuda_python)),
    )
    assert len(found["results"]) == 2
    for result in found["results"]:
        assert result["evidence"] == "emulated"
        more = result["peak_allocated_bytes"] - result["predicted"]["peak_allocated_bytes"]
        assert more == off_by, result["label"]
        if not off_by:
            assert result["peak_reserved_bytes"] == result["predicted"]["peak_reserved_bytes"]


@pytest.mark.parametrize("card", ["L4", "RTX 3070"])  # what fits 8 GB is measured on it
def test_nothing_is_kept_of_an_emulated_gpu_that_is_calibrated(
    card: str,
    cuda_python: Path,
    emulator_cache: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its operators and steps run, but their times mean nothing."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(emulator_cache))
    monkeypatch.setattr(calibrate, "_BUDGET_S", 1.0)
    words = ["--calibrate", "--emulate", card, "--python", str(cuda_python)]
    code = run(["probe", *words, "--json", "--quiet"])
    out, error = capsys.readouterr()
    assert code == 3, error
    document = json.loads(out)
    measured = document["calibration"]
    assert (document["status"], measured["kept"], measured["clock"]) == ("no", False, "device")
    assert measured["reason"].startswith("nothing is kept of an emulated GPU")
    assert {"products", "attention", "convolutions", "pointwise", "strided", "copies"} == {
        term["term"] for term in measured["terms"]
    }
    assert {term["factor"] for term in measured["terms"]} == {None}
    types = {term["dtype"] for term in measured["terms"] if term["term"] == "products"}
    assert types == {"bfloat16", "float16", "float32", "tensorfloat32"}
    assert not (state_dir() / "calibration").exists()
