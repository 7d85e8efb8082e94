"""Parts of the example reports: configurations, measurements, results, a request."""

from __future__ import annotations

from dataclasses import replace

from analysis_make import request as survey_request

from oomdoctor.records.configuration.config import Recipe, Rung, TrainConfig
from oomdoctor.records.configuration.keys import label_of, usual_autocast
from oomdoctor.records.job.measurement import Breakdown, Measurement, PhaseMemory, Timing
from oomdoctor.records.job.model import ModelRef
from oomdoctor.records.job.result import ProbeResult, Try
from oomdoctor.records.report.report import SurveyRequest
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


def config(**keys: object) -> TrainConfig:
    """A configuration of the examples' ladder."""
    base = TrainConfig(sequence_length=4096, effective_batch_size=32)
    made = replace(base, **keys)  # type: ignore[arg-type]
    return (
        made
        if "autocast_dtype" in keys
        else replace(made, autocast_dtype=usual_autocast(made.method))
    )


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
        label=label or label_of(settings),
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
    return survey_request(
        model=ModelRef(model),
        recipe=Recipe("default", "From the fp32 baseline to QLoRA", rungs, "built-in"),
        device="auto",
        vram_bytes=vram,
        sequence_length=length,
        effective_batch_size=size,
        python="/usr/bin/python3",
    )
