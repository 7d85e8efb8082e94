"""Reports to render. Every number here is invented, to look plausible; none was measured."""

from __future__ import annotations

from dataclasses import replace

from example_gpu import gpu_report
from example_parts import fits, measurement, request, result

from oomdoctor.records.configuration.config import TrainConfig
from oomdoctor.records.job.measurement import OomEvent, PhaseMemory
from oomdoctor.records.report.report import Budget, Fault, Picks, Report
from oomdoctor.units import GIB, MIB


def cpu_report() -> Report:
    """A finished survey on a CPU: no reserved and no device memory, one rung over the budget."""
    base = TrainConfig(sequence_length=256, effective_batch_size=4)
    peak = round(1.4 * GIB)
    measured = measurement(
        peak + 1200 * MIB,
        peak_device_bytes=None,
        peak_reserved_bytes=None,
        overhead_bytes=None,
        allocation_retries=None,
        attention_kernel="math",
        peak_rss_bytes=round(2.4 * GIB),
        trainable_parameters=134_515_008,
        parameters=134_515_008,
        memory_stats={},
    )
    no_reserved = {
        name: {
            key: PhaseMemory(p.peak_allocated_bytes) for key, p in getattr(measured, name).items()
        }
        for name in ("phases", "first_step", "steady")
    }
    measured = replace(measured, **no_reserved)  # type: ignore[arg-type]
    good = fits(base, 1, peak, 103.4, 0.021, mfu=None, measured=measured)
    bad = result(
        "full-fp32",
        replace(base, weights_dtype="float32"),
        outcome="oom",
        micro_batch_size=1,
        gradient_accumulation_steps=4,
        peak_phase="optimizer",
        missed_by_bytes=311 * MIB,
        oom=OomEvent(
            "CPU out of memory. Tried to allocate 20.00 MiB.",
            "cpu_budget",
            "optimizer",
            requested_bytes=20 * MIB,
        ),
        reason="it ran, but left less than the headroom",
    )
    gpu = gpu_report()
    assert gpu.machine is not None and gpu.model is not None
    return replace(
        gpu,
        elapsed_s=71.3,
        run_dir="/home/ada/.local/state/oomdoctor/runs/20260102-030405-SmolLM2-135M-q2",
        next_commands=("oomdoctor show --format markdown",),
        request=request(
            "HuggingFaceTB/SmolLM2-135M", (good, bad), vram=2 * GIB, length=256, size=4
        ),
        machine=replace(
            gpu.machine,
            device="cpu",
            gpu_name=None,
            gpu_uuid=None,
            total_bytes=8 * GIB,
            compute_capability=None,
            driver_version=None,
            cpu_name="AMD EPYC 7B13",
            cpu_count=2,
            memory_bytes=8 * GIB,
            memory_available_bytes=6 * GIB,
            slurm_job_id=None,
            other_processes=(),
        ),
        model=replace(
            gpu.model,
            id="HuggingFaceTB/SmolLM2-135M",
            parameters=134_515_008,
            source="hub",
            revision="main",
        ),
        budget=Budget(8 * GIB, 2 * GIB, 6 * GIB, 41 * MIB, 2 * GIB - 41 * MIB),
        results=(good, bad),
        ranking=(good.key,),
        ranking_reasons={good.key: "the only one that fits"},
        picks=Picks(good.key, None, None),
        warnings=(),
    )


def error_report() -> Report:
    """A survey that ended before there was anything to measure."""
    return replace(
        gpu_report(),
        status="error",
        exit_code=4,
        elapsed_s=0.42,
        run_dir=None,
        request=None,
        machine=None,
        model=None,
        budget=None,
        results=(),
        ranking=(),
        ranking_reasons={},
        picks=Picks(None, None, None),
        next_commands=(),
        warnings=(),
        errors=(
            Fault(
                "gated",
                "meta-llama/Llama-3.1-8B is gated and this machine is not logged in",
                "run `hf auth login` or set HF_TOKEN\n"
                "or use the built-in architecture facts with --source catalogue",
            ),
        ),
    )


def interrupted_report() -> Report:
    """A survey of a mixture of experts that Slurm ended after one rung."""
    gpu = gpu_report()
    assert gpu.request is not None and gpu.model is not None and gpu.machine is not None
    return replace(
        gpu,
        status="interrupted",
        exit_code=143,
        elapsed_s=61.0,
        model=replace(gpu.model, id="mistralai/Mixtral-8x7B-v0.1", mixture_of_experts=True),
        machine=replace(gpu.machine, other_processes=()),
        results=gpu.results[:1],
        ranking=(),
        ranking_reasons={},
        picks=Picks(None, None, None),
        next_commands=("oomdoctor probe --resume latest",),
        warnings=(),
    )


def emulated_report() -> Report:
    """A survey on an emulated card: peaks, and no speeds."""
    gpu = gpu_report()
    assert gpu.machine is not None and gpu.request is not None
    silent = {"tokens_per_s": None, "tokens_per_s_spread": None, "samples_per_s": None}
    silent |= {"micro_step_s": None, "optimizer_step_s": None, "tokens_time_s": None, "mfu": None}
    results = tuple(
        replace(
            row,
            **silent,  # type: ignore[arg-type]
            evidence="emulated",
            measurement=replace(row.measurement, timing=None) if row.measurement else None,
            tries=tuple(replace(one, tokens_per_s=None) for one in row.tries),
        )
        for row in gpu.results[1:4]
    )
    name = "NVIDIA GeForce RTX 4090"
    recipe = replace(gpu.request.recipe, rungs=gpu.request.recipe.rungs[1:4])
    return replace(
        gpu,
        elapsed_s=31.0,
        request=replace(gpu.request, recipe=recipe, device="cuda", vram_bytes=None, emulate=name),
        machine=replace(
            gpu.machine,
            gpu_name=f"{name} (emulated)",
            gpu_uuid="GPU-656d756c-6174-6564-0000-000000000000",
            total_bytes=24 * GIB,
            compute_capability="8.9",
            driver_version=None,
            slurm_job_id=None,
            other_processes=(),
            emulated=True,
        ),
        budget=Budget(24 * GIB, None, 24 * GIB, 492 * MIB, 24 * GIB - 492 * MIB),
        results=results,
        ranking=(results[2].key, results[1].key),
        ranking_reasons={
            results[2].key: "the lowest peak of 2: 14.2 GiB",
            results[1].key: "8.70 GiB more than the lowest peak",
        },
        picks=Picks(None, results[1].key, results[2].key),
        next_on_gpu=("oomdoctor probe meta-llama/Llama-3.1-8B",),
        warnings=(),
    )


REPORTS = {
    "gpu": gpu_report,
    "emulated": emulated_report,
    "cpu": cpu_report,
    "error": error_report,
    "interrupted": interrupted_report,
}
