"""A finished survey on a GPU, with every outcome there is. Every number here is invented."""

from __future__ import annotations

from dataclasses import replace

from example_parts import VERSIONS, config, fits, measurement, request, result

from oomdoctor.records.job.machine import GpuProcess, Machine
from oomdoctor.records.job.measurement import OomEvent, Timing
from oomdoctor.records.job.result import Failure, PredictedPeak, Try
from oomdoctor.records.report.report import SCHEMA, Budget, ModelFacts, Picks, Report, Tool
from oomdoctor.records.report.warnings import MEMORY_NOT_FREE, warning
from oomdoctor.units import GIB, MIB, format_bytes

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
            mfu=None,
            speed_state="not_settled",
            notes=("speed not settled: only 1 timed step",),
        ),
        result(
            "lora-r16",
            config(method="lora"),
            outcome="host_oom",
            micro_batch_size=1,
            gradient_accumulation_steps=32,
            reason="the kernel killed the worker: host memory ran out while it held 61.2 GiB",
        ),
        result(
            "lora-r16+ckpt+flash2",
            replace(lora, attention="flash_attention_2"),
            outcome="unsupported",
            reason="flash-attn is not installed: pip install flash-attn",
        ),
        result(
            "lora-r16+ckpt+eager",
            replace(lora, attention="eager"),
            outcome="failed",
            micro_batch_size=1,
            gradient_accumulation_steps=32,
            failure=Failure(
                "exception",
                "RuntimeError: expected scalar type BFloat16 but found Float; the adapters were "
                "left in float32 by this version of peft, and autocast is off in this one",
                exit_code=1,
                last_phase="forward",
                log_tail=_LOG,
            ),
            elapsed_s=6.0,
        ),
        result(
            "lora-r16+ckpt+lion8bit",
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
            "lora-r16+ckpt+compile",
            replace(lora, compile=True),
            outcome="timed_out",
            reason="no end after 10 min 00 s",
        ),
    )
    ranking = tuple(results[i].key for i in (2, 3))
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
            results[4].key: "not ranked: its speed did not settle",
        },
        picks=Picks(full=None, lora=ranking[0], qlora=ranking[1]),
        next_commands=("oomdoctor show", "oomdoctor probe meta-llama/Llama-3.1-8B --recipe qlora"),
        warnings=(warning(MEMORY_NOT_FREE, missing=format_bytes(round(1.1 * GIB))),),
        errors=(),
    )
