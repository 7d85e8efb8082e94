"""A rung on several emulated GPUs: one rank that stands for all needs what each of all needs."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from tiny_models import tiny_job
from weekly_rows import weekly
from worker_process import launched

from oomdoctor.commands.devices.emulated import EmulatedGpus, emulated_gpus, emulating
from oomdoctor.commands.jobs.host import WorkerHost
from oomdoctor.records.job.measurement import Measurement
from oomdoctor.system.environment import worker_environment

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]
WORLD = 2
_SHORT = {"weights_dtype": "bfloat16"}
_KL = {"reference": "kl", "num_generations": 2}
RUNGS: dict[str, dict[str, object]] = {
    "fsdp1": {"sharding": "fsdp", "fsdp_version": 1},
    "fsdp-offload": {"sharding": "fsdp", "offload": "parameters"},
    "fsdp-qlora": {
        "sharding": "fsdp",
        "method": "qlora",
        "quantization": "nf4",
        "weights_dtype": "bfloat16",
        "quant_storage": "bfloat16",
    },
    # TRL's trainers shard the reference model in their own way.
    "fsdp-dpo": {"sharding": "fsdp", "objective": "dpo"},
    "zero2-grpo": {"sharding": "zero2", **_SHORT, "objective": "grpo", **_KL},
    "zero3-dpo": {"sharding": "zero3", **_SHORT, "objective": "dpo"},
}
# The others train with these engines, and more.
PLAIN: dict[str, dict[str, object]] = {
    "fsdp": {"sharding": "fsdp"},
    "zero3": {"sharding": "zero3", **_SHORT},
    "zero3-chunked": {"sharding": "zero3", **_SHORT, "loss": "chunked"},
}


def peaks(
    rungs: dict[str, dict[str, object]], gpus: EmulatedGpus, python: Path, folder: Path
) -> dict[str, Measurement]:
    """What each rung needs, by all ranks or by one."""
    found = {}
    folder.mkdir()
    with emulating(gpus, str(python), folder) as variables:
        names = ",".join(str(number) for number in range(gpus.count))
        environment = worker_environment(names) | variables
        with WorkerHost(str(python), environment, folder) as host:
            for name, values in rungs.items():
                plain = tiny_job("dense", micro_batch_size=2, effective_batch_size=4 * WORLD)
                config = replace(plain.config, world_size=WORLD, **values)  # type: ignore[arg-type]
                job = replace(
                    plain, config=config, device_type="cuda", timed=False, alone=gpus.alone
                )
                attempt, _ = launched(host, job, folder / name)
                assert attempt.measurement is not None, (name, attempt)
                found[name] = attempt.measurement
    return found


@pytest.mark.parametrize(
    "rungs", [pytest.param(RUNGS, id="most"), weekly(PLAIN, id="plain and chunked")]
)
def test_one_rank_needs_what_all_need(
    rungs: dict[str, dict[str, object]],
    cuda_python: Path,
    emulator_cache: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(emulator_cache))
    every = peaks(rungs, emulated_gpus(f"{WORLD}xL4"), cuda_python, tmp_path / "every")
    alone = peaks(rungs, emulated_gpus(f"{WORLD}xL4", alone=True), cuda_python, tmp_path / "alone")
    for name in rungs:
        assert [rank.rank for rank in every[name].ranks] == list(range(WORLD)), name
        assert [rank.rank for rank in alone[name].ranks] == [0], name
        first, one = every[name].ranks[0], alone[name].ranks[0]
        assert (name, one) == (name, first)
        assert all(loss == loss for loss in alone[name].losses), name  # not NaN
