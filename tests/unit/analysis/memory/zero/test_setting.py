"""A rung in the terms of DeepSpeed."""

from __future__ import annotations

from dataclasses import replace

import pytest

from oomdoctor.analysis.memory.zero.setting import Beside, Parameter, setting_of
from oomdoctor.records.configuration.config import TrainConfig

CONFIG = TrainConfig(
    sharding="zero2", world_size=8, effective_batch_size=64, micro_batch_size=4, method="full"
)


def test_defaults_are_those_of_deepspeed():
    found = setting_of(CONFIG)
    assert (found.stage, found.ranks, found.bucket) == (2, 8, 500_000_000)
    assert (found.short, found.states, found.copies) == (2, 8, 0)
    assert found.accumulates and found.prefetches
    assert not (found.recomputes or found.optimizer_on_host or found.weights_on_host)


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"effective_batch_size": 32}, {"accumulates": False}),
        ({"micro_batch_size": "auto"}, {"accumulates": True}),
        ({"bucket_elements": 1000}, {"bucket": 1000}),
        ({"offload": "optimizer"}, {"optimizer_on_host": True, "weights_on_host": False}),
        ({"offload": "parameters"}, {"optimizer_on_host": True, "weights_on_host": True}),
        ({"optimizer": "adamw_torch"}, {"copies": 1}),
        ({"optimizer": "adamw_bnb_8bit"}, {"states": 2}),
        ({"weights_dtype": "float32", "autocast_dtype": "bfloat16"}, {"short": 2}),
        ({"weights_dtype": "float32"}, {"short": 4}),
        ({"prefetch": "none"}, {"prefetches": False}),
        ({"activation_checkpointing": "full"}, {"recomputes": True}),
        ({"method": "lora", "sharding": "zero3"}, {"short": 2, "wider": 2}),
        ({"method": "lora", "sharding": "zero2"}, {"short": 2, "wider": 0}),
        ({"method": "lora", "sharding": "zero3", "adapter_dtype": "bfloat16"}, {"wider": 0}),
        ({"method": "lora", "sharding": "zero3", "modules_to_save": ("lm_head",)}, {"wider": 0}),
    ],
)
def test_keys_of_a_rung_change_it(changes, expected):
    found = setting_of(replace(CONFIG, **changes))
    assert {name: getattr(found, name) for name in expected} == expected


def test_an_optimizer_with_unknown_states_has_no_model():
    with pytest.raises(ValueError, match="galore_adamw"):
        setting_of(replace(CONFIG, optimizer="galore_adamw"))
    with pytest.raises(ValueError, match="quantized"):
        setting_of(replace(CONFIG, method="qlora", quantization="nf4"))


def test_what_is_held_beside_gradients_is_read_from_the_curve():
    first, second, third = (
        {"activations": size // 2, "logits": size // 2} for size in (90, 50, 70)
    )
    held = Beside({}, ((10, first), (20, second), (40, third)), {"temporary": 5})
    assert held.held_from(0, 10) == first
    assert held.held_from(10, 20) == second
    assert held.held_from(10, 40) == third
    assert held.held_from(0, 40) == first
    assert held.held_from(40, 60) == third
    assert Beside({}, ((7, second),)).held_from(0, 100) == second
    assert Beside({}, (), {"temporary": 4}).held_from(0, 1) == {"temporary": 4}
    assert Parameter(3).trained
