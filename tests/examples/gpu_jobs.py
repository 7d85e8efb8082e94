"""Jobs for a real GPU: models large enough that the allocator's grain does not show."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from oomdoctor.commands.jobs.host import WorkerHost
from oomdoctor.commands.jobs.launch import launch
from oomdoctor.records.configuration.config import TrainConfig
from oomdoctor.records.job.measurement import Measurement
from oomdoctor.records.job.model import ModelSpec
from oomdoctor.records.job.result import Attempt, ProbeJob
from oomdoctor.units import GIB

UNLIMITED = 1 << 62
EMULATED = "OOMDOCTOR_EMULATED" in os.environ  # no kernel runs, so nothing is timed


def llama(layers: int, hidden: int, vocabulary: int) -> dict[str, Any]:
    """config.json of a Llama; heads of 64, half as many for keys and values, nothing tied."""
    return {
        "model_type": "llama",
        "architectures": ["LlamaForCausalLM"],
        "num_hidden_layers": layers,
        "hidden_size": hidden,
        "intermediate_size": 4 * hidden,
        "num_attention_heads": hidden // 64,
        "num_key_value_heads": hidden // 128,
        "vocab_size": vocabulary,
        "max_position_embeddings": 4096,
        "tie_word_embeddings": False,
    }


SMALL = llama(layers=8, hidden=1024, vocabulary=32_000)  # 191 M parameters
# As many heads for keys and values: with fewer, transformers asks for grouped attention, which in
# fp32 only the math kernel has.
UNGROUPED = SMALL | {"num_key_value_heads": SMALL["num_attention_heads"]}
LARGE = llama(layers=16, hidden=2048, vocabulary=32_000)  # 1.1 G parameters, most in linear layers


def job(model: dict[str, Any] = SMALL, **changes: Any) -> ProbeJob:
    """Micro-batch 2 of 2 x 512 tokens in bf16; keys of the job itself start with `job_`."""
    of_job = {n.removeprefix("job_"): v for n, v in changes.items() if n.startswith("job_")}
    of_rung = {n: v for n, v in changes.items() if not n.startswith("job_")}
    base = TrainConfig(micro_batch_size=2, sequence_length=512, effective_batch_size=2)
    return replace(
        ProbeJob(
            mode="measure",
            label="gpu-test",
            model=ModelSpec(
                id="tests/llama",
                source="local",
                architecture="LlamaForCausalLM",
                model_type="llama",
                task="causal-lm",
                config=model,
            ),
            config=replace(base, **of_rung),
            device_type="cuda",
            timed=not EMULATED,
            timing_limit_s=10.0,
        ),
        **of_job,
    )


def capped(job: ProbeJob, cap: int) -> ProbeJob:
    """The job as a survey with `--vram cap` makes it."""
    return replace(job, budget_bytes=cap)


def run(
    host: WorkerHost,
    folder: Path,
    job: ProbeJob,
    *,
    usable: int = UNLIMITED,
    on_phase: Callable[[str], None] = lambda phase: None,
) -> Attempt:
    """The job in a forked child of `host`; `folder` is made for it."""
    folder.mkdir()
    attempt, _ = launch(
        host,
        job,
        folder,
        usable_bytes=usable,
        deadline_s=280.0,
        on_phase=on_phase,
        stop=lambda: False,
    )
    return attempt


def measured(host: WorkerHost, folder: Path, job: ProbeJob) -> Measurement:
    """What the job measured; the reason as an assertion when it did not."""
    attempt = run(host, folder, job)
    assert attempt.measurement is not None, (attempt.outcome, attempt.reason, attempt.failure)
    return attempt.measurement


def room(measurement: Measurement) -> int:
    """The smallest card that could do: tensors, and what the process needs beside them."""
    assert measurement.overhead_bytes is not None
    return measurement.peak_allocated_bytes + measurement.overhead_bytes


def gib(size: int) -> str:
    """For assertion messages."""
    return f"{size / GIB:.2f} GiB"
