"""A training as a rung."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from oomdoctor.explain.training.assumed import Training, training_of
from oomdoctor.explain.training.known import Setup
from oomdoctor.records.configuration.config import TrainConfig


def training(**known: Any) -> Training:
    setup = Setup(
        {"micro_batch_size": 4, "sequence_length": 1024, "accumulation_steps": 2, **known}
    )
    return training_of(setup, {"torch_dtype": "bfloat16"})[0]


def test_a_plain_training() -> None:
    config = training().rung
    assert config == TrainConfig(micro_batch_size=4, sequence_length=1024, effective_batch_size=8)


@pytest.mark.parametrize(
    ("known", "key", "value"),
    [
        ({"activation_checkpointing": "full"}, "activation_checkpointing", "full"),
        ({"optimizer": "paged_adamw_8bit"}, "optimizer", "paged_adamw_8bit"),
        ({"loss": "liger"}, "loss", "liger"),
        ({"autocast_dtype": "float16", "weights_dtype": "float32"}, "autocast_dtype", "float16"),
        (
            {"method": "lora", "lora_targets": ("q_proj", "v_proj")},
            "lora_targets",
            ("q_proj", "v_proj"),
        ),
        ({"method": "lora"}, "lora_targets", "all-linear"),
        ({"method": "qlora"}, "quantization", "nf4"),
        ({"offload": "optimizer"}, "offload", "optimizer"),
        ({"allocator": "expandable_segments"}, "allocator", "expandable_segments"),
    ],
)
def test_a_setting_becomes_a_key(known: dict[str, Any], key: str, value: object) -> None:
    config = training(**known).rung
    assert config is not None and getattr(config, key) == value


@pytest.mark.parametrize(("method", "prepared"), [("full", "peft"), ("qlora", "norms")])
def test_what_trl_prepares_counts_only_for_quantized_models(method: str, prepared: str) -> None:
    setup = Setup({"micro_batch_size": 4, "sequence_length": 1024, "method": method})
    trained, _ = training_of(setup, {"torch_dtype": "bfloat16"}, framework="trl")
    config = trained.rung
    assert config is not None and config.kbit_prepare == prepared


@pytest.mark.parametrize(
    "known", [{"sharding": "zero3"}, {"sharding": "fsdp"}, {"optimizer": "unheard-of"}]
)
def test_what_no_rung_can_do(known: dict[str, Any]) -> None:
    assert training(**known).rung is None


CHANGES: tuple[dict[str, Any], ...] = (
    {"activation_checkpointing": "full"},
    {"loss": "liger"},
    {"offload": "optimizer"},
    {"optimizer": "adafactor", "micro_batch_size": 2},
)


@pytest.mark.parametrize("settings", CHANGES)
def test_a_change_of_a_rung_applies_to_a_training(settings: dict[str, Any]) -> None:
    """The effective batch stays: a smaller micro-batch accumulates more."""
    before, after = training().rung, training().changed(**settings).rung
    assert before is not None and after == replace(before, **settings)


def test_a_smaller_micro_batch_accumulates_more() -> None:
    assert (training().accumulation_steps, training().tokens) == (2, 4096)
    assert training().changed(micro_batch_size=1).accumulation_steps == 8


def test_an_unknown_size_stays_unknown() -> None:
    unknown = training_of(Setup({"accumulation_steps": 4, "world_size": 2}), {})[0]
    assert (unknown.micro_batch_size, unknown.sequence_length, unknown.tokens) == (None, None, 0)
    assert (unknown.accumulation_steps, unknown.rung) == (4, None)
