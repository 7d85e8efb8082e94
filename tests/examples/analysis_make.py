"""Records for the tests of `analysis`, each with only what a test cares about spelled out."""

from __future__ import annotations

import sys
from typing import Any

from oomdoctor.records.configuration.config import Recipe, Rung, TrainConfig
from oomdoctor.records.configuration.keys import label_of
from oomdoctor.records.job.machine import GpuFacts
from oomdoctor.records.job.measurement import Measurement, OomEvent, Timing
from oomdoctor.records.job.model import ModelRef, ParameterCounts
from oomdoctor.records.job.result import Attempt, Failure, ProbeResult
from oomdoctor.records.report.report import SurveyRequest

GIB = 1024**3
COUNTS = ParameterCounts(
    total=1_000_000_000, linear=800_000_000, embedding=199_000_000, rest=1_000_000, buffers_bytes=0
)
MODEL_CONFIG = {
    "num_hidden_layers": 20,
    "hidden_size": 2000,
    "num_attention_heads": 20,
    "vocab_size": 50_000,
}


def rung(label: str | None = None, **values: Any) -> Rung:
    config = TrainConfig(**values)
    return Rung(label or label_of(config), config)


def timing(micro: float = 0.5, optimizer: float = 0.1, spread: float | None = 0.01) -> Timing:
    return Timing(micro, spread, optimizer, spread, 1.0, 1, 3, "spread")


def measurement(peak: int = GIB, *, times: Timing | None = None, **values: Any) -> Measurement:
    filled: dict[str, Any] = {
        "peak_allocated_bytes": peak - 1000,
        "peak_reserved_bytes": peak - 500,
        "peak_device_bytes": peak,
        "overhead_bytes": 500,
        "peak_rss_bytes": None,
        "peak_phase": "backward",
        "phases": {},
        "first_step": {},
        "steady": {},
        "breakdown": None,
        "allocation_retries": 0,
        "managed_bytes": 0,
        "timing": times or timing(),
        "attention_kernel": "flash",
        "trainable_parameters": 1_000,
        "parameters": COUNTS.total,
        "losses": (),
        "skipped_optimizer_steps": 0,
        "notes": (),
        "versions": {},
    }
    return Measurement(**{**filled, **values})


def fit(config: TrainConfig, size: int, peak: int = GIB, **values: Any) -> Attempt:
    measured = measurement(peak, **values)
    return Attempt(config.with_micro_batch(size), "fits", measured, None, None, None, 2.0)


def oom_event(**values: Any) -> OomEvent:
    return OomEvent("out of memory", "cuda_caching_allocator", "backward", **values)


def ran_out(config: TrainConfig, size: int = 1, event: OomEvent | None = None) -> Attempt:
    found = event or oom_event()
    return Attempt(config.with_micro_batch(size), "oom", None, found, None, None, 1.0)


def ended(config: TrainConfig, outcome: Any, size: int = 1) -> Attempt:
    failure = Failure(code=outcome, message=f"it {outcome}")
    return Attempt(config.with_micro_batch(size), outcome, None, None, failure, None, 1.0)


def request(*rungs: Rung, **values: Any) -> SurveyRequest:
    filled: dict[str, Any] = {
        "model": ModelRef("some/model"),
        "recipe": Recipe("default", "", rungs, "built-in"),
        "device": "auto",
        "vram_bytes": None,
        "headroom": 0.02,
        "sequence_length": 2048,
        "effective_batch_size": 16,
        "micro_batch_size": None,
        "weights": "synthetic",
        "evaluate": False,
        "eval_batch_size": 8,
        "rank_by": "throughput",
        "tokens": 1_000_000,
        "time_limit_s": None,
        "rung_limit_s": 600.0,
        "python": sys.executable,
        "predict": True,
        "seed": 0,
    }
    return SurveyRequest(**{**filled, **values})


def gpu_facts(**rates: float | None) -> GpuFacts:
    filled: dict[str, float | None] = dict.fromkeys(
        ("fp32_flops", "tf32_flops", "fp16_flops", "bf16_flops", "fp8_flops")
    )
    return GpuFacts(
        "Card", (), "Maker", "Arch", "9.0", GIB, None, None, **{**filled, **rates}, notes=""
    )


def result(key: str, outcome: Any = "fits", **values: Any) -> ProbeResult:
    filled: dict[str, Any] = dict.fromkeys(ProbeResult.__slots__)
    config = TrainConfig(method=values.pop("method", "full"))
    filled |= {
        "key": key,
        "label": key,
        "config": config,
        "outcome": outcome,
        "evidence": "measured",
        "effective_batch_size": 16,
        "sequence_length": 2048,
        "phases": {},
        "tries": (),
        "notes": (),
        "elapsed_s": 1.0,
    }
    return ProbeResult(**{**filled, **values})
