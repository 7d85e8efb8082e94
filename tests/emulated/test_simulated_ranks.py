"""A simulated rank needs what the engine needs on an emulated GPU, in the same interpreter."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import cast

import pytest
from tiny_models import tiny_job
from weekly_rows import weekly
from worker_process import launched

from oomdoctor.commands.devices.emulated import emulated_gpus, emulating
from oomdoctor.commands.jobs.host import WorkerHost
from oomdoctor.records.job.measurement import Measurement
from oomdoctor.records.job.result import ProbeJob, Reply
from oomdoctor.records.job.simulation import SimulationRequest, Target
from oomdoctor.system.catalogue import find_gpu
from oomdoctor.system.environment import worker_environment
from oomdoctor.units import GIB

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]
WORLD = 4
_ZERO = {"weights_dtype": "bfloat16", "bucket_elements": 1000}
_LORA = {"method": "lora", "lora_rank": 16}
RUNGS: dict[str, dict[str, object]] = {
    "accumulates": {"sharding": "fsdp_grad_op", "effective_batch_size": 4 * WORLD},
    "ddp": {"sharding": "ddp"},
    "fsdp-dpo": {"sharding": "fsdp", "objective": "dpo"},
    "fsdp-chunked": {"sharding": "fsdp", "loss": "chunked"},
    "zero1-lora": {"sharding": "zero1", **_ZERO, **_LORA},
    "zero2-lora": {"sharding": "zero2", **_ZERO, **_LORA, "autocast_dtype": "bfloat16"},
    "zero3-lora-rows": {"sharding": "zero3", **_ZERO, **_LORA, "micro_batch_size": 16},
    "zero3-dpo": {"sharding": "zero3", **_ZERO, "objective": "dpo"},
    "zero3-grpo": {"sharding": "zero3", **_ZERO, "objective": "grpo", "reference": "kl"},
}
# The same engines and objectives in other pairs.
PAIRS: dict[str, dict[str, object]] = {
    "fsdp": {"sharding": "fsdp", "weights_dtype": "bfloat16"},
    "ddp-reward": {"sharding": "ddp", "objective": "reward"},
    "zero3-lora": {"sharding": "zero3", **_ZERO, **_LORA},
    "zero3-lora-bf16": {"sharding": "zero3", **_ZERO, **_LORA, "adapter_dtype": "bfloat16"},
    "zero2-dpo": {"sharding": "zero2", **_ZERO, "objective": "dpo"},
}
_NEAR = 0.01  # of a peak
_NEAR_ZERO = 0.03  # from a model of DeepSpeed's buffers, not from its code


def answer(host: WorkerHost, job: ProbeJob, place: Path) -> tuple[Measurement | None, Reply | None]:
    """What a job measured, and its reply."""
    attempt, reply = launched(host, job, place)
    return attempt.measurement, reply


@pytest.mark.parametrize("rungs", [pytest.param(RUNGS, id="most"), weekly(PAIRS, id="other pairs")])
def test_simulated_ranks_need_what_the_engine_needs(
    rungs: dict[str, dict[str, object]],
    cuda_python: Path,
    emulator_cache: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(emulator_cache))
    gpus = emulated_gpus(f"{WORLD}xL4", alone=True)
    target = Target("L4", 24 * GIB, 24 * GIB, 0, find_gpu("L4"))
    with emulating(gpus, str(cuda_python), tmp_path) as variables:
        names = ",".join(str(number) for number in range(WORLD))
        environment = worker_environment(names) | variables
        with WorkerHost(str(cuda_python), environment, tmp_path) as host:
            for name, values in rungs.items():
                plain = tiny_job("dense", micro_batch_size=2, sequence_length=128)
                rows = cast(int, values.get("micro_batch_size", 2))
                common = {"world_size": WORLD, "effective_batch_size": rows * WORLD}
                config = replace(plain.config, **(common | values))  # type: ignore[arg-type]
                job = replace(plain, config=config, device_type="cuda", timed=False, alone=True)
                measured, _ = answer(host, job, tmp_path / name)
                assert measured is not None, name
                request = SimulationRequest((rows,), (target,))
                simulated = replace(job, mode="simulate", simulation=request)
                _, reply = answer(host, simulated, tmp_path / f"{name}-simulated")
                assert reply is not None and reply.predictions, (name, reply)
                found = reply.predictions[0].sizes[0].measurement
                zero = "zero" in name
                near = _NEAR_ZERO if zero else _NEAR
                allocated, reserved = measured.peak_allocated_bytes, measured.peak_reserved_bytes
                assert found.peak_allocated_bytes == pytest.approx(allocated, rel=near), name
                if not zero:  # what DeepSpeed's order reserves is not modeled
                    assert found.peak_reserved_bytes == pytest.approx(reserved, rel=_NEAR), name


def test_what_is_not_sharded_has_one_name_with_every_engine(
    cuda_python: Path, emulator_cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(emulator_cache))
    gpus = emulated_gpus(f"{WORLD}xL4", alone=True)
    parts = {}
    with emulating(gpus, str(cuda_python), tmp_path) as variables:
        names = ",".join(str(number) for number in range(WORLD))
        environment = worker_environment(names) | variables
        with WorkerHost(str(cuda_python), environment, tmp_path) as host:
            for engine in ("ddp", "fsdp", "zero1", "zero2", "zero3"):
                plain = tiny_job("dense", micro_batch_size=32, sequence_length=512)
                common = {"world_size": WORLD, "effective_batch_size": 32 * WORLD}
                values = {**_ZERO, **common, "sharding": engine}
                config = replace(plain.config, **values)  # type: ignore[arg-type]
                job = replace(plain, config=config, device_type="cuda", timed=False, alone=True)
                measured, _ = answer(host, job, tmp_path / engine)
                assert measured is not None and measured.breakdown is not None, engine
                parts[engine] = measured.breakdown
    for engine, found in parts.items():
        assert found.logits_bytes == parts["ddp"].logits_bytes > 0, engine
        assert found.activations_bytes == pytest.approx(parts["ddp"].activations_bytes, rel=0.01), (
            engine
        )
