"""A training as a rung."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from oomdoctor.explain.training.assumed import Training, training_of
from oomdoctor.explain.training.known import Setup
from oomdoctor.explain.training.rung import rung_changes, rung_of
from oomdoctor.records.config import TrainConfig


def training(**known: Any) -> tuple[Training, Setup]:
    setup = Setup(micro_batch_size=4, sequence_length=1024, accumulation_steps=2, **known)
    return training_of(setup, {"torch_dtype": "bfloat16"})[0], setup


def test_a_plain_training() -> None:
    config = rung_of(*training())
    assert config == TrainConfig(micro_batch_size=4, sequence_length=1024, effective_batch_size=8)


@pytest.mark.parametrize(
    ("known", "key", "value"),
    [
        ({"checkpointing": True}, "activation_checkpointing", "full"),
        ({"optimizer": "paged_adamw_8bit"}, "optimizer", "paged_adamw_8bit"),
        ({"liger": True}, "loss", "liger"),
        ({"autocast_dtype": "float16", "weights_dtype": "float32"}, "autocast_dtype", "float16"),
        ({"method": "lora", "lora_targets": ("q", "v")}, "lora_targets", ("q_proj", "v_proj")),
        ({"method": "lora"}, "lora_targets", "all-linear"),
        ({"method": "qlora"}, "quantization", "nf4"),
        ({"offload_optimizer": True}, "offload", "optimizer"),
        ({"expandable_segments": True}, "allocator", "expandable_segments"),
    ],
)
def test_a_setting_becomes_a_key(known: dict[str, Any], key: str, value: object) -> None:
    config = rung_of(*training(**known))
    assert config is not None and getattr(config, key) == value


@pytest.mark.parametrize(("method", "prepared"), [("full", "peft"), ("qlora", "norms")])
def test_what_trl_prepares_counts_only_for_quantized_models(method: str, prepared: str) -> None:
    setup = Setup(micro_batch_size=4, sequence_length=1024, method=method)
    trained, _ = training_of(setup, {"torch_dtype": "bfloat16"}, framework="trl")
    config = rung_of(trained, setup)
    assert config is not None and config.kbit_prepare == prepared


@pytest.mark.parametrize("known", [{"zero_stage": 3}, {"fsdp": True}, {"optimizer": "unheard-of"}])
def test_what_no_rung_can_do(known: dict[str, Any]) -> None:
    assert rung_of(*training(**known)) is None


def test_the_changes_between_two_rungs() -> None:
    before = rung_of(*training())
    assert before is not None
    after = replace(before, optimizer="adafactor", micro_batch_size=2)
    assert rung_changes(before, after) == {"optimizer": "adafactor", "micro_batch_size": 2}
    assert rung_changes(before, None) == {} == rung_changes(None, after)
