"""QLoRA as the programs set it up: simulated is measured, to the byte."""

from __future__ import annotations

from typing import Any

import pytest
from compared_steps import differences
from library_ends import needs_quantized_cpu
from tiny_models import tiny_job

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
