"""Reports to render. Every number here is invented: made to look plausible, measured by nobody."""

from __future__ import annotations

from dataclasses import replace

from oomdoctor.records.config import Recipe, Rung, TrainConfig
from oomdoctor.records.facts.warnings import memory_not_free
from oomdoctor.records.machine import GpuProcess, Machine
from oomdoctor.records.measurement import Breakdown, Measurement, OomEvent, PhaseMemory, Timing
from oomdoctor.records.model import ModelRef
from oomdoctor.records.report import (
    SCHEMA,
    Budget,
    Fault,
    ModelFacts,
    Picks,
    Report,
    SurveyRequest,
    Tool,
)
from oomdoctor.records.result import Failure, PredictedPeak, ProbeResult, Try
from oomdoctor.units import GIB, MIB

VERSIONS = {
    "python": "3.12.9",
    "torch": "2.7.1+cu128",
    "transformers": "4.55.0",
    "peft": "0.17.0",
    "accelerate": "1.10.0",
    "bitsandbytes": "0.47.0",
    "flash-attn": None,
}
_OOM_TEXT = (
    "CUDA out of memory. Tried to allocate 1002.00 MiB. GPU 0 has a total capacity of 24.00 GiB of "
    "which 311.00 MiB is free."
)
_LOG = (
    "\x1b[33mLoading\x1b[0m  10%|#         |\rLoading 100%|##########|\n"
    "Traceback (most recent call last):\n"
    '  File "modeling_llama.py", line 251, in forward\n'
    "    attn_output = self.o_proj(attn_output)\n"
    "RuntimeError: expected scalar type BFloat16 but found Float\n\n"
)


def config(**keys: object) -> TrainConfig:
    """A configuration of the examples' ladder."""
    base = TrainConfig(sequence_length=4096, effective_batch_size=32)
    return replace(base, **keys)  # type: ignore[arg-type]


