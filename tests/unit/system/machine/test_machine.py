from __future__ import annotations

import os
import platform
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from oomdoctor.errors import ExitCode, OomDoctorError
from oomdoctor.records.job.machine import Gpu, GpuProcess
from oomdoctor.system.machine import capabilities as capabilities_module
from oomdoctor.system.machine import nvml as nvml_module
from oomdoctor.system.machine.capabilities import capabilities, installed_versions
from oomdoctor.system.machine.devices import (
    Device,
    choose_device,
    choose_devices,
    cpu_name,
    describe,
)
from oomdoctor.system.machine.limits import total_memory
from oomdoctor.system.machine.nvml import driver_version, list_gpus
from oomdoctor.units import GIB


def gpu(index: int, name: str = "NVIDIA A100-SXM4-80GB", **values: Any) -> Gpu:
    base = Gpu(index, f"GPU-{index}{index}aa", name, 80 * GIB, 79 * GIB, "8.0", ())
    return replace(base, **values)


ALIKE = (gpu(0), gpu(1), gpu(2))
MIXED = (
    gpu(0, "NVIDIA GeForce GT 1030", total_bytes=2 * GIB, compute_capability="6.1"),
    gpu(1, "NVIDIA GeForce RTX 4090", total_bytes=24 * GIB, compute_capability="8.9"),
    gpu(2, "NVIDIA RTX 6000 Ada", total_bytes=48 * GIB, compute_capability="8.9"),
)
SLICED = (
    gpu(0, "NVIDIA A100 MIG 3g.40gb", uuid="MIG-aaaa", total_bytes=40 * GIB),
    gpu(0, "NVIDIA A100 MIG 3g.40gb", uuid="MIG-bbbb", total_bytes=40 * GIB),
)


class NVMLError(Exception):
    pass


class FakeNvml:
    """The driver of a machine: a dict of answers for each handle; what is absent raises."""

    NVMLError = NVMLError

    def __init__(self, *handles: dict[str, Any]) -> None:
        self.handles = handles
        self.open = 0

    def __getattr__(self, function: str) -> Any:
        def answer(handle: dict[str, Any]) -> Any:
            if function not in handle:
                raise NVMLError("Not Supported")
            return handle[function]

        return answer

    def nvmlShutdown(self) -> None:  # noqa: N802 - NVML's name
        self.open -= 1

    def nvmlSystemGetDriverVersion(self) -> bytes:  # noqa: N802
        return b"570.124.06"

    def nvmlDeviceGetCount(self) -> int:  # noqa: N802
        return len(self.handles)

    def nvmlDeviceGetHandleByIndex(self, index: int) -> dict[str, Any]:  # noqa: N802
        return self.handles[index]

    def nvmlDeviceGetMigDeviceHandleByIndex(  # noqa: N802
        self, handle: dict[str, Any], slot: int
    ) -> dict[str, Any]:
        if slot >= len(handle["instances"]):
            raise NVMLError("Not Found")
        instance: dict[str, Any] = handle["instances"][slot]
        return instance


def handle(uuid: str, **more: Any) -> dict[str, Any]:
    return {
        "nvmlDeviceGetUUID": uuid,
        "nvmlDeviceGetName": "NVIDIA H200",
        "nvmlDeviceGetMemoryInfo": SimpleNamespace(total=100, free=60, used=40),
        "nvmlDeviceGetCudaComputeCapability": (9, 0),
        **more,
    }


@pytest.fixture
def drive(monkeypatch: pytest.MonkeyPatch) -> Any:
    def install(*handles: dict[str, Any]) -> FakeNvml:
        fake = FakeNvml(*handles)

        def open_fake() -> FakeNvml:
            fake.open += 1
            return fake

        monkeypatch.setattr(nvml_module, "open_nvml", open_fake)
        monkeypatch.setattr(nvml_module, "is_emulated", lambda name: False)
        return fake

    return install


def refused(choice: str, gpus: tuple[Gpu, ...]) -> OomDoctorError:
    with pytest.raises(OomDoctorError) as caught:
        choose_device(choice, gpus)
    return caught.value


