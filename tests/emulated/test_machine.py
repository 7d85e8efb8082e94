"""What a survey sees of emulated devices: several cards, MIG instances, and who holds memory."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from emulated_bench import A100, GIB, Bench

from oomdoctor.commands.devices.emulated import UUID
from oomdoctor.emulator.card import Devices

ROOT = Path(__file__).parents[2]
_LOOK = """
from oomdoctor.system.machine.nvml import list_gpus
from oomdoctor.worker.measuring.nvml import used_bytes
chosen = list_gpus()[1]
os.environ["CUDA_VISIBLE_DEVICES"] = chosen.uuid  # which CUDA reads when it is first used
before = used_bytes(chosen.uuid)
held = torch.empty(3 << 30, dtype=torch.uint8, device="cuda")
after = list_gpus()
tell(uuids=[gpu.uuid for gpu in after], emulated=[gpu.emulated for gpu in after],
     used=[gpu.total_bytes - gpu.free_bytes for gpu in after],
     pids=[[process.pid for process in gpu.processes] for gpu in after], pid=os.getpid(),
     count=torch.cuda.device_count(), before=before, grown=used_bytes(chosen.uuid) - before)
"""


@pytest.mark.parametrize("mig", [False, True], ids=["two-cards", "two-instances"])
def test_the_second_device_is_chosen_by_its_uuid(
    cuda_python: Path, emulator_cache: Path, tmp_path: Path, *, mig: bool
) -> None:
    bench = Bench(cuda_python, emulator_cache, tmp_path)
    devices = Devices(A100, count=2, mig=mig, foreign_bytes=GIB)
    second = UUID[:-1] + "1"
    second = second.replace("GPU", "MIG") if mig else second
    told: dict[str, Any] = bench.run(_LOOK, devices, PYTHONPATH=str(ROOT))
    assert told["uuids"][1] == second
    assert told["emulated"] == [True, True]
    assert told["count"] == 1
    assert told["before"] >= GIB  # what the others hold
    assert told["grown"] == 3 * GIB + A100.context_bytes
    assert told["used"][1] - told["used"][0] == told["grown"]
    assert told["pid"] in told["pids"][1]
    assert told["pid"] not in told["pids"][0]
