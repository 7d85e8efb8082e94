"""QLoRA as the programs set it up: simulated is measured, to the byte."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from compared_steps import differences
from library_ends import needs_quantized_cpu
from simulated_steps import simulated_peaks
from tiny_models import tiny_job

from oomdoctor.worker.protocol import UnsupportedError

pytestmark = [pytest.mark.slow, needs_quantized_cpu]
VARIANTS: list[dict[str, Any]] = [
    {"quant_storage": "bfloat16"},  # of axolotl and LLaMA-Factory
    {"quant_storage": "bfloat16", "kbit_prepare": "norms"},
    {"quant_storage": "float32", "kbit_prepare": "none"},
    {"quant_storage": "bfloat16", "use_dora": True},
    {"double_quant": False, "kbit_prepare": "norms"},
    {"kbit_prepare": "none", "autocast_dtype": "bfloat16"},
]
RUNG: dict[str, Any] = {"method": "qlora", "quantization": "nf4", "sequence_length": 64}


@pytest.fixture(scope="module", autouse=True)
def _warm() -> None:
    """bitsandbytes makes tables at its first use, which later measurements do not see."""
    pytest.importorskip("bitsandbytes")
    differences(tiny_job("dense", **RUNG))


@pytest.mark.parametrize("variant", VARIANTS, ids=str)
def test_simulated_is_measured_to_the_byte(variant: dict[str, Any]) -> None:
    assert differences(tiny_job("dense", **(RUNG | variant))) == {}


@pytest.mark.parametrize(
    "variant",
    [
        {},
        {"activation_checkpointing": "full"},
        {"kbit_prepare": "none", "autocast_dtype": "bfloat16", "double_quant": False},
    ],
    ids=str,
)
def test_experts_in_4_bits_need_what_was_measured(variant: dict[str, Any]) -> None:
    pytest.importorskip("bitsandbytes.nn.parametrize")
    differences(tiny_job("moe", **RUNG, quantize_experts=True))
    assert differences(tiny_job("moe", **(RUNG | variant), quantize_experts=True)) == {}


def test_experts_in_4_bits_take_less_than_whole_ones() -> None:
    pytest.importorskip("bitsandbytes.nn.parametrize")
    job = tiny_job("moe", **RUNG, weights_dtype="bfloat16", kbit_prepare="none")
    peaks = [
        simulated_peaks(replace(job, config=replace(job.config, quantize_experts=quantized)))
        for quantized in (False, True)
    ]
    whole, small = (peak["first", "forward"] for peak in peaks)
    assert small < whole


def test_adapters_of_parameters_need_what_was_measured() -> None:
    names = ("experts.gate_up_proj", "experts.down_proj")
    rung = {"method": "lora", "lora_targets": ("q_proj",), "lora_target_parameters": names}
    assert differences(tiny_job("moe", **rung)) == {}


def test_a_parameter_that_is_not_there_is_named() -> None:
    rung = {"method": "lora", "lora_target_parameters": ("experts.up",)}
    with pytest.raises(UnsupportedError, match=r"no parameter experts\.up; such as .*down_proj"):
        simulated_peaks(tiny_job("moe", **rung))
