"""What holds only on a GPU: contexts, caps, phases, kernels, paging, clocks.

tests/emulated runs this file on the emulated GPU too, without the tests marked `real`. Every
measurement runs in a child of a worker host, as in a survey; nothing here loads torch.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import importlib.util
import json
import math
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from gpu_jobs import EMULATED, LARGE, SMALL, UNGROUPED, capped, gib, job, measured, room, run

from oomdoctor.commands.jobs.host import WorkerHost
from oomdoctor.records.codec import dumps
from oomdoctor.records.job.machine import Gpu
from oomdoctor.records.job.result import ProbeJob
from oomdoctor.system.environment import worker_environment
from oomdoctor.system.machine.devices import choose_device
from oomdoctor.system.machine.nvml import list_gpus
from oomdoctor.units import GIB, MIB
from oomdoctor.worker.host import cuda_was_touched

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(600)]
ROOT = Path(__file__).parents[2]
GIVEN_BACK = 64 * MIB


@pytest.fixture(scope="module")
def gpu() -> Gpu:
    """The GPU that `--device cuda` takes."""
    if "+cpu" in importlib.metadata.version("torch"):
        pytest.skip("there is a GPU, but this torch is built without CUDA")
    chosen = choose_device("cuda", list_gpus()).gpu
    assert chosen is not None
    return chosen


@pytest.fixture(scope="module")
def host(gpu: Gpu, tmp_path_factory: pytest.TempPathFactory) -> Iterator[WorkerHost]:
    """One host for all tests, as one serves a whole survey."""
    folder = tmp_path_factory.mktemp("host")
    with WorkerHost(sys.executable, worker_environment(gpu.uuid), folder) as host:
        yield host


def in_process(task: str, job: ProbeJob, gpu: Gpu, folder: Path) -> dict[str, Any]:
    """The answer of in_process.py, run as the worker is."""
    (folder / "job.json").write_text(dumps(job))
    environment = worker_environment(gpu.uuid) | {"PYTHONPATH": str(ROOT)}
    script = Path(__file__).with_name("in_process.py")
    ended = subprocess.run(
        [sys.executable, str(script), task, str(folder / "job.json")],
        capture_output=True,
        text=True,
        env=environment,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    answer: dict[str, Any] = json.loads(ended.stdout.strip().splitlines()[-1])
    return answer


def used_bytes(gpu: Gpu) -> int:
    """What the driver says is in use on the GPU, by anybody."""
    now = next(found for found in list_gpus() if found.uuid == gpu.uuid)
    assert now.free_bytes is not None
    return now.total_bytes - now.free_bytes


def children(pid: int) -> list[int]:
    """Direct children of a process."""
    found = []
    for task in Path(f"/proc/{pid}/task").iterdir():
        with contextlib.suppress(OSError):
            found += [int(child) for child in (task / "children").read_text().split()]
    return found


@pytest.mark.real("the driver's files say who has a context")
def test_the_host_has_no_context_while_a_child_measures(host: WorkerHost, tmp_path: Path) -> None:
    touched: dict[str, list[bool]] = {"host": [], "child": []}
    pids: set[int] = set()

    def look(phase: str) -> None:
        if phase != "timing" or host.pid is None:
            return
        touched["host"].append(cuda_was_touched(Path(f"/proc/{host.pid}/fd")))
        for child in children(host.pid):
            touched["child"].append(cuda_was_touched(Path(f"/proc/{child}/fd")))
        for found in list_gpus():
            pids.update(process.pid for process in found.processes)

    # Long enough in "timing" for the host's 0.1 s poll to see it.
    long = job(job_min_timed_steps=200, job_max_timed_steps=200, job_spread_target=0.0)
    attempt = run(host, tmp_path / "job", long, on_phase=look)
    assert attempt.outcome == "fits", attempt.reason
    assert touched["child"], "the timing phase was never seen"
    assert all(touched["child"]), "the look itself is blind: a child that measures has a context"
    assert not any(touched["host"])
    assert host.pid not in pids


def test_every_byte_is_given_back(gpu: Gpu, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(SMALL))
    before = used_bytes(gpu)
    command = [sys.executable, "-m", "oomdoctor", "probe", str(tmp_path), "--json"]
    command += ["--device", gpu.uuid, "--recipe", "none", "--seq-len", "512", "--no-predict"]
    command += ["--effective-batch", "4", "--rung", "weights_dtype=bfloat16"]
    command += ["--rung", "method=lora,autocast_dtype=bfloat16,activation_checkpointing=full"]
    ended = subprocess.run(
        command,
        capture_output=True,
        text=True,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        check=False,
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    report = json.loads(ended.stdout)
    assert [result["outcome"] for result in report["results"]] == ["fits", "fits"]
    assert "memory_not_free" not in [warning["code"] for warning in report["warnings"]]
    end = time.monotonic() + 10
    while used_bytes(gpu) - before > GIVEN_BACK and time.monotonic() < end:
        time.sleep(0.2)
    assert used_bytes(gpu) - before <= GIVEN_BACK


def test_the_peaks_contain_each_other(host: WorkerHost, gpu: Gpu, tmp_path: Path) -> None:
    result = measured(host, tmp_path / "job", job())
    assert result.peak_reserved_bytes is not None
    assert result.peak_device_bytes is not None
    assert result.overhead_bytes is not None
    assert gpu.total_bytes >= result.peak_device_bytes >= result.peak_reserved_bytes
    assert result.peak_reserved_bytes >= result.peak_allocated_bytes
    assert 100 * MIB <= result.overhead_bytes <= 3 * GIB
    for phase, memory in result.phases.items():
        assert memory.peak_reserved_bytes is not None, phase
        assert memory.peak_reserved_bytes >= memory.peak_allocated_bytes, phase
    # Weights, gradients and two states in bf16 are there together in the optimizer's phase.
    assert result.phases["optimizer"].peak_allocated_bytes >= 8 * result.parameters


def test_a_capped_card_answers_for_a_smaller_one(host: WorkerHost, tmp_path: Path) -> None:
    rung = job(LARGE)
    free = measured(host, tmp_path / "free", rung)
    assert free.peak_device_bytes is not None
    assert room(free) > 6 * GIB, gib(room(free))  # else the context would blur a cap of 80 %
    ample = int(1.2 * free.peak_device_bytes)
    fits = run(host, tmp_path / "ample", capped(rung, ample), usable=ample)
    assert fits.outcome == "fits", fits.reason
    assert fits.measurement is not None
    assert fits.measurement.peak_allocated_bytes == pytest.approx(
        free.peak_allocated_bytes, rel=0.01
    )
    # Of the room it needs at least, not of its peak: pressed for memory, the allocator gives
    # cached blocks back and may get by with less than it took on an empty card.
    tight = int(0.8 * room(free))
    missed = run(host, tmp_path / "tight", capped(rung, tight), usable=tight)
    assert missed.outcome == "oom", (missed.outcome, missed.reason)
    assert missed.measurement is None
    assert missed.oom is not None
    assert missed.oom.requested_bytes
    assert missed.oom.allowed_bytes or missed.oom.capacity_bytes
    if missed.oom.allowed_bytes:  # printed since PyTorch 2.0 when a fraction is set
        assert missed.oom.allowed_bytes <= tight
        assert missed.oom.allowed_bytes >= tight - 3 * GIB
    # The card and its driver are unharmed: the next job fits.
    assert run(host, tmp_path / "after", rung).outcome == "fits"


def test_a_falling_cap_runs_out_in_each_phase(host: WorkerHost, tmp_path: Path) -> None:
    """fp32 AdamW on a short batch: each phase of the first step needs more than the one before."""
    rung = job(LARGE, weights_dtype="float32", sequence_length=256)
    free = measured(host, tmp_path / "free", rung)
    overhead = room(free) - free.peak_allocated_bytes
    first = {name: memory.peak_allocated_bytes for name, memory in free.first_step.items()}
    order = ["load", "forward", "backward", "optimizer"]
    peaks = [free.phases["load"].peak_allocated_bytes, *(first[name] for name in order[1:])]
    assert peaks == sorted(peaks), dict(zip(order, map(gib, peaks), strict=True))
    # Three caps between each peak and the one below. The cap leaves out what libraries load later,
    # so a single one could fall beside its phase, three do not. Emulated libraries load nothing.
    shares = (2,) if EMULATED else (1, 2, 3)
    floors = [peaks[0] // 2, *peaks[:-1]]
    caps = sorted(
        (
            floor + (peak - floor) * share // 4 + overhead
            for floor, peak in zip(floors, peaks, strict=True)
            for share in shares
        ),
        reverse=True,
    )
    seen = []
    for number, cap in enumerate(caps):
        attempt = run(host, tmp_path / f"cap-{number}", capped(rung, cap), usable=cap)
        assert attempt.outcome == "oom", (gib(cap), attempt.outcome, attempt.reason)
        if attempt.oom is not None:
            seen.append(attempt.oom.phase)
        else:  # it ran, and the survey's own headroom said no: only next to the peak
            assert number < 3, (gib(cap), attempt.reason)
    assert set(seen) == set(order), seen
    places = [order.index(phase) for phase in seen]
    assert places == sorted(places, reverse=True), seen


def test_the_attention_kernel_is_the_one_that_ran(
    host: WorkerHost, gpu: Gpu, tmp_path: Path
) -> None:
    if gpu.compute_capability is None or float(gpu.compute_capability) < 8.0:
        pytest.skip("flash attention needs compute capability 8.0")
    half = measured(host, tmp_path / "half", job())
    # PyTorch chooses between the two by its version and the card; fp32 can be neither.
    assert half.attention_kernel in ("sdpa: flash", "sdpa: cuDNN")
    single = measured(host, tmp_path / "single", job(UNGROUPED, weights_dtype="float32"))
    assert single.attention_kernel == "sdpa: memory-efficient"
    mixed = job(weights_dtype="float32", autocast_dtype="bfloat16")
    assert measured(host, tmp_path / "mixed", mixed).attention_kernel == half.attention_kernel
    eager = measured(host, tmp_path / "eager", job(attention="eager"))
    assert eager.attention_kernel == "eager"
    assert eager.peak_allocated_bytes > half.peak_allocated_bytes


def test_flash_attention_2_that_is_not_installed_is_unsupported(
    host: WorkerHost, tmp_path: Path
) -> None:
    if importlib.util.find_spec("flash_attn") is not None:
        pytest.skip("flash-attn is installed")
    attempt = run(host, tmp_path / "job", job(attention="flash_attention_2"))
    assert attempt.outcome == "unsupported"
    assert "flash-attn" in (attempt.reason or "")


def test_qlora_never_holds_the_model_in_full_precision(host: WorkerHost, tmp_path: Path) -> None:
    rung = job(LARGE, method="qlora", quantization="nf4", autocast_dtype="bfloat16")
    result = measured(host, tmp_path / "job", rung)
    in_bf16 = 2 * result.parameters
    load = result.phases["load"].peak_allocated_bytes
    assert in_bf16 > 2 * GIB
    assert load < 0.8 * in_bf16, (gib(load), gib(in_bf16))
    assert result.trainable_parameters < 0.05 * result.parameters


def test_paged_states_are_managed_memory(host: WorkerHost, tmp_path: Path) -> None:
    plain = measured(host, tmp_path / "plain", job(optimizer="adamw_bnb_8bit"))
    paged = measured(host, tmp_path / "paged", job(optimizer="paged_adamw_8bit"))
    assert plain.managed_bytes == 0
    assert paged.managed_bytes >= 1.9 * paged.parameters  # two states of at least a byte
    assert (
        plain.phases["optimizer"].peak_allocated_bytes
        - paged.phases["optimizer"].peak_allocated_bytes
        >= 0.9 * paged.managed_bytes
    )


def test_the_gradient_scaler_trains(host: WorkerHost, tmp_path: Path) -> None:
    result = measured(
        host, tmp_path / "job", job(weights_dtype="float32", autocast_dtype="float16")
    )
    if not EMULATED:
        assert result.timing is not None
        assert result.timing.timed_steps >= 3
    # The states are born in a watched step, even where the scaler skips the first ones.
    assert result.phases["optimizer"].peak_allocated_bytes >= 16 * result.parameters
    assert all(math.isfinite(loss) for loss in result.losses)


@pytest.mark.real("the gradients decide which steps are skipped")
def test_skipped_steps_are_not_timed(gpu: Gpu, tmp_path: Path) -> None:
    rung = job(
        weights_dtype="float32",
        autocast_dtype="float16",
        job_min_timed_steps=4,
        job_max_timed_steps=4,
        job_spread_target=0.0,
        job_timing_limit_s=60.0,
    )
    answer = in_process("scaler", rung, gpu, tmp_path)
    # From 2**40 down to where fp16 gradients are finite takes many halvings, one a step.
    assert answer["skipped"] >= 8, answer
    assert answer["timed_steps"] == 4, answer
    assert answer["stopped_by"] == "step_limit", answer
    assert answer["optimizer_step_s"] > 0


@pytest.mark.parametrize(
    ("weights_dtype", "size"), [("bfloat16", 2), ("float32", 4)], ids=["bf16", "fp32"]
)
def test_the_breakdown_adds_up(
    host: WorkerHost, tmp_path: Path, weights_dtype: str, size: int
) -> None:
    result = measured(host, tmp_path / "job", job(weights_dtype=weights_dtype))
    parts = result.breakdown
    assert parts is not None, result.peak_phase
    assert (
        parts.weights_bytes
        + parts.gradients_bytes
        + parts.optimizer_bytes
        + parts.activations_bytes
        + parts.logits_bytes
        + parts.other_bytes
        == result.peak_allocated_bytes
    )
    assert parts.weights_bytes == pytest.approx(size * result.parameters, rel=0.01)
    assert parts.optimizer_bytes == pytest.approx(2 * size * result.parameters, rel=0.01)


@pytest.mark.real("no kernel takes time")
@pytest.mark.parametrize("effective", [2, 8], ids=["one-micro-step", "four-micro-steps"])
def test_events_and_the_clock_agree(gpu: Gpu, tmp_path: Path, effective: int) -> None:
    # Large enough that the GPU is the bottleneck: else a loop that runs ahead is rightly faster.
    rung = job(LARGE, sequence_length=1024, effective_batch_size=effective, job_min_timed_steps=10)
    answer = in_process("plain-loop", rung, gpu, tmp_path)
    assert answer["timed_s"] == pytest.approx(answer["wall_s"], rel=0.10), answer