def measurement(peak: int, **keys: object) -> Measurement:
    """A GPU measurement whose peak use of the device is `peak`."""
    allocated, reserved = peak - 1200 * MIB, peak - 600 * MIB
    phases = {
        "load": PhaseMemory(allocated // 2, reserved // 2),
        "forward": PhaseMemory(allocated - 512 * MIB, reserved),
        "backward": PhaseMemory(allocated, reserved),
        "optimizer": PhaseMemory(allocated // 4 * 3, reserved),
    }
    steps = {name: phase for name, phase in phases.items() if name != "load"}
    base = Measurement(
        peak_allocated_bytes=allocated,
        peak_reserved_bytes=reserved,
        peak_device_bytes=peak,
        overhead_bytes=600 * MIB,
        peak_rss_bytes=3 * GIB,
        peak_phase="backward",
        phases=phases,
        first_step=steps,
        steady=steps,
        breakdown=Breakdown(
            weights_bytes=allocated // 2,
            gradients_bytes=allocated // 20,
            optimizer_bytes=allocated // 10,
            activations_bytes=allocated // 4,
            logits_bytes=allocated // 20,
            other_bytes=allocated
            - allocated // 2
            - allocated // 20 * 2
            - allocated // 10
            - allocated // 4,
        ),
        allocation_retries=0,
        managed_bytes=0,
        timing=Timing(0.4213, 0.0042, 1.9121, 0.0061, 3.1, 2, 10, "spread"),
        attention_kernel="flash",
        trainable_parameters=41_943_040,
        parameters=8_072_204_288,
        losses=(12.31, 12.28, 12.19),
        skipped_optimizer_steps=0,
        notes=(),
        versions=VERSIONS,
        memory_stats={"num_alloc_retries": 0, "allocated_bytes.all.peak": allocated},
    )
    return replace(base, **keys)  # type: ignore[arg-type]


def result(label: str | None, settings: TrainConfig, **keys: object) -> ProbeResult:
    """A result with nothing known but its configuration and what `keys` say."""
    base = ProbeResult(
        key=settings.key(),
        label=label or settings.label(),
        config=settings,
        outcome="fits",
        evidence="measured",
        micro_batch_size=None,
        gradient_accumulation_steps=None,
        effective_batch_size=settings.effective_batch_size,
        sequence_length=settings.sequence_length,
        peak_allocated_bytes=None,
        peak_reserved_bytes=None,
        peak_device_bytes=None,
        peak_rss_bytes=None,
        peak_phase=None,
        phases={},
        breakdown=None,
        tokens_per_s=None,
        tokens_per_s_spread=None,
        samples_per_s=None,
        micro_step_s=None,
        optimizer_step_s=None,
        tokens_time_s=None,
        mfu=None,
        trainable_parameters=None,
        attention_kernel=None,
        max_micro_batch_size=None,
        fastest_micro_batch_size=None,
        missed_by_bytes=None,
        measurement=None,
        tries=(),
        predicted=None,
        oom=None,
        failure=None,
        reason=None,
        notes=(),
        elapsed_s=0.0,
    )
    return replace(base, **keys)  # type: ignore[arg-type]


def fits(
    settings: TrainConfig, size: int, peak: int, speed: float, spread: float | None, **keys: object
) -> ProbeResult:
    """A result that fits at micro-batch `size`; `measured` may replace the measurement."""
    measured = keys.pop("measured", None) or measurement(peak)
    assert isinstance(measured, Measurement)
    chosen = settings.with_micro_batch(size)
    base = result(
        None,
        chosen,
        micro_batch_size=size,
        gradient_accumulation_steps=settings.effective_batch_size // size,
        peak_allocated_bytes=measured.peak_allocated_bytes,
        peak_reserved_bytes=measured.peak_reserved_bytes,
        peak_device_bytes=measured.peak_device_bytes,
        peak_rss_bytes=measured.peak_rss_bytes,
        peak_phase=measured.peak_phase,
        phases=measured.phases,
        breakdown=measured.breakdown,
        tokens_per_s=speed,
        tokens_per_s_spread=spread,
        samples_per_s=speed / settings.sequence_length,
        micro_step_s=0.4213,
        optimizer_step_s=1.9121,
        tokens_time_s=1_000_000 / speed,
        mfu=0.413,
        trainable_parameters=measured.trainable_parameters,
        attention_kernel=measured.attention_kernel,
        max_micro_batch_size=size,
        fastest_micro_batch_size=size,
        measurement=measured,
        tries=(Try(size, "fits", peak, speed, None),),
        elapsed_s=31.4,
    )
    return replace(base, **keys)  # type: ignore[arg-type]


def gpu_report() -> Report:
    """A finished survey on a large card capped to 24 GiB, with every outcome there is."""
    lora = config(method="lora", activation_checkpointing="full")
    qlora = config(
        method="qlora",
        quantization="nf4",
        activation_checkpointing="full",
        optimizer="paged_adamw_8bit",
    )
    results = (
        result(
            "full-fp32",
            config(weights_dtype="float32"),
            outcome="skipped",
            evidence="predicted",
            missed_by_bytes=round(96.1 * GIB),
            reason="weights 8,030,261,248 x 4 bytes = 29.9 GiB + gradients 29.9 GiB + optimizer "
            "states 59.8 GiB = 120 GiB is more than 23.5 GiB usable",
        ),
        result(
            "full-bf16",
            config(),
            outcome="oom",
            micro_batch_size=1,
            gradient_accumulation_steps=32,
            peak_device_bytes=round(23.7 * GIB),
            peak_phase="backward",
            missed_by_bytes=round(21.3 * GIB),
            oom=OomEvent(
                _OOM_TEXT, "cuda_caching_allocator", "backward", requested_bytes=1002 * MIB
            ),
            tries=(Try(1, "oom", None, None, _OOM_TEXT),),
            predicted=PredictedPeak(44 * GIB, 45 * GIB, None),
            elapsed_s=8.2,
        ),
        fits(
            lora,
            4,
            round(22.9 * GIB),
            5312.0,
            0.0061,
            max_micro_batch_size=8,
            tries=(
                Try(1, "fits", 18 * GIB, 4711.0, None),
                Try(4, "fits", round(22.9 * GIB), 5312.0, None),
                Try(8, "fits", round(23.4 * GIB), 5240.0, None),
                Try(16, "oom", None, None, _OOM_TEXT),
            ),
            measured=measurement(round(22.9 * GIB), allocation_retries=3),
        ),
        fits(
            qlora,
            8,
            round(14.2 * GIB),
            3105.0,
            0.012,
            measured=measurement(
                round(14.2 * GIB), managed_bytes=round(1.2 * GIB), peak_phase="optimizer"
            ),
            notes=("kbit_prepare upcasts the rest to fp32",),
        ),
        fits(
            config(method="qlora", quantization="int8", activation_checkpointing="full"),
            2,
            round(19.1 * GIB),
            1204.0,
            None,
            measured=measurement(
                round(19.1 * GIB),
                attention_kernel="efficient",
                timing=Timing(1.1, None, 2.2, None, 4.0, 1, 1, "time_limit"),
            ),
        ),
        result(
            "lora-r16-bf16",
            config(method="lora"),
            outcome="host_oom",
            micro_batch_size=1,
            gradient_accumulation_steps=32,
            reason="the kernel killed the worker: host memory ran out while it held 61.2 GiB",
        ),
        result(
            "lora-r16-bf16+ckpt+flash2",
            replace(lora, attention="flash_attention_2"),
            outcome="unsupported",
            reason="flash-attn is not installed: pip install flash-attn",
        ),
        result(
            "lora-r16-bf16+ckpt+eager",
            replace(lora, attention="eager"),
            outcome="failed",
            micro_batch_size=1,
            gradient_accumulation_steps=32,
            failure=Failure(
                "exception",
                "RuntimeError: expected scalar type BFloat16 but found Float; the adapters were "
                "left in float32 by this version of peft, and autocast is off in this rung",
                exit_code=1,
                last_phase="forward",
                log_tail=_LOG,
            ),
            elapsed_s=6.0,
        ),
        result(
            "lora-r16-bf16+ckpt+lion8bit",
            replace(lora, optimizer="lion_8bit"),
            outcome="crashed",
            failure=Failure(
                "killed",
                "the worker ended without a reply",
                signal="SIGSEGV",
                last_phase="optimizer",
                log_tail="Fatal Python error: Segmentation fault\n",
            ),
        ),
        result(
            "lora-r16-bf16+ckpt+compile",
            replace(lora, compile=True),
            outcome="timed_out",
            reason="no end after 10 min 00 s",
        ),
    )
    ranking = tuple(results[i].key for i in (2, 3, 4))
    return Report(
        schema=SCHEMA,
        command="probe",
        status="ok",
        exit_code=0,
        tool=Tool("oomdoctor", "0.1.0"),
        started_at="2026-01-02T03:04:05+00:00",
        elapsed_s=412.7,
        run_dir="/home/ada/.local/state/oomdoctor/runs/20260102-030405-Llama-3.1-8B-x7",
        request=request("meta-llama/Llama-3.1-8B", results, vram=24 * GIB),
        machine=Machine(
            device="cuda",
            gpu_name="NVIDIA H200",
            gpu_uuid="GPU-00000000-0000-0000-0000-000000000001",
            total_bytes=round(139.8 * GIB),
            compute_capability="9.0",
            driver_version="570.86.15",
            cpu_name="INTEL(R) XEON(R) PLATINUM 8568Y+",
            cpu_count=16,
            memory_bytes=128 * GIB,
            memory_available_bytes=120 * GIB,
            hostname="node1",
            slurm_job_id="4711",
            other_processes=(
                GpuProcess(2214, "python3", round(1.5 * GIB)),
                GpuProcess(2291, None, None),
            ),
            versions=VERSIONS,
        ),
        model=ModelFacts(
            id="meta-llama/Llama-3.1-8B",
            source="catalogue",
            architecture="LlamaForCausalLM",
            model_type="llama",
            task="causal-lm",
            parameters=8_030_261_248,
            revision=None,
            weights="synthetic",
            mixture_of_experts=False,
        ),
        budget=Budget(
            total_bytes=round(139.8 * GIB),
            cap_bytes=24 * GIB,
            free_bytes=round(137.9 * GIB),
            headroom_bytes=492 * MIB,
            usable_bytes=24 * GIB - 492 * MIB,
        ),
        results=results,
        ranking=ranking,
        ranking_reasons={
            ranking[0]: "the most tokens/s",
            ranking[1]: "58% of the speed of place 1",
        },
        picks=Picks(full=None, lora=ranking[0], qlora=ranking[1]),
        next_commands=("oomdoctor show", "oomdoctor probe meta-llama/Llama-3.1-8B --recipe qlora"),
        warnings=(memory_not_free(round(1.1 * GIB)),),
        errors=(),
    )


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


def request(
    model: str,
    results: tuple[ProbeResult, ...],
    *,
    vram: int | None,
    length: int = 4096,
    size: int = 32,
) -> SurveyRequest:
    """A request whose recipe has the rungs of the results."""
    rungs = tuple(Rung(r.label, r.config.with_micro_batch("auto")) for r in results)
    return SurveyRequest(
        model=ModelRef(model),
        recipe=Recipe("default", "From the fp32 baseline to QLoRA", rungs, "built-in"),
        device="auto",
        vram_bytes=vram,
        headroom=0.02,
        sequence_length=length,
        effective_batch_size=size,
        micro_batch_size=None,
        weights="synthetic",
        evaluate=False,
        eval_batch_size=8,
        rank_by="throughput",
        tokens=1_000_000,
        time_limit_s=None,
        rung_limit_s=600.0,
        python="/usr/bin/python3",
        seed=0,
    )


REPORTS = {
    "gpu": gpu_report,
    "cpu": cpu_report,
    "error": error_report,
    "interrupted": interrupted_report,
}