def test_a_gpu_and_its_processes(drive: Any) -> None:
    mine = SimpleNamespace(pid=os.getpid(), usedGpuMemory=7)
    hidden = SimpleNamespace(pid=2**22 + 1, usedGpuMemory=None)
    fake = drive(
        handle(
            "GPU-1",
            nvmlDeviceGetComputeRunningProcesses=[mine, hidden],
            nvmlDeviceGetGraphicsRunningProcesses=[mine],
        )
    )
    name = Path("/proc/self/comm").read_text().strip()
    assert list_gpus() == (
        Gpu(
            0,
            "GPU-1",
            "NVIDIA H200",
            100,
            60,
            "9.0",
            (GpuProcess(os.getpid(), name, 7), GpuProcess(2**22 + 1, None, None)),
        ),
    )
    assert driver_version() == "570.124.06"
    assert fake.open == 0


@pytest.mark.parametrize(
    ("name", "made", "emulated"),
    [
        ("NVIDIA H100 80GB HBM3", "dev/nvidiactl", False),
        ("NVIDIA H100 80GB HBM3", "proc/driver/nvidia", False),
        ("NVIDIA GeForce RTX 4090", "dev/dxg", False),
        ("Orin", "dev/nvmap", False),
        ("NVIDIA H100 80GB HBM3", "dev/null", True),
        ("NVIDIA H100 (emulated)", "dev/nvidiactl", True),
    ],
)
def test_a_gpu_without_a_driver_in_the_kernel_is_emulated(
    name: str, made: str, emulated: bool, tmp_path: Path
) -> None:
    (tmp_path / made).mkdir(parents=True)
    assert nvml_module.is_emulated(name, tmp_path) is emulated


def test_what_the_driver_does_not_say_is_none(drive: Any) -> None:
    drive({"nvmlDeviceGetUUID": b"GPU-2"}, {})
    (only,) = list_gpus()  # the second has no UUID, so nothing could be pinned to it
    assert only.uuid == "GPU-2"
    assert (only.free_bytes, only.compute_capability, only.processes) == (None, None, ())
    assert only.total_bytes == total_memory()  # an integrated GPU shares the host's memory


def test_mig_instances_replace_their_gpu(drive: Any) -> None:
    instances = [handle("MIG-a"), handle("MIG-b")]
    for instance in instances:
        del instance["nvmlDeviceGetCudaComputeCapability"]
    drive(
        handle(
            "GPU-1",
            nvmlDeviceGetMigMode=[1, 1],
            nvmlDeviceGetMaxMigDeviceCount=7,
            instances=instances,
        ),
        handle("GPU-2", nvmlDeviceGetMigMode=[0, 0]),
        handle(
            "GPU-3", nvmlDeviceGetMigMode=[1, 1], nvmlDeviceGetMaxMigDeviceCount=7, instances=[]
        ),
    )
    found = [(g.index, g.uuid, g.compute_capability) for g in list_gpus()]
    assert found == [(0, "MIG-a", "9.0"), (0, "MIG-b", "9.0"), (1, "GPU-2", "9.0")]


