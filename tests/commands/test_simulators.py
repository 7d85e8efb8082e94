"""A simulator runs job after job in its own process, forgets each, and is replaced when it dies."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from simulated_targets import target
from tiny_models import tiny_job

from oomdoctor.commands.jobs.host import WorkerHost
from oomdoctor.commands.jobs.launch import launch
from oomdoctor.records.job.result import Attempt, ProbeJob, Reply
from oomdoctor.records.job.simulation import SimulationRequest
from oomdoctor.system.environment import worker_environment
from oomdoctor.worker.host import clean_slate, run_here


@pytest.fixture
def host(tmp_path: Path) -> Iterator[WorkerHost]:
    environment = worker_environment(None) | {"OMP_NUM_THREADS": "1"}
    with WorkerHost(sys.executable, environment, tmp_path, isolated=False) as host:
        yield host


def simulated(
    host: WorkerHost, job: ProbeJob, folder: Path, *, deadline_s: float = 60.0
) -> tuple[Attempt, Reply | None]:
    folder.mkdir()
    return launch(
        host,
        job,
        folder,
        usable_bytes=None,
        deadline_s=deadline_s,
        on_phase=lambda phase: None,
        stop=lambda: False,
    )


def job_with(**rung: object) -> ProbeJob:
    job = tiny_job("dense", effective_batch_size=2, **rung)
    request = SimulationRequest((1, 2), (target("RTX 4090"),))
    return replace(
        job,
        device_type="cuda",
        mode="simulate",
        label="-".join(map(str, rung.values())),
        simulation=request,
    )


# The first one runs in a fresh process. Each of the others leaves something behind that the next
# must not find: mixed precision in the environment and in accelerate, 32-bit states of embeddings
# in bitsandbytes.
RUNGS = (
    {"weights_dtype": "bfloat16"},
    {"autocast_dtype": "bfloat16"},
    {"optimizer": "adamw_bnb_8bit"},
    {"autocast_dtype": "float16"},
    {"method": "lora"},
)


@pytest.mark.slow
def test_no_rung_sees_what_another_left(host: WorkerHost, tmp_path: Path) -> None:
    pytest.importorskip("bitsandbytes")
    jobs = [job_with(**rung) for rung in RUNGS]
    order = [*range(len(jobs)), *reversed(range(len(jobs)))]
    found: dict[int, list[object]] = {}
    pids = set()
    for place, number in enumerate(order):
        _, reply = simulated(host, jobs[number], tmp_path / str(place))
        assert reply is not None
        assert reply.predictions, reply
        found.setdefault(number, []).append(reply.predictions)
        pids.add(host.pid)
    assert all(first == second for first, second in found.values())
    assert len(pids) == 1


@pytest.mark.slow
def test_a_job_that_hangs_costs_one_rung(host: WorkerHost, tmp_path: Path) -> None:
    job = job_with(weights_dtype="bfloat16")
    attempt, _ = simulated(host, job, tmp_path / "slow", deadline_s=0.05)
    assert attempt.outcome == "timed_out"
    attempt, reply = simulated(host, job, tmp_path / "next")
    assert attempt.outcome == "fits"
    assert reply is not None


@pytest.mark.slow
def test_a_job_that_dies_costs_one_rung(tmp_path: Path) -> None:
    dies = tmp_path / "python"
    code = (
        "import os; from pathlib import Path; from oomdoctor.worker import host, __main__ as m\n"
        "def run(job, reply):\n"
        "    os.abort() if Path(job).parent.name == 'dies' else m.run_job(job, reply)\n"
        # The first one dies without torch.
        "host._PRELOAD = host._PRELOAD_ON_CPU = host._PRELOAD_WITHOUT_TORCHAO = ()\n"
        "host.serve(run, isolated=False)"
    )
    dies.write_text(f'#!/bin/sh\nexec {sys.executable} -c "{code}"\n')
    dies.chmod(0o755)
    job = job_with(weights_dtype="bfloat16")
    with WorkerHost(str(dies), worker_environment(None), tmp_path, isolated=False) as host:
        attempt, _ = simulated(host, job, tmp_path / "dies")
        assert (attempt.outcome, attempt.reason) == ("crashed", "killed by SIGABRT")
        attempt, _ = simulated(host, job, tmp_path / "goes-on")
        assert attempt.outcome == "fits"


def test_output_goes_to_the_log_of_its_job(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    for name in ("one", "two"):
        request = {"job": name, "reply": "reply", "log": str(tmp_path / name)}
        assert run_here(request, lambda job, _: os.write(1, f"output of {job}".encode())) == 0
    assert [(tmp_path / name).read_text() for name in ("one", "two")] == [
        "output of one",
        "output of two",
    ]
    print("what comes after")
    assert capfd.readouterr().out == "what comes after\n"


def test_the_environment_comes_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OOMDOCTOR_TEST", "before")
    with clean_slate():
        os.environ["OOMDOCTOR_TEST"] = "after"
        os.environ["ACCELERATE_MIXED_PRECISION"] = "bf16"
    assert os.environ["OOMDOCTOR_TEST"] == "before"
    assert "ACCELERATE_MIXED_PRECISION" not in os.environ
