"""The peak of a training step in closed form, against what `plan` predicts for it."""

from __future__ import annotations

from typing import Any

import pytest

from oomdoctor.explain.memory.model_sizes import sizes_of
from oomdoctor.explain.memory.moments import peak
from oomdoctor.explain.training.assumed import training_of
from oomdoctor.explain.training.known import Setup
from oomdoctor.records.job.model import ModelRef
from oomdoctor.system.models.hub import resolve
from oomdoctor.units import GIB

LLAMA, QWEN = "meta-llama/Llama-3.1-8B", "Qwen/Qwen2.5-0.5B"
ADAPTED = {"autocast_dtype": "bfloat16"}
# Peaks of allocated GiB by `plan` with transformers 5.23 and torch 2.13, micro-batch 2 of 2048
# tokens in bfloat16 (GPT-2: 8 of 1024), and the phase of the peak.
PLANNED: list[tuple[str, dict[str, Any], float, str]] = [
    (LLAMA, {}, 75.40, "backward"),
    (LLAMA, {"accumulation_steps": 2}, 90.36, "backward"),
    (LLAMA, {"activation_checkpointing": "full"}, 59.94, "optimizer"),
    (LLAMA, {"activation_checkpointing": "full", "optimizer": "adamw_torch"}, 74.80, "optimizer"),
    (LLAMA, {"weights_dtype": "float32", **ADAPTED}, 139.29, "backward"),
    (LLAMA, {"attention": "eager"}, 124.89, "backward"),
    (LLAMA, {"method": "lora", **ADAPTED}, 47.94, "backward"),
    (LLAMA, {"method": "lora", "activation_checkpointing": "full", **ADAPTED}, 22.38, "backward"),
    (LLAMA, {"method": "qlora", **ADAPTED}, 50.73, "backward"),
    (LLAMA, {"method": "qlora", "activation_checkpointing": "full", **ADAPTED}, 16.67, "backward"),
    (QWEN, {}, 15.03, "backward"),
    ("Qwen/Qwen3-8B", {}, 82.44, "backward"),
    ("Qwen/Qwen3-8B", {"method": "lora", **ADAPTED}, 53.25, "backward"),
    ("google/gemma-2-9b", {}, 151.77, "backward"),
    ("google/gemma-2-9b", {"method": "lora", **ADAPTED}, 112.20, "backward"),
    ("microsoft/phi-4", {}, 128.66, "backward"),
    ("openai-community/gpt2", {}, 9.45, "backward"),
    ("openai-community/gpt2", {"method": "lora", **ADAPTED}, 11.09, "backward"),
]


@pytest.mark.parametrize(("model", "settings", "planned", "phase"), PLANNED)
def test_the_peak_is_that_of_the_plan(
    model: str, settings: dict[str, Any], planned: float, phase: str
) -> None:
    spec = resolve(ModelRef(model, source="catalogue"))
    sizes = sizes_of(spec.config, spec.parameters)
    assert sizes is not None
    batch, length = (8, 1024) if "gpt2" in model else (2, 2048)
    known: dict[str, Any] = {"weights_dtype": "bfloat16", **settings}
    setup = Setup({"micro_batch_size": batch, "sequence_length": length, **known})
    training, _ = training_of(setup, spec.config)
    moment = peak(sizes, training)
    assert moment.size_bytes / GIB == pytest.approx(planned, rel=0.09)
    assert phase in moment.phases


def test_trl_leaves_the_embeddings_in_16_bits() -> None:
    spec = resolve(ModelRef(LLAMA, source="catalogue"))
    sizes = sizes_of(spec.config, spec.parameters)
    assert sizes is not None
    setup = Setup(
        {
            "micro_batch_size": 2,
            "sequence_length": 2048,
            "method": "qlora",
            "activation_checkpointing": "full",
            "autocast_dtype": "bfloat16",
            "weights_dtype": "bfloat16",
        }
    )
    training, _ = training_of(setup, spec.config, "trl")
    assert peak(sizes, training).size_bytes / GIB == pytest.approx(13.70, rel=0.08)
    assert training == training_of(setup, spec.config)[0].changed(kbit_prepare="norms")
