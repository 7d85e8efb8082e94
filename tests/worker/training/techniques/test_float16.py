"""LoRA on a float16 base with float16 autocast: the adapters stay in float32."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from compared_steps import begun
from simulated_targets import target
from tiny_models import tiny_job

from oomdoctor.records.job.result import ProbeJob
from oomdoctor.records.job.simulation import PredictedSize, SimulationRequest
from oomdoctor.worker.protocol import PhaseFile, UnsupportedError
from oomdoctor.worker.simulating.simulate import simulate
from oomdoctor.worker.training.build import build
from oomdoctor.worker.training.techniques.scaler import check_scalable

HALF = {"weights_dtype": "float16", "autocast_dtype": "float16", "job_device_type": "cuda"}
BF16 = {"weights_dtype": "bfloat16", "autocast_dtype": "bfloat16", "job_device_type": "cuda"}
LORA = {"method": "lora", "lora_rank": 4}
QLORA = {"method": "qlora", "quantization": "nf4", "lora_rank": 4}


def simulated(job: ProbeJob, sizes: tuple[int, ...] = (2,)) -> dict[int, PredictedSize]:
    request = SimulationRequest(sizes, (target("L4"),), ())
    (prediction,) = simulate(replace(job, mode="simulate", simulation=request), PhaseFile(None))
    return {size.micro_batch_size: size for size in prediction.sizes}


def test_adapters_on_a_float16_base_are_float32() -> None:
    job = tiny_job("dense", weights_dtype="float16", **LORA)
    trained = [p for p in build(job, torch.device("cpu")).model.parameters() if p.requires_grad]
    assert trained
    assert {parameter.dtype for parameter in trained} == {torch.float32}


@pytest.mark.parametrize("method", [LORA, QLORA])
def test_float16_takes_as_much_as_bfloat16_and_the_scaler(method: dict[str, Any]) -> None:
    half = simulated(tiny_job("dense", **method, **HALF))[2].measurement
    brain = simulated(tiny_job("dense", **method, **BF16))[2].measurement
    assert half.breakdown is not None and brain.breakdown is not None
    trained = half.trainable_parameters
    assert trained == brain.trainable_parameters
    assert half.breakdown.optimizer_bytes >= 8 * trained  # two moments in float32
    assert half.breakdown.gradients_bytes == brain.breakdown.gradients_bytes == 4 * trained
    assert 0 <= half.peak_allocated_bytes - brain.peak_allocated_bytes <= 16 * 512


@pytest.mark.parametrize("method", [LORA, QLORA])
def test_every_size_is_predicted_as_if_it_were_alone(method: dict[str, Any]) -> None:
    job = tiny_job("dense", effective_batch_size=8, **method, **HALF)
    together = simulated(job, (1, 2, 4))
    for size, found in together.items():
        alone = simulated(job, (size,))[size].measurement
        assert found.measurement.peak_allocated_bytes == alone.peak_allocated_bytes, size


def test_what_peft_trains_in_float16_beside_the_adapters_is_unsupported() -> None:
    job = tiny_job("classifier", weights_dtype="float16", **LORA)
    setup = build(job, torch.device("cpu"))
    with pytest.raises(UnsupportedError, match=r"score.*is trained in float16"):
        check_scalable(begun(job, setup))
    with pytest.raises(UnsupportedError, match="cannot unscale"):
        simulated(tiny_job("classifier", **LORA, **HALF))
