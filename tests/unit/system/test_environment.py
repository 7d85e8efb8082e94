from __future__ import annotations

import os
from pathlib import Path

import pytest

from oomdoctor.records.job.machine import Setting
from oomdoctor.redaction import HIDDEN
from oomdoctor.system import environment
from oomdoctor.system.environment import settings, slurm, state_dir, worker_environment
from oomdoctor.units import MIB


def row(name: str) -> Setting:
    return next(setting for setting in settings() if setting.name == name)


def test_state_dir_follows_xdg_and_ignores_a_relative_one(
    isolated: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert state_dir() == isolated / "state" / "oomdoctor"
    for value in ("some/where", ""):
        monkeypatch.setenv("XDG_STATE_HOME", value)
        assert state_dir() == isolated / ".local" / "state" / "oomdoctor"


def test_settings_say_where_a_value_came_from(
    isolated: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    assert row("CUDA_VISIBLE_DEVICES") == Setting("CUDA_VISIBLE_DEVICES", "1", "environment")
    assert row("CUDA_DEVICE_ORDER") == Setting("CUDA_DEVICE_ORDER", None, "default")
    assert row("HF_ENDPOINT") == Setting("HF_ENDPOINT", "https://huggingface.co", "default")
    assert row("HF_HUB_CACHE").value == str(isolated / "huggingface" / "hub")
    monkeypatch.delenv("HF_HUB_OFFLINE")
    assert row("HF_HUB_OFFLINE").value == "0"
    monkeypatch.setenv("TRANSFORMERS_OFFLINE", "1")
    assert row("HF_HUB_OFFLINE") == Setting(
        "HF_HUB_OFFLINE", "1", "environment (TRANSFORMERS_OFFLINE)"
    )


def test_no_secret_is_ever_shown(isolated: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert row("HF_TOKEN").value is None
    token = isolated / "huggingface" / "token"
    token.parent.mkdir(exist_ok=True)
    token.write_text("hf_from_file")
    assert row("HF_TOKEN") == Setting("HF_TOKEN", HIDDEN, str(token))
    monkeypatch.setenv("HUGGING_FACE_HUB_TOKEN", "hf_old")
    assert row("HF_TOKEN").origin == "environment (HUGGING_FACE_HUB_TOKEN)"
    monkeypatch.setenv("HF_TOKEN", "hf_very_secret")
    monkeypatch.setenv("HF_ENDPOINT", "https://me:pass@mirror.example/hf")
    monkeypatch.setenv("OOMDOCTOR_API_KEY", "very_secret")
    assert row("HF_TOKEN") == Setting("HF_TOKEN", HIDDEN, "environment")
    assert row("HF_ENDPOINT").value == f"https://{HIDDEN}@mirror.example/hf"
    assert row("OOMDOCTOR_API_KEY").value == HIDDEN
    shown = repr(settings())
    assert not [secret for secret in ("hf_", "pass", "very_secret") if secret in shown]


def test_slurm_facts_of_a_job(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {
        "SLURM_JOB_ID": "4711",
        "SLURMD_NODENAME": "gpu-07",
        "SLURM_JOB_PARTITION": "a100",
        "SLURM_STEP_GPUS": "2",
        "SLURM_MEM_PER_NODE": "65536",
    }.items():
        monkeypatch.setenv(name, value)
    facts = slurm()
    assert (facts.job_id, facts.node, facts.partition) == ("4711", "gpu-07", "a100")
    assert (facts.gpus, facts.memory_bytes) == ("2", 65536 * MIB)
    assert not facts.on_login_node
    assert row("SLURM_JOB_ID").value == "4711"


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({}, None),
        ({"SLURM_MEM_PER_NODE": "0"}, None),  # all memory of the node
        ({"SLURM_MEM_PER_NODE": "many"}, None),
        ({"SLURM_MEM_PER_CPU": "2048"}, None),
        ({"SLURM_MEM_PER_CPU": "2048", "SLURM_CPUS_ON_NODE": "4"}, 4 * 2048 * MIB),
    ],
)
def test_slurm_memory(
    variables: dict[str, str], expected: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert slurm().memory_bytes == expected


def test_a_login_node_has_srun_but_no_job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert not slurm().on_login_node
    command = tmp_path / "srun"
    command.write_text("#!/bin/sh\n")
    command.chmod(0o755)
    assert slurm().on_login_node
    monkeypatch.setenv("SLURM_JOB_ID", "1")
    assert not slurm().on_login_node


def test_a_worker_sees_one_device_and_no_launcher(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RANK", "WORLD_SIZE", "ACCELERATE_MIXED_PRECISION", "PMI_SIZE"):
        monkeypatch.setenv(name, "1")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
    monkeypatch.setenv("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True")
    given = worker_environment("GPU-abc")
    assert given["CUDA_VISIBLE_DEVICES"] == "GPU-abc"
    assert given["PYTORCH_NVML_BASED_CUDA_CHECK"] == "1"
    assert given["PYTORCH_CUDA_ALLOC_CONF"] == "expandable_segments:True"
    assert given["HOME"] == os.environ["HOME"]
    assert not {"RANK", "WORLD_SIZE", "ACCELERATE_MIXED_PRECISION", "PMI_SIZE"} & set(given)
    assert worker_environment(None)["CUDA_VISIBLE_DEVICES"] == ""
    assert os.environ["CUDA_VISIBLE_DEVICES"] == "0,1"


def test_threads_of_a_worker_sleep_while_they_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    names = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME", "KMP_LIBRARY")
    for name in names:
        monkeypatch.delenv(name, raising=False)
    assert worker_environment(None)["OMP_WAIT_POLICY"] == "PASSIVE"


@pytest.mark.parametrize(
    "name", ["OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME", "KMP_LIBRARY"]
)
def test_how_threads_wait_is_kept_if_the_user_chose_it(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("OMP_WAIT_POLICY", raising=False)
    monkeypatch.setenv(name, "own")
    given = worker_environment(None)
    assert given[name] == "own"
    assert given.get("OMP_WAIT_POLICY") == ("own" if name == "OMP_WAIT_POLICY" else None)


@pytest.mark.parametrize(
    ("variables", "ends_at"),
    [
        ({"SLURM_JOB_ID": "7", "SLURM_JOB_END_TIME": "1795415690"}, 1795415690),
        ({"SLURM_JOB_ID": "7", "SLURM_JOB_END_TIME": "soon"}, None),
        ({"SLURM_JOB_END_TIME": "1795415690"}, None),
    ],
)
def test_the_end_of_a_slurm_job(
    variables: dict[str, str], ends_at: float | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert environment.slurm().ends_at == ends_at
