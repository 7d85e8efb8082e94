"""Each key of a rung is one row, and two rungs that train differently never share a label."""

from __future__ import annotations

from dataclasses import fields, replace
from itertools import combinations
from typing import Any, Literal, get_args, get_origin, get_type_hints

import pytest

from oomdoctor.records.configuration.config import TrainConfig
from oomdoctor.records.configuration.faults import config_faults
from oomdoctor.records.configuration.keys import KEYS, label_of, settled
from oomdoctor.records.facts.optimizers import RECIPE_NAMES, canonical
from oomdoctor.system.recipes.recipes import load_recipe, parse_rung, recipe_names

BASES: tuple[dict[str, Any], ...] = (
    {},
    {"method": "lora", "autocast_dtype": "bfloat16"},
    {"method": "qlora", "quantization": "nf4", "autocast_dtype": "bfloat16"},
    {"sharding": "fsdp", "world_size": 8},
    {"sharding": "zero3", "world_size": 8},
    {"objective": "grpo"},
    {"packing": "packed", "activation_checkpointing": "every_n", "optimizer": "apollo_adamw"},
    {"method": "lora", "library": "unsloth"},
)
# Values of the keys whose hint does not list them.
OTHERS: dict[str, tuple[Any, ...]] = {
    "optimizer": tuple(name for name in RECIPE_NAMES if name == canonical(name)),
    "lora_targets": ("attention", ("q_proj", "v_proj"), ("q", "v"), ("q_proj", "v")),
    "modules_to_save": (("lm_head",), ("embed_tokens", "lm_head")),
    "lora_target_parameters": (("experts.down_proj",), ("experts.gate_up_proj",)),
    "lora_dropout": (0.05, 0.051, 0.1),
    "vllm_gpu_memory_utilization": (0.3, 0.31),
    "effective_batch_size": (8, 32),
    "world_size": (4, 16),
    "gpus_per_node": (2, 4),
}
SIZES = {"sequence_length": 2048, "effective_batch_size": 16, "micro_batch_size": None}


def values_of(name: str) -> tuple[Any, ...]:
    """Values of a key that are not its default."""
    hint = get_type_hints(TrainConfig)[name]
    if name in OTHERS:
        listed = OTHERS[name]
    elif get_origin(hint) is Literal:
        listed = get_args(hint)
    elif hint is bool:
        listed = (False, True)
    else:
        listed = (3, 24)
    return tuple(value for value in listed if value != KEYS[name].default())


CHANGES = [
    {name: value} for name in KEYS if name != "micro_batch_size" for value in values_of(name)
]


def test_every_field_has_a_row_with_a_name_that_people_type() -> None:
    assert set(KEYS) == {field.name for field in fields(TrainConfig)}
    typed = [name for key in KEYS.values() for name in key.names]
    assert not set(typed) & set(KEYS), "a key is not another name"


@pytest.mark.parametrize("base", BASES, ids=str)
def test_two_rungs_that_train_differently_have_two_labels(base: dict[str, Any]) -> None:
    usual, by_label = TrainConfig(**base), dict[str, TrainConfig]()
    pairs = [one | other for one, other in combinations(CHANGES[::3], 2)]
    for changes in (*CHANGES, *pairs):
        rung = settled(replace(usual, **changes))
        label = label_of(rung, TrainConfig())
        assert by_label.setdefault(label, rung) == rung, label
    assert len(by_label) > len(CHANGES) // 2


@pytest.mark.parametrize("base", BASES, ids=str)
def test_a_key_that_means_nothing_makes_no_difference(base: dict[str, Any]) -> None:
    usual = TrainConfig(**base)
    for name, key in KEYS.items():
        for value in values_of(name) if not key.means(usual) else ():
            other = replace(usual, **{name: value})
            refused = name in {fault for fault, _ in config_faults(other)}
            assert settled(other) == settled(usual)
            assert refused or label_of(other) == label_of(usual)


def test_the_labels_of_recipes_and_of_typed_rungs_are_one_language() -> None:
    by_label: dict[str, TrainConfig] = {}
    for name in recipe_names():
        gpus = 8 if name.startswith("sharded") else 1
        for rung in load_recipe(name, **SIZES, gpus=gpus).rungs:  # type: ignore[arg-type]
            known = by_label.setdefault(rung.label, rung.config)
            assert known == rung.config, f"{rung.label} of {name}"
            generated = by_label.setdefault(label_of(rung.config), rung.config)
            assert generated == rung.config, f"{rung.label} of {name}"


@pytest.mark.parametrize(
    ("text", "label"),
    [
        ("method=lora", "lora-r16"),
        ("method=qlora,activation_checkpointing=full", "qlora-nf4-r16+ckpt"),
        ("activation_checkpointing=full,optimizer=adamw_bnb_8bit", "full-bf16+ckpt+adamw8bit"),
    ],
)
def test_a_typed_rung_is_the_one_of_the_ladder(text: str, label: str) -> None:
    typed = parse_rung(text, **SIZES)  # type: ignore[arg-type]
    ladder = {rung.label: rung for rung in load_recipe("default", **SIZES).rungs}  # type: ignore[arg-type]
    assert typed.label == label and typed == ladder[label]


@pytest.mark.parametrize(
    ("text", "label"),
    [
        ("method=lora,weights_dtype=bfloat16", "lora-r16"),
        ("method=lora,autocast_dtype=none", "lora-r16-no-amp"),
        ("method=qlora,weights_dtype=float32", "qlora-nf4-r16-fp32"),
        ("method=lora,lora_alpha=64,lora_dropout=0.1", "lora-r16+alpha-64+dropout-0.1"),
        ("method=lora,sequence_length=512", "lora-r16+seq-512"),
        ("weights_dtype=float32,tf32=true,compile=true", "full-fp32+tf32+compile"),
        ("method=lora,tf32=true", "lora-r16+tf32"),
    ],
)
def test_a_label_says_what_nobody_would_expect(text: str, label: str) -> None:
    assert parse_rung(text, **SIZES).label == label  # type: ignore[arg-type]
