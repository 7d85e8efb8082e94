"""Reports of `run`: four ranks that fit, and one process that ran out of memory."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime

from example_diagnoses import GPU

from oomdoctor.commands.run.process.command import Ended
from oomdoctor.commands.run.seen_outside import lines_from_outside
from oomdoctor.explain.diagnose import diagnose
from oomdoctor.explain.reading.scan import scan
from oomdoctor.explain.training.known import Given
from oomdoctor.records.job.step_time import PartTime, StepTime
from oomdoctor.records.report.report import Report, Tool, bare_report
from oomdoctor.records.report.run import (
    FasterStep,
    HostMemory,
    LargerBatch,
    LaunchedProduct,
    LaunchedStep,
    MemoryPoint,
    Place,
    RankMemory,
    RankOom,
    RunDevice,
    SmallestGpu,
    UnknownBranch,
    UnknownKernel,
    UnknownSize,
    UnknownSizes,
)
from oomdoctor.records.report.warnings import warning
from oomdoctor.records.report.watch import StepPeaks
from oomdoctor.units import GIB, MIB

_PEAK = 61 * GIB + 300 * MIB
RANK = RankMemory(
    rank=0,
    pid=4711,
    device=0,
    outcome="fits",
    evidence="emulated",
    peak_allocated_bytes=_PEAK,
    peak_reserved_bytes=_PEAK + 2 * GIB,
    peak_device_bytes=_PEAK + 2 * GIB + 500 * MIB,
    peak_phase="backward",
    peak_module="model.layers.31.mlp.down_proj",
    peak_step=2,
    where=Place("train.py", 41, "main"),
    library_where=None,
    headroom_bytes=15 * GIB,
    retries=0,
    steps=3,
    stopped="steady",
    oom=None,
    unknown_branches=(UnknownBranch("train.py", 44, 3),),
    steps_memory=tuple(
        StepPeaks(step, _PEAK - (step == 1) * 30 * GIB, _PEAK + 2 * GIB, 31 * GIB, _PEAK + 2 * GIB)
        for step in (1, 2, 3)
    ),
    memory=tuple(
        MemoryPoint(i / 100, i // 40, _PEAK * (1 + i % 40) // 40, _PEAK + 2 * GIB)
        for i in range(121)
    ),
)


H100 = RunDevice("emulated", "NVIDIA H100 80GB HBM3", 4, 79 * GIB, "9.0", 520 * MIB, 78 * GIB)


STEP = LaunchedStep(
    rank=0,
    number=3,
    launches={"collective": 24, "copy": 6, "kernel": 4_212, "product": 2_016},
    products=(LaunchedProduct(1, 8192, 4096, 4096, "bfloat16", 512),),
    unknown_kernels=(
        UnknownKernel("triton_poi_fused_add_0", (512, 1, 1), (128, 1, 1), 12),
        UnknownKernel("flash::kernel", (64, 8, 1), (128, 1, 1), 2),
    ),
    time=StepTime(
        seconds=1.0,
        micro_steps=2,
        parts=(
            PartTime("products", 0.5, {"forward": 0.2, "backward": 0.3}),
            PartTime("memory", 0.3, {"forward": 0.1, "optimizer": 0.2}),
            PartTime("communication", 0.2, {"micro_step": 0.2}),
        ),
        bound="compute",
        launches=6_200,
    ),
    uncertainty=0.31,
    reason=None,
    faster=(
        FasterStep("send less, or over a faster link", 0.8),
        FasterStep('torch.set_float32_matmul_precision("high"): float32 products in TF32', 0.9),
    ),
    trace="step.json",
)


def fits() -> Report:
    """Ranks 0 to 2 are equal, rank 3 needs more."""
    worst = replace(
        RANK, rank=3, peak_allocated_bytes=_PEAK + GIB, peak_reserved_bytes=_PEAK + 4 * GIB
    )
    return replace(
        bare_report("run", "ok", 0, datetime(2026, 11, 22, 12, tzinfo=UTC), 31.4),
        tool=Tool("oomdoctor", "0.1.0"),
        next_commands=(
            "oomdoctor run --emulate '4xNVIDIA L40S' -- torchrun --nproc-per-node 4 train.py",
        ),
        warnings=(
            warning(
                "gpu_variant",
                asked="H100",
                taken="NVIDIA H100 80GB HBM3",
                others=["NVIDIA H100 NVL"],
            ),
        ),
        device=H100,
        command_line=("torchrun", "--nproc-per-node", "4", "train.py"),
        exit_code_of_command=0,
        ranks=(*(replace(RANK, rank=number) for number in range(3)), worst),
        smallest_gpu=SmallestGpu("NVIDIA H100 80GB HBM3", 79 * GIB),
        step=STEP,
    )


def depends_on_values() -> Report:
    """How many rows a mask selects is not known."""
    rank = replace(RANK, unknown_branches=())
    sizes = (UnknownSize("train.py", 40, "index", True, 3, True),)
    return replace(
        fits(),
        device=replace(H100, gpus=1),
        step=replace(STEP, time=None, reason="no step ended", unknown_kernels=(), trace=None),
        command_line=("python", "train.py"),
        ranks=(rank,),
        unknown_sizes=UnknownSizes("max", sizes, 40 * GIB, rank.peak_reserved_bytes),
        next_commands=(),
        warnings=(),
    )


def ran_out() -> Report:
    """The second step ran out of memory."""
    oom = RankOom(
        requested_bytes=9 * GIB + 488 * MIB,
        free_bytes=2 * GIB + 520 * MIB,
        total_bytes=79 * GIB,
        least_bytes=84 * GIB,
        phase="loss",
        module=None,
        where=Place("train.py", 41, "main"),
        step=2,
        caught=False,
    )
    rank = replace(
        RANK,
        outcome="oom",
        oom=oom,
        steps=1,
        stopped=None,
        peak_phase="loss",
        peak_module=None,
        library_where=Place("/venv/lib/torch/nn/functional.py", 3494, "cross_entropy"),
        headroom_bytes=12 * GIB,
        unknown_branches=(),
    )
    return replace(
        fits(),
        status="no",
        exit_code=1,
        exit_code_of_command=1,
        device=RunDevice("emulated", None, 1, 79 * GIB, "8.0", 520 * MIB, 78 * GIB),
        command_line=("python", "train.py"),
        ranks=(rank,),
        smallest_gpu=None,
        diagnoses=(replace(GPU, source="output"),),
        next_commands=("oomdoctor run --emulate 1TiB -- python train.py",),
        warnings=(),
    )


REAL = RunDevice("real", "NVIDIA H100 80GB HBM3", 4, 79 * GIB, "9.0", None, 78 * GIB)


def fits_for_real() -> Report:
    """A training that ran to its end on the GPUs of this machine."""
    ranks = tuple(
        replace(
            rank,
            evidence="measured",
            peak_device_bytes=None,
            peak_phase="unknown",
            peak_module=None,
            where=None,
            steps=12_400,
            stopped=None,
            unknown_branches=(),
            memory=(),
        )
        for rank in fits().ranks
    )
    return replace(
        fits(),
        ranks=ranks,
        device=REAL,
        step=None,
        next_commands=(),
        warnings=(),
        smallest_gpu=None,
        host=HostMemory(512 * GIB, 300 * GIB, 0, 256 * GIB, 255 * GIB),
        larger_batch=LargerBatch(4, 5, 8 * GIB),
    )


def killed() -> Report:
    """The kernel killed the command for lack of host memory."""
    host = HostMemory(64 * GIB, 700 * MIB, 1, 64 * MIB, 60 * MIB)
    lines = lines_from_outside(Ended(-9, None), [], host)
    incidents, facts = scan(lines)
    return replace(
        fits_for_real(),
        status="no",
        exit_code=137,
        exit_code_of_command=137,
        run_dir="/home/you/.local/state/oomdoctor/cases/20261123-014500-train-a1b2",
        command_line=("python", "train.py"),
        ranks=(),
        host=host,
        larger_batch=None,
        diagnoses=diagnose("output", incidents, facts, Given()),
        next_commands=("oomdoctor show 20261123-014500-train-a1b2 --zip case.zip",),
    )


RUNS: dict[str, Callable[[], Report]] = {
    "run": fits,
    "run-values": depends_on_values,
    "run-oom": ran_out,
    "run-real": fits_for_real,
    "run-killed": killed,
}
