"""Small models on a CPU that `probe --calibrate` measured: their steps, measured and estimated."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from oomdoctor.analysis.speed.calibrated import calibration_of, cpu_facts
from oomdoctor.analysis.speed.calibration_models import calibration_models
from oomdoctor.records.configuration.config import TrainConfig
from oomdoctor.records.job.costs import Calibration
from oomdoctor.records.job.device_times import DeviceTimes
from oomdoctor.records.job.machine import GpuFacts
from oomdoctor.records.job.model import ModelSpec
from oomdoctor.records.job.result import ProbeJob
from oomdoctor.records.job.simulation import SimulationRequest, Target
from oomdoctor.worker.calibrating.calibrate import calibrate, timed_step
from oomdoctor.worker.calibrating.stopwatch import Stopwatch
from oomdoctor.worker.host import clean_slate
from oomdoctor.worker.protocol import PhaseFile, own_device
from oomdoctor.worker.simulating.simulate import simulate

STEPS_S = 8.0  # to time the steps of a model
_ROOM = 1 << 50


@dataclass(frozen=True, slots=True)
class Small:
    """A small model and its training on the CPU."""

    spec: ModelSpec
    config: TrainConfig


@dataclass(frozen=True, slots=True)
class Compared:
    """The seconds of an optimizer step; `error` is estimated / measured - 1."""

    model: str
    measured_s: float
    spread: float | None
    estimated_s: float

    @property
    def error(self) -> float:
        return self.estimated_s / self.measured_s - 1


def _small(name: str, architecture: str, task: Any, config: dict[str, Any], **rung: Any) -> Small:
    model_type = config["model_type"]
    whole = config | {"architectures": [architecture]}
    spec = ModelSpec(name, "local", architecture, model_type, task, whole)
    usual = {"micro_batch_size": 2, "effective_batch_size": 4, "weights_dtype": "float32"}
    return Small(spec, TrainConfig(**(usual | rung)))


# Other families, widths, lengths and vocabularies than those that calibration times itself.
MODELS = (
    _small(
        "smollm",
        "LlamaForCausalLM",
        "causal-lm",
        {
            "model_type": "llama",
            "hidden_size": 576,
            "intermediate_size": 1536,
            "num_hidden_layers": 6,
            "num_attention_heads": 9,
            "num_key_value_heads": 3,
            "vocab_size": 16384,
            "tie_word_embeddings": True,
        },
        sequence_length=64,
    ),
    _small(
        "neox",
        "GPTNeoXForCausalLM",
        "causal-lm",
        {
            "model_type": "gpt_neox",
            "hidden_size": 384,
            "intermediate_size": 1536,
            "num_hidden_layers": 6,
            "num_attention_heads": 6,
            "vocab_size": 12000,
        },
        sequence_length=192,
        activation_checkpointing="full",
    ),
    _small(
        "bert",
        "BertForMaskedLM",
        "masked-lm",
        {
            "model_type": "bert",
            "hidden_size": 256,
            "intermediate_size": 1024,
            "num_hidden_layers": 4,
            "num_attention_heads": 4,
            "vocab_size": 8000,
        },
        sequence_length=128,
        optimizer="adamw_torch",
    ),
)


def compared(models: Sequence[Small], seconds: float) -> Iterator[Compared]:
    """Measure this CPU for about some seconds, then each model, and estimate it."""
    times = measured_times(seconds)
    facts = cpu_facts("this CPU", times)
    factors = calibration_of(times, facts)
    for small in models:
        with clean_slate():
            limit = time.perf_counter() + STEPS_S
            watch = Stopwatch(own_device("cpu"))
            step = timed_step(_job("measure", small), PhaseFile(None), watch, limit)
        estimated = estimated_s(small, facts, factors)
        yield Compared(small.spec.id, step.seconds, step.spread, estimated)


def measured_times(seconds: float) -> DeviceTimes:
    """What `probe --calibrate` measures in its worker, here in this process."""
    spec, config = calibration_models("cpu")[0]
    job = replace(_job("calibrate", Small(spec, config)), timing_limit_s=seconds)
    with clean_slate():
        return calibrate(job, PhaseFile(None))


def estimated_s(small: Small, facts: GpuFacts, factors: Calibration) -> float:
    """The seconds of an optimizer step by a simulation."""
    size = small.config.micro_batch_size
    assert isinstance(size, int)
    target = Target("cpu", _ROOM, _ROOM, 0, facts, factors)
    request = SimulationRequest((size,), (target,), as_cuda=False)
    with clean_slate():
        job = replace(_job("simulate", small), simulation=request)
        (prediction,) = simulate(job, PhaseFile(None))
    timing = prediction.sizes[0].devices[0].timing
    assert timing is not None
    return small.config.accumulation_steps() * timing.micro_step_s + timing.optimizer_step_s


def _job(mode: Any, small: Small) -> ProbeJob:
    return ProbeJob(
        mode=mode, label="calibration", model=small.spec, config=small.config, device_type="cpu"
    )
