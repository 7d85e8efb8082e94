"""The dtype of adapters: what a rung has without a word, and what cannot be named."""

from __future__ import annotations

from typing import Any

import pytest

from oomdoctor.analysis.memory.closed_form import trained_bytes_of
from oomdoctor.records.configuration.adapters import kept_dtype, saved_dtype, without_usual_dtype
from oomdoctor.records.configuration.config import TrainConfig
from oomdoctor.records.configuration.faults import config_faults
from oomdoctor.records.configuration.keys import label_of

LORA: dict[str, Any] = {"method": "lora"}
QLORA: dict[str, Any] = {"method": "qlora", "quantization": "nf4"}
ZERO: dict[str, Any] = {"world_size": 2, "effective_batch_size": 2, "micro_batch_size": 1}


@pytest.mark.parametrize(
    ("values", "adapters", "saved"),
    [
        (LORA, "float32", "bfloat16"),
        (QLORA, "float32", "float32"),  # peft's preparation casts what is not quantized
        ({**QLORA, "kbit_prepare": "none"}, "float32", "bfloat16"),
        ({**QLORA, "objective": "dpo"}, "bfloat16", "bfloat16"),
        ({**LORA, "objective": "dpo", "weights_dtype": "float32"}, "float32", "float32"),
        ({**LORA, **ZERO, "sharding": "zero2"}, "bfloat16", "bfloat16"),
        ({**LORA, **ZERO, "sharding": "zero1", "weights_dtype": "float32"}, "float32", "float32"),
        ({**LORA, **ZERO, "sharding": "zero3"}, "float32", "bfloat16"),
        ({**LORA, "adapter_dtype": "bfloat16"}, "bfloat16", "bfloat16"),
        ({**LORA, "adapter_dtype": "float32"}, "float32", "float32"),
    ],
)
def test_what_is_trained_has_a_dtype(values: dict[str, Any], adapters: str, saved: str) -> None:
    config = TrainConfig(**values)
    assert (kept_dtype(config), saved_dtype(config)) == (adapters, saved)
    assert trained_bytes_of(config) == {"float32": 4, "bfloat16": 2}[adapters]


@pytest.mark.parametrize(
    ("values", "kept"),
    [
        ({**LORA, "adapter_dtype": "float32"}, "default"),
        ({**LORA, "adapter_dtype": "bfloat16"}, "bfloat16"),
        # modules_to_save would be in bfloat16 otherwise
        ({**LORA, "adapter_dtype": "float32", "modules_to_save": ("lm_head",)}, "float32"),
        ({**QLORA, "objective": "dpo", "adapter_dtype": "bfloat16"}, "default"),
        ({**QLORA, "objective": "dpo", "adapter_dtype": "float32"}, "float32"),
        ({"method": "full", "adapter_dtype": "float32"}, "default"),
    ],
)
def test_a_usual_dtype_needs_no_name(values: dict[str, Any], kept: str) -> None:
    assert without_usual_dtype(TrainConfig(**values)).adapter_dtype == kept


@pytest.mark.parametrize(
    ("values", "told"),
    [
        ({"method": "full"}, 'needs method "lora" or "qlora"'),
        ({**LORA, **ZERO, "sharding": "zero1", "weights_dtype": "float32"}, "casts adapters to"),
        ({**LORA, "weights_dtype": "float16", "autocast_dtype": "float16"}, "use float32"),
        ({**LORA, "library": "unsloth"}, 'library "unsloth" needs default, not bfloat16'),
    ],
)
def test_contradictions(values: dict[str, Any], told: str) -> None:
    faults = config_faults(TrainConfig(**values, adapter_dtype="bfloat16"))
    assert [key for key, _ in faults] == ["adapter_dtype"]
    assert told in faults[0][1]


def test_what_the_engine_allows_can_be_named() -> None:
    for sharding in ("zero2", "zero3"):
        config = TrainConfig(**LORA, **ZERO, sharding=sharding, adapter_dtype="bfloat16")
        assert config_faults(config) == []
    assert config_faults(TrainConfig(**QLORA, adapter_dtype="float16")) == []


def test_the_label_names_it() -> None:
    assert label_of(TrainConfig(**QLORA, adapter_dtype="bfloat16")) == (
        "qlora-nf4-r16-no-amp+adapters-bf16"
    )
