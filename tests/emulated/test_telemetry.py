"""NVML on the emulated device: what loggers ask is answered, and no function is silent."""

from __future__ import annotations

from typing import Any

import pytest
from emulated_bench import A100, MIB, RTX_4090, Bench

from oomdoctor.emulator.card import Devices

# Calls what pynvml wraps, with outputs that hold a value that nobody would write.
_ALL = """
import ctypes, inspect, pynvml
POISON = 0xABABABAB
def poisoned(kind):
    start = kind(POISON).value
    return type(kind.__name__, (kind,), {"__init__": lambda self, v=start: kind.__init__(self, v)})
for name, kind in list(vars(pynvml).items()):
    if kind in (ctypes.c_uint, ctypes.c_int, ctypes.c_ulonglong):
        setattr(pynvml, name, poisoned(kind))
pynvml.nvmlInit()
gpu = pynvml.nvmlDeviceGetHandleByIndex(0)
answers = {}
for name, ask in vars(pynvml).items():
    if not name.startswith("nvmlDeviceGet") or "Handle" in name:
        continue
    parameters = inspect.signature(ask).parameters.values()
    if any(isinstance(one.default, ctypes._SimpleCData) for one in parameters):
        continue  # it takes its outputs, and gives none back
    needed = sum(one.default is one.empty for one in parameters)
    try:
        answers[name] = ask(*[gpu, 0, 0, 0, 0][:needed])
    except (pynvml.NVMLError, TypeError) as error:
        answers[name] = type(error).__name__
    if isinstance(answers[name], ctypes.Structure):
        one = answers[name]
        answers[name] = {field: getattr(one, field) for field, *_ in one._fields_}
told = {name: str(one) for name, one in answers.items()}
silent = [name for name, one in told.items() if str(POISON) in one
          or str(ctypes.c_int(POISON).value) in one]
tell(silent=silent, answers=told, asked=len(told))
"""
_LOGGED = """
import pynvml
pynvml.nvmlInit()
gpu = pynvml.nvmlDeviceGetHandleByIndex(0)
x = torch.empty(1 << 30, dtype=torch.uint8, device="cuda")
one, two = [pynvml.nvmlDeviceGetTotalEnergyConsumption(gpu)], pynvml.nvmlDeviceGetMemoryInfo(gpu)
time.sleep(0.5)
one.append(pynvml.nvmlDeviceGetTotalEnergyConsumption(gpu))
fields = pynvml.nvmlDeviceGetFieldValues(gpu, [186, 83, 250])
tell(power=torch.cuda.power_draw(), temperature=torch.cuda.temperature(),
     clock=torch.cuda.clock_rate(), busy=[torch.cuda.utilization(), torch.cuda.memory_usage()],
     energy=one[1] - one[0], used=two.used, total=two.total, free=two.free,
     seen_by_torch=torch.cuda.mem_get_info(),
     affinity=list(pynvml.nvmlDeviceGetCpuAffinity(gpu, 16)), allowed=list(os.sched_getaffinity(0)),
     fields=[(f.nvmlReturn, f.value.uiVal) for f in fields],
     clocks=pynvml.nvmlDeviceGetSupportedGraphicsClocks(
         gpu, pynvml.nvmlDeviceGetSupportedMemoryClocks(gpu)[0]))
"""


@pytest.mark.parametrize("card", [A100, RTX_4090])
def test_no_function_succeeds_without_an_answer(bench: Bench, card: Any) -> None:
    told = bench.run(_ALL, Devices(card))
    assert told["asked"] > 100
    assert not told["silent"]
    answers, fans = told["answers"], "GeForce" in card.name
    refused = {name for name, answer in answers.items() if answer == "NVMLError_NotSupported"}
    assert not refused & {
        *("nvmlDeviceGetPowerUsage", "nvmlDeviceGetTemperature", "nvmlDeviceGetClockInfo"),
        *("nvmlDeviceGetUtilizationRates", "nvmlDeviceGetPcieThroughput"),
        *("nvmlDeviceGetTotalEnergyConsumption", "nvmlDeviceGetEnforcedPowerLimit"),
    }
    # As real cards of these kinds do.
    assert ("nvmlDeviceGetFanSpeed" in refused) == (not fans)
    assert ("nvmlDeviceGetTotalEccErrors" in refused) == fans


