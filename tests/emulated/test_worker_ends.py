"""How a worker may end on a GPU: on the emulated one, failures can be asked for."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from emulated_bench import RTX_4090
from gpu_jobs import job, llama, measured, run
from weekly_rows import weekly

from oomdoctor.commands.devices.emulated import UUID
from oomdoctor.commands.jobs.host import WorkerHost
from oomdoctor.emulator.card import Devices
from oomdoctor.emulator.enter import Session, entered
from oomdoctor.records.job.result import Attempt
from oomdoctor.system.environment import worker_environment
from oomdoctor.units import GIB

pytestmark = pytest.mark.timeout(900)
TINY = llama(layers=2, hidden=256, vocabulary=1000)


@dataclass(frozen=True, slots=True)
class Device:
    """A worker host on an emulated card, and the session of the card."""

    host: WorkerHost
    session: Session

    def ends(self, folder: Path, label: str = "plain", **changes: Any) -> Attempt:
        """How a tiny job ends on a device that fails as the label says."""
        return run(self.host, folder, replace(job(TINY, job_timed=False), label=label), **changes)


@pytest.fixture(scope="module")
def device(
    cuda_python: Path, emulator_cache: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Device]:
    folder = tmp_path_factory.mktemp("device")
    worker = Path(__file__).parents[1] / "examples" / "failing_worker.py"
    python = folder / "python"
    python.write_text(f'#!/bin/sh\nexec "{cuda_python}" "{worker}"\n')
    python.chmod(0o755)
    (folder / "session").mkdir()
    with entered(cuda_python, Devices(RTX_4090), folder / "session", emulator_cache) as session:
        environment = worker_environment(UUID) | session.variables
        with WorkerHost(str(python), environment, folder) as host:
            yield Device(host, session)


def test_what_a_host_loads_touches_no_gpu(
    cuda_python: Path, emulator_cache: Path, tmp_path: Path
) -> None:
    """With torchao installed, transformers touches CUDA as it is imported."""
    program = (
        "from oomdoctor.worker.host import _preload, cuda_was_touched\n"
        "_preload(compiles=True)\n"
        "assert not cuda_was_touched()\n"
        "import torch; torch.cuda.init()\n"
        "assert cuda_was_touched()\n"
    )
    with entered(cuda_python, Devices(RTX_4090), tmp_path, emulator_cache) as session:
        environment = worker_environment(UUID) | session.variables
        subprocess.run([cuda_python, "-c", program], env=environment, check=True, timeout=120)


def test_a_cache_that_cannot_be_written_costs_only_the_time_to_build(
    cuda_python: Path, tmp_path: Path
) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "session").mkdir()
    cache = tmp_path / "file" / "emulator"
    with entered(cuda_python, Devices(RTX_4090), tmp_path / "session", cache) as session:
        environment = worker_environment(UUID) | session.variables
        program = "import torch; assert torch.cuda.mem_get_info()[1] > 20 << 30"
        subprocess.run([cuda_python, "-c", program], env=environment, check=True, timeout=120)


def test_a_plain_job_tells_memory_and_no_time(device: Device, tmp_path: Path) -> None:
    found = measured(device.host, tmp_path / "job", job(TINY, job_timed=False))
    assert found.timing is None
    assert found.overhead_bytes == RTX_4090.context_bytes
    assert found.peak_reserved_bytes is not None
    assert found.peak_device_bytes == found.peak_reserved_bytes + RTX_4090.context_bytes
    assert found.attention_kernel == "sdpa: flash"
    assert found.breakdown is not None


def test_a_refused_allocation_is_tried_again(device: Device, tmp_path: Path) -> None:
    attempt = device.ends(tmp_path / "job", "cudaMalloc@4=2")
    assert attempt.outcome == "fits", attempt.reason
    assert attempt.measurement is not None
    assert attempt.measurement.allocation_retries == 1


@pytest.mark.parametrize(
    ("label", "said"),
    [
        ("cudaLaunchKernel@300=700", "illegal memory access"),
        weekly("cudaLaunchKernel@300=719", "unspecified launch failure"),
        weekly("cudaLaunchKernel@300=214", "uncorrectable ECC error"),
    ],
    ids=["sticky", "lost", "ecc"],
)
def test_a_broken_context_costs_one_job(
    device: Device, tmp_path: Path, label: str, said: str
) -> None:
    attempt = device.ends(tmp_path / "job", label)
    assert attempt.outcome in ("failed", "crashed"), attempt
    text = f"{attempt.reason} {attempt.failure.log_tail if attempt.failure else ''}"
    assert said in text
    assert device.ends(tmp_path / "next").outcome == "fits"


def test_other_processes_take_their_share(device: Device, tmp_path: Path) -> None:
    free = device.ends(tmp_path / "free")
    assert free.measurement is not None
    foreign = RTX_4090.total_bytes - RTX_4090.context_bytes - (16 << 20)
    device.session.hold(1, {0: foreign})
    try:
        attempt = device.ends(tmp_path / "full")
    finally:
        device.session.hold(1, {})
    assert attempt.outcome == "oom", attempt.reason
    assert attempt.oom is not None
    assert attempt.oom.free_bytes is not None
    assert attempt.oom.free_bytes < GIB
    assert device.ends(tmp_path / "next").outcome == "fits"