@pytest.mark.parametrize("error", [ImportError("pynvml"), NVMLError("Driver Not Loaded")])
def test_without_a_driver_there_are_no_gpus(
    error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail() -> None:
        raise error

    monkeypatch.setattr(nvml_module, "open_nvml", fail)
    monkeypatch.setenv("PATH", "")  # a machine that has Slurm gets another hint
    assert list_gpus() == ()
    assert driver_version() is None
    refusal = refused("cuda", ())
    assert (refusal.code, refusal.exit_code) == ("no_gpu", ExitCode.MACHINE_UNFIT)
    assert "--device cpu" in str(refusal.hint)
    assert ("nvidia-ml-py" in str(refusal.hint)) == isinstance(error, ImportError)


def test_auto_takes_a_gpu_else_the_cpu() -> None:
    assert choose_device("auto", ALIKE) == Device("cuda", ALIKE[0])
    assert choose_device("auto", ()) == Device("cpu", None)
    assert choose_device("CPU", ALIKE) == Device("cpu", None)


@pytest.mark.parametrize(
    ("visible", "choice", "index"),
    [
        (None, "cuda", 0),
        (None, "cuda:2", 2),
        ("2,1", "auto", 2),
        ("2,1", "cuda:1", 1),
        ("GPU-11aa", "cuda", 1),
        ("gpu-1", "cuda", 1),
        (" 1 , 0", "cuda", 1),
        ("1,7,0", "cuda:0", 1),
        (None, "GPU-22", 2),
        ("0", "gpu-22AA", 2),
    ],
)
def test_cuda_numbers_among_alike_gpus(
    visible: str | None, choice: str, index: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert choose_device(choice, ALIKE).gpu == ALIKE[index]


@pytest.mark.parametrize("visible", ["", "-1", "-1,0", "9", "0,0", "GPU-ff", "x", "MIG-aaaa"])
def test_cuda_visible_devices_may_hide_everything(
    visible: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert choose_device("auto", ALIKE) == Device("cpu", None)
    refusal = refused("cuda", ALIKE)
    assert refusal.code == "no_gpu"
    assert f"CUDA_VISIBLE_DEVICES={visible!r}" in refusal.message


def test_an_invalid_entry_ends_the_list(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1,7,0")
    refusal = refused("cuda:1", ALIKE)
    assert refusal.code == "unknown_device"
    assert "CUDA sees 1 GPU" in refusal.message


def test_different_gpus_have_no_number_but_by_bus(monkeypatch: pytest.MonkeyPatch) -> None:
    assert choose_device("auto", MIXED).gpu == MIXED[2]  # newest, then most memory
    refusal = refused("cuda:1", MIXED)
    assert (refusal.code, refusal.exit_code) == ("ambiguous_device", ExitCode.USAGE)
    assert "--device GPU-11aa" in str(refusal.hint)
    assert "CUDA_DEVICE_ORDER=PCI_BUS_ID" in str(refusal.hint)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    assert refused("auto", MIXED).code == "ambiguous_device"
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "GPU-11aa,GPU-00aa")
    assert choose_device("cuda:1", MIXED).gpu == MIXED[0]
    monkeypatch.setenv("CUDA_DEVICE_ORDER", "PCI_BUS_ID")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1,0")
    assert choose_device("cuda:1", MIXED).gpu == MIXED[0]


def test_mig_instances_go_by_uuid(monkeypatch: pytest.MonkeyPatch) -> None:
    assert choose_device("auto", SLICED).gpu == SLICED[0]
    assert choose_device("MIG-bbbb", SLICED).gpu == SLICED[1]
    monkeypatch.setenv("CUDA_DEVICE_ORDER", "PCI_BUS_ID")
    assert refused("cuda:1", SLICED).code == "ambiguous_device"
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "MIG-bbbb")
    assert choose_device("auto", SLICED).gpu == SLICED[1]


@pytest.mark.parametrize("choice", ["gpu", "cuda:x", "cuda:-1", "cuda:", "0", "", "GPU-ff", "GPU-"])
def test_a_name_that_means_no_single_device(choice: str) -> None:
    refusal = refused(choice, ALIKE)
    assert (refusal.code, refusal.exit_code) == ("unknown_device", ExitCode.USAGE)


def test_a_login_node_is_told_to_use_srun(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "srun").write_text("")
    (tmp_path / "srun").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(nvml_module, "open_nvml", lambda: FakeNvml())
    assert "srun --gres=gpu:1 oomdoctor probe" in str(refused("cuda", ()).hint)


def test_describe_names_other_processes_only(drive: Any) -> None:
    drive()
    mine, other = GpuProcess(os.getpid(), "python", 1), GpuProcess(4, "python", 2)
    card = gpu(0, processes=(mine, other))
    machine = describe(Device("cuda", card), {"torch": "2.7.0"})
    assert (machine.gpu_name, machine.total_bytes) == (card.name, card.total_bytes)
    assert machine.other_processes == (other,)
    assert (machine.driver_version, machine.versions) == ("570.124.06", {"torch": "2.7.0"})
    plain = describe(Device("cpu", None), {})
    assert (plain.device, plain.gpu_name, plain.driver_version) == ("cpu", None, None)
    assert plain.total_bytes == plain.memory_bytes >= plain.memory_available_bytes > 0


def test_cpu_name(tmp_path: Path) -> None:
    assert cpu_name(tmp_path / "none") is None
    (tmp_path / "arm").write_text("processor\t: 0\nBogoMIPS\t: 50\n")
    assert cpu_name(tmp_path / "arm") is None
    (tmp_path / "x86").write_text("processor\t: 0\nmodel name\t: AMD EPYC 9654\n")
    assert cpu_name(tmp_path / "x86") == "AMD EPYC 9654"


def test_installed_versions_know_missing_ones() -> None:
    versions = installed_versions()
    assert versions["python"] == platform.python_version()
    assert versions["torch"]
    assert set(versions) == {"python", *capabilities_module.PACKAGES}


def states(versions: dict[str, str | None], gpus: tuple[Gpu, ...]) -> dict[str, str]:
    return {row.name: row.state for row in capabilities(versions, gpus)}


def test_capabilities_by_version_and_card(monkeypatch: pytest.MonkeyPatch) -> None:
    least = {"transformers": "4.51.3", "peft": "0.15.2"}
    monkeypatch.setattr(capabilities_module, "minimum_versions", lambda: least)
    versions: dict[str, str | None] = dict.fromkeys(capabilities_module.PACKAGES)
    versions |= {
        "torch": "2.7.0+cu128",
        "transformers": "4.51.3",
        "peft": "0.15.1",
        "flash-attn": "2.8.0",
        "flash-attn-3": "3.0.0b1",
    }
    a100 = states(versions, ALIKE)
    assert (a100["torch"], a100["transformers"], a100["peft"]) == ("ok", "ok", "unfit")
    assert (a100["bitsandbytes"], a100["liger-kernel"]) == ("missing", "missing")
    assert (a100["flash-attn"], a100["flash-attn-3"]) == ("ok", "unfit")
    assert (a100["bf16"], a100["fp8"], a100["fp4"]) == ("ok", "unfit", "unfit")
    h200 = states(versions, (gpu(0, compute_capability="9.0"),))
    assert (h200["flash-attn-3"], h200["fp8"], h200["fp4"]) == ("ok", "ok", "unfit")
    b200 = states(versions, (gpu(0, compute_capability="10.0"),))
    assert (b200["flash-attn-3"], b200["fp4"]) == ("unfit", "ok")
    unknown = states(versions, (gpu(0, compute_capability=None),))
    assert (unknown["flash-attn"], unknown["bf16"]) == ("unfit", "unfit")
    cpu = states(versions | {"torch": "2.7.0+cpu"}, ())
    assert (cpu["torch"], cpu["flash-attn"], cpu["bf16"]) == ("ok", "unfit", "missing")
    assert states(versions | {"torch": "2.7.0+cpu"}, ALIKE)["torch"] == "unfit"


def test_what_is_lacking_comes_with_the_line_to_type() -> None:
    rows = {row.name: row for row in capabilities(dict.fromkeys(capabilities_module.PACKAGES), ())}
    assert rows["peft"].text == "pip install peft for LoRA and QLoRA"
    assert "--no-build-isolation" in rows["flash-attn"].text
    assert "this machine has no GPU" in rows["bf16"].text


def test_minimum_versions_are_those_of_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    declared = ["torch>=2.6", "rich >= 13.7", 'liger-kernel>=0.5; extra == "liger"', "odd"]
    monkeypatch.setattr(capabilities_module.metadata, "requires", lambda name: declared)
    assert capabilities_module.minimum_versions() == {
        "torch": "2.6",
        "rich": "13.7",
        "liger-kernel": "0.5",
    }


BUSY = (GpuProcess(7, "python", GIB),)


def test_several_gpus_are_free_ones_of_one_kind(monkeypatch: pytest.MonkeyPatch) -> None:
    busy_first = (replace(ALIKE[0], processes=BUSY), *ALIKE[1:])
    assert choose_devices("auto", busy_first, 2) == Device("cuda", ALIKE[1], (ALIKE[2],))
    assert choose_devices("cuda", busy_first, 3).gpus == busy_first
    monkeypatch.setenv("CUDA_DEVICE_ORDER", "PCI_BUS_ID")
    one_other = (MIXED[0], *ALIKE[1:])
    assert choose_devices("auto", one_other, 2).gpus == ALIKE[1:]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2,1")
    assert choose_devices("auto", ALIKE, 2).gpus == (ALIKE[2], ALIKE[1])


def test_too_few_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(OomDoctorError) as caught:
        choose_devices("auto", ALIKE, 4)
    assert (caught.value.code, caught.value.exit_code) == ("too_few_gpus", ExitCode.MACHINE_UNFIT)
    assert "4 GPUs were asked for, and this machine has 3 GPUs" in caught.value.message
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    with pytest.raises(OomDoctorError, match="CUDA_VISIBLE_DEVICES shows 1 GPU"):
        choose_devices("cuda", ALIKE, 2)


def test_ranks_on_the_cpu_need_no_gpus() -> None:
    for choice, gpus in (("auto", ()), ("cpu", ALIKE)):
        chosen = choose_devices(choice, gpus, 4)
        assert (chosen.gpu, chosen.gpus, chosen.count) == (None, (), 4)
    assert choose_devices("auto", ALIKE, 1) == choose_device("auto", ALIKE)
    assert (Device("cpu", None).count, Device("cuda", ALIKE[0], ALIKE[1:]).count) == (1, 3)