def test_loggers_get_the_figures_of_an_idle_gpu(bench: Bench) -> None:
    told = bench.run(_LOGGED, Devices(RTX_4090))
    assert 5_000 < told["power"] < 100_000  # milliwatts
    assert 20 < told["temperature"] < 50
    assert 100 < told["clock"] < 1000
    assert told["busy"] == [0, 0]
    # Energy is power over time, in millijoules.
    assert told["energy"] == pytest.approx(told["power"] * 0.5, rel=0.5)
    assert told["fields"][0] == [0, told["power"]]
    assert [code for code, _ in told["fields"]] == [0, 0, 3]
    allowed = [i for i in range(1024) if told["affinity"][i // 64] >> i % 64 & 1]
    assert allowed == sorted(told["allowed"])
    assert len(told["clocks"]) == 1


def test_memory_of_the_telemetry_is_the_devices(bench: Bench) -> None:
    told = bench.run(_LOGGED, Devices(RTX_4090))
    assert told["total"] == RTX_4090.nvml_total_bytes
    assert told["free"] == told["seen_by_torch"][0]
    assert told["used"] == told["total"] - told["free"]
    assert told["used"] > 1024 * MIB + RTX_4090.context_bytes


_SMI = """
import subprocess
x = torch.empty(1 << 30, dtype=torch.uint8, device="cuda")
def ask(*words):
    done = subprocess.run(["nvidia-smi", *words], capture_output=True, text=True)
    return [done.returncode, done.stdout]
numbers = "index,memory.used,memory.total,memory.free,utilization.gpu,power.draw,fan.speed"
tell(page=ask(), list=ask("-L"), pid=os.getpid(), free=torch.cuda.mem_get_info()[0],
     numbers=ask(f"--query-gpu={numbers}", "--format=csv,noheader,nounits"),
     head=ask("--query-gpu", "name,memory.used", "--format", "csv"),
     second=ask("-i", "1", "--query-gpu=uuid", "--format=csv,noheader"),
     third=ask("-i", "2", "--query-gpu=uuid", "--format=csv,noheader"),
     apps=ask("--query-compute-apps=pid,used_memory", "--format=csv,noheader,nounits"),
     wrong=ask("--query-gpu=speed", "--format=csv"), limit=ask("-pl", "200"))
"""


def test_scripts_can_call_nvidia_smi(bench: Bench) -> None:
    told = bench.run(_SMI, Devices(RTX_4090, 2))
    used = (RTX_4090.total_bytes - told["free"]) // MIB
    rows = [row.split(", ") for row in told["numbers"][1].splitlines()]
    assert [row[0] for row in rows] == ["0", "1"]
    assert [int(row[1]) for row in rows] == [used, 0]
    assert {int(row[2]) for row in rows} == {RTX_4090.nvml_total_bytes // MIB}
    assert int(rows[0][3]) == told["free"] // MIB
    assert rows[0][4:] == ["0", "30.00", "30"]
    assert told["apps"] == [0, f"{told['pid']}, {used}\n"]
    assert told["head"][1].splitlines()[:2] == [
        "name, memory.used [MiB]",
        f"NVIDIA GeForce RTX 4090 (emulated), {used} MiB",
    ]
    assert "Driver Version: 580." in told["page"][1]
    assert f"{used}MiB" in told["page"][1]
    assert told["list"][1].splitlines()[1].startswith("GPU 1: NVIDIA GeForce RTX 4090 (emulated) (")
    assert told["second"][1].strip() in told["list"][1].splitlines()[1]
    assert [told[name][0] for name in ("third", "wrong", "limit")] == [6, 2, 4]
    assert "is not a valid field to query" in told["wrong"][1]
