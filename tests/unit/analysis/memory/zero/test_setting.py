"""A rung in the terms of DeepSpeed, and the parameters that counts stand for."""

from __future__ import annotations

from dataclasses import replace

import pytest

from oomdoctor.analysis.memory.zero.setting import Beside, Parameter, parameters_of, setting_of
from oomdoctor.records.config import TrainConfig
from oomdoctor.records.model import ParameterCounts

CONFIG = TrainConfig(
    sharding="zero2", world_size=8, effective_batch_size=64, micro_batch_size=4, method="full"
)
# Llama-3.2-1B without tied embeddings.
LLAMA = {
    "model_type": "llama",
    "hidden_size": 2048,
    "intermediate_size": 8192,
    "num_hidden_layers": 16,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "vocab_size": 128256,
}
LAYER = 2 * 2048 * 2048 + 2 * 2048 * 512 + 3 * 2048 * 8192
TABLE = 128256 * 2048
COUNTS = ParameterCounts(
    total=16 * LAYER + 2 * TABLE + 33 * 2048,
    linear=16 * LAYER,
    embedding=2 * TABLE,
    rest=33 * 2048,
    buffers_bytes=0,
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


def test_parameters_are_split_as_the_config_says():
    found = parameters_of(COUNTS, LLAMA)
    assert sum(p.elements for p in found) == COUNTS.total
    assert all(p.trained for p in found)
    assert (found[0].elements, found[-1].elements) == (TABLE, TABLE)
    first = [p.elements for p in found[1:10]]
    matrices = [2048 * 2048, 2048 * 512, 2048 * 512, 2048 * 2048, *[2048 * 8192] * 3]
    assert first[:7] == matrices
    assert first[7:] == [33 * 2048 // 32] * 2


def test_a_tied_embedding_is_there_once():
    tied = replace(COUNTS, total=COUNTS.total - TABLE, embedding=TABLE)
    found = parameters_of(tied, LLAMA)
    assert sum(p.elements for p in found) == tied.total
    assert sum(p.elements == TABLE for p in found) == 1


def test_adapters_are_trained_and_the_base_is_not():
    adapters = 11_272_192
    found = parameters_of(COUNTS, LLAMA, adapters=adapters)
    assert sum(p.elements for p in found if not p.trained) == COUNTS.total
    assert sum(p.elements for p in found if p.trained) == pytest.approx(adapters, rel=1e-4)


def test_an_unknown_shape_still_adds_up():
    found = parameters_of(COUNTS, {"num_hidden_layers": 16})
    assert sum(p.elements for p in found) == COUNTS.total


def test_what_is_held_beside_gradients_is_read_from_the_curve():
    held = Beside(100, ((10, 90), (20, 50), (40, 70)), kept_bytes=5)
    assert held.backward_bytes == 90
    assert held.held_from(0, 10) == 90
    assert held.held_from(10, 20) == 50
    assert held.held_from(10, 40) == 70
    assert held.held_from(0, 40) == 90
    assert held.held_from(40, 60) == 70
    assert Beside(1, ((7, 3),)).held_from(0, 100) == 3
    assert Beside(1, (), 4).held_from(0, 1) == 4
    assert Parameter(3).trained
