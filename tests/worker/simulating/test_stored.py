"""LoRA on quantized checkpoints as they are stored, simulated."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import transformers
from packaging.version import Version
from simulated_steps import simulated_peaks
from tiny_models import tiny_job

from oomdoctor.records.job.result import ProbeJob
from oomdoctor.worker.protocol import UnsupportedError
from oomdoctor.worker.training.inspection import inspect_model

pytestmark = pytest.mark.slow
fp8 = pytest.importorskip("transformers.integrations.finegrained_fp8")
needs_backward = pytest.mark.skipif(
    not hasattr(fp8, "FP8LinearFunction"), reason="trains no FP8 weights"
)
needs_stacked = pytest.mark.skipif(
    Version(transformers.__version__).major < 5, reason="has the experts as layers of their own"
)
FP8 = {"quant_method": "fp8", "activation_scheme": "dynamic", "weight_block_size": [16, 16]}
GPTQ = {"quant_method": "gptq", "bits": 4, "group_size": 32, "sym": True, "desc_act": False}
AWQ = {"quant_method": "awq", "bits": 4, "group_size": 32, "zero_point": True, "version": "gemm"}
LORA = {"method": "lora", "weights_dtype": "bfloat16", "autocast_dtype": "bfloat16"}
STORED = {**LORA, "method": "qlora", "quantization": "checkpoint"}
LINEAR = 2 * (4 * 64 * 64 + 3 * 64 * 128)  # parameters of the tiny model's linear layers

MODULES = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
EXPERTS = 2 * 4 * 3 * 64 * 128


def _job(settings: dict[str, Any], kind: str = "dense", **rung: Any) -> ProbeJob:
    job = tiny_job(kind, **(STORED | rung))
    return replace(job, model=replace(job.model, quantized=settings))


def _weights(job: ProbeJob) -> int:
    """The peak of the optimizer's step: the weights, and what adapters need in either job."""
    return simulated_peaks(job)["first", "optimizer"]


@pytest.mark.parametrize(
    ("settings", "saved"),
    [
        # 1 byte a parameter and 4 for each block of 16 x 16, instead of 2.
        pytest.param(FP8, LINEAR * (2 - 1 - 4 / 256), id="fp8", marks=needs_backward),
        # 1/2 byte, and for each group of 32 a scale of 2 bytes and a zero of 1/2; g_idx besides.
        pytest.param(GPTQ, LINEAR * (2 - 1 / 2 - 2.5 / 32) - 2 * 4 * (6 * 64 + 128), id="gptq"),
        pytest.param(AWQ, LINEAR * (2 - 1 / 2 - 2.5 / 32), id="awq"),
    ],
)
def test_weights_take_what_the_file_has(settings: dict[str, Any], saved: float) -> None:
    whole = _weights(tiny_job("dense", **LORA))
    assert whole - _weights(_job(settings)) == pytest.approx(saved, rel=0.02)


def test_gptq_keeps_dequantized_weights_for_the_backward_pass() -> None:
    peaks = [simulated_peaks(_job(settings))["first", "forward"] for settings in (GPTQ, AWQ)]
    assert peaks[0] - peaks[1] > LINEAR  # of 2 * LINEAR bytes


@needs_backward
def test_experts_are_stored_in_fp8() -> None:
    plain = _weights(tiny_job("moe", **LORA, lora_targets=("q_proj",)))
    stored = _weights(_job(FP8, "moe", lora_targets=("q_proj",)))
    assert plain - stored > 0.9 * EXPERTS  # a byte less for each parameter


@pytest.mark.parametrize(
    ("settings", "kind", "reason"),
    [
        (None, "dense", "is not quantized"),
        ({"quant_method": "mxfp4"}, "dense", r"Mxfp4Config\(dequantize=True\)"),
        ({"quant_method": "later"}, "dense", "a later checkpoint is not trained"),
        pytest.param(GPTQ, "moe", "keeps the experts in one tensor", marks=needs_stacked),
    ],
)
def test_the_reason_of_a_refusal(settings: Any, kind: str, reason: str) -> None:
    with pytest.raises(UnsupportedError, match=reason):
        simulated_peaks(_job(settings, kind))


@pytest.mark.parametrize(("settings", "named"), [(None, False), (FP8, False), (GPTQ, True)])
def test_layers_that_peft_does_not_take_for_linear_are_named(settings: Any, named: bool) -> None:
    targets = inspect_model(replace(_job(settings), mode="inspect")).lora_targets
    assert targets == (tuple(sorted(MODULES)) if named else ())
