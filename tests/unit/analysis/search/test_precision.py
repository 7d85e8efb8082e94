"""Rungs for cards without bfloat16: the same training in float16, where that can be trained."""

from __future__ import annotations

from typing import Any

import pytest

from oomdoctor.analysis.search.precision import emulated, in_float16, ladder_for
from oomdoctor.records.configuration.config import Rung, TrainConfig
from oomdoctor.records.configuration.faults import config_faults
from oomdoctor.records.configuration.keys import label_of
from oomdoctor.records.facts.attention import lacks_capability
from oomdoctor.records.facts.dtypes import has_bfloat16
from oomdoctor.system.catalogue import gpus
from oomdoctor.system.recipes.recipes import load_recipe, parse_rung, recipe_names

SIZES: Any = {"sequence_length": 512, "effective_batch_size": 8, "micro_batch_size": None}


def rung(label: str | None = None, *, follows: bool = True, **values: Any) -> Rung:
    config = TrainConfig(**values)
    return Rung(label or label_of(config), config, follows)


@pytest.mark.parametrize(
    ("before", "label", "weights", "autocast"),
    [
        ({}, "full-fp32-amp-fp16", "float32", "float16"),
        ({"weights_dtype": "float32"}, "full-fp32", "float32", "none"),
        (
            {"weights_dtype": "float32", "autocast_dtype": "bfloat16"},
            "full-fp32-amp-fp16", "float32", "float16",
        ),
        ({"method": "lora"}, "lora-r16-fp16", "float16", "float16"),
        (
            {"method": "lora", "weights_dtype": "float32", "autocast_dtype": "bfloat16"},
            "lora-r16-fp32-amp-fp16", "float32", "float16",
        ),
        (
            {"method": "qlora", "quantization": "nf4", "autocast_dtype": "bfloat16"},
            "qlora-nf4-r16-fp16", "float16", "float16",
        ),
    ],
)  # fmt: skip
def test_the_counterpart(before: dict[str, Any], label: str, weights: str, autocast: str) -> None:
    found = in_float16(rung(**before))
    assert found.label == label == label_of(found.config)
    assert (found.config.weights_dtype, found.config.autocast_dtype) == (weights, autocast)
    assert in_float16(found) == found
    assert not config_faults(found.config)


@pytest.mark.parametrize(
    ("label", "expected"),
    [
        ("lora-r16+ckpt", "lora-r16-fp16+ckpt"),
        ("my-bf16+x", "my-fp16+x"),
        ("lora-r16", "lora-r16-fp16"),
    ],
)
def test_a_label_of_its_own_says_fp16(label: str, expected: str) -> None:
    assert in_float16(rung(label, method="lora", autocast_dtype="bfloat16")).label == expected


def test_a_fixed_type_is_left_alone() -> None:
    fixed = rung(follows=False)
    assert in_float16(fixed) == fixed
    assert ladder_for((fixed,), "7.5") == (fixed,)
    assert emulated((fixed, rung(weights_dtype="float32")), "7.5") == ("full-bf16",)
    assert emulated((fixed,), "8.0") == emulated((fixed,), None) == ()


@pytest.mark.parametrize("capability", ["8.0", "12.0", None])
def test_a_card_with_bfloat16_or_an_unknown_one_keeps_its_ladder(capability: str | None) -> None:
    rungs = load_recipe("default", **SIZES).rungs
    assert ladder_for(rungs, capability) == rungs


def test_two_rungs_that_become_one_are_tried_once_and_a_typed_one_stays() -> None:
    typed = Rung("mine", TrainConfig(weights_dtype="float32", autocast_dtype="float16"))
    amp = {"weights_dtype": "float32", "autocast_dtype": "bfloat16"}
    assert [found.label for found in ladder_for((rung(), rung(**amp)), "7.0")] == [
        "full-fp32-amp-fp16"
    ]
    assert ladder_for((rung(), rung(**amp), typed), "7.0") == (typed,)


def test_labels_stay_unique() -> None:
    taken = rung("lora-r16-fp16", follows=False, method="lora", lora_rank=8)
    lora = rung("lora-r16", method="lora", autocast_dtype="bfloat16")
    labels = [found.label for found in ladder_for((lora, taken), "7.5")]
    assert labels == ["lora-r16-fp16-2", "lora-r16-fp16"]


@pytest.mark.parametrize("name", recipe_names())
def test_no_shipped_recipe_asks_an_old_card_for_bfloat16(name: str) -> None:
    ladder = ladder_for(load_recipe(name, **SIZES).rungs, "7.5")
    assert ladder
    assert not emulated(ladder, "7.5")
    assert not any(config_faults(found.config) for found in ladder)
    assert len({found.label for found in ladder}) == len(ladder)


def test_a_step_in_the_backward_pass_computes_in_float32_on_an_old_card() -> None:
    rung = parse_rung("optimizer_in_backward=true", **SIZES)
    (found,) = ladder_for((rung,), "7.5")
    config = found.config
    assert (config.weights_dtype, config.autocast_dtype) == ("float32", "none")
    assert found.label == "full-fp32+in-backward"


@pytest.mark.parametrize(
    ("text", "follows"),
    [
        ("method=lora", True),
        ("method=lora,weights_dtype=bfloat16", False),
        ("method=lora,autocast_dtype=bfloat16", False),
    ],
)
def test_a_typed_rung_follows_the_card_unless_it_names_a_type(text: str, follows: bool) -> None:
    assert parse_rung(text, **SIZES).follows_card is follows


def test_the_cards_without_bfloat16() -> None:
    known = [card for card in gpus() if not has_bfloat16(card.compute_capability)]
    assert {"Tesla T4", "Tesla V100-SXM2-16GB", "Tesla P100-PCIE-16GB"} <= {c.name for c in known}
    assert not any(card.bf16_flops for card in known)


def test_float16_adapters_can_be_trained_and_float16_weights_cannot() -> None:
    half = {"weights_dtype": "float16", "autocast_dtype": "float16"}
    assert not config_faults(TrainConfig(method="lora", **half))  # type: ignore[arg-type]
    assert not config_faults(
        TrainConfig(method="qlora", quantization="nf4", **half)  # type: ignore[arg-type]
    )
    ((key, reason),) = config_faults(TrainConfig(**half))  # type: ignore[arg-type]
    assert key == "weights_dtype"
    assert "cannot unscale float16 gradients" in reason


def test_the_cards_that_flash_attention_runs_on() -> None:
    assert lacks_capability("flash_attention_2", "8.0") is None
    assert lacks_capability("flash_attention_2", "12.0") is None
    assert lacks_capability("flash_attention_2", None) is None
    assert "8.0 or higher" in (lacks_capability("flash_attention_2", "7.5") or "")
    assert "needs compute capability 9.0;" in (lacks_capability("flash_attention_3", "10.0") or "")
    assert lacks_capability("sdpa", "3.0") is None
