"""The recipes of the house, and how a recipe is found and sized."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from oomdoctor.errors import ExitCode, OomDoctorError
from oomdoctor.records.configuration.config import TrainConfig, steps_in_backward
from oomdoctor.records.configuration.faults import config_faults
from oomdoctor.records.configuration.keys import label_of
from oomdoctor.system.recipes import recipes
from oomdoctor.system.recipes.recipes import (
    Sizes,
    check_recipe,
    left_out,
    load_recipe,
    parse_rung,
    recipe_names,
    recipe_text,
)

NO_SIZES: Sizes = {"sequence_length": None, "effective_batch_size": None, "micro_batch_size": None}


# --- the recipes that come along ------------------------------------------------------------------


def test_the_recipes_of_the_house() -> None:
    assert recipe_names() == (
        "default",
        "full",
        "host",
        "lora",
        "methods",
        "preference",
        "qlora",
        "quick",
        "sharded",
        "sharded-lora",
    )
    assert len(load_recipe("quick", **NO_SIZES).rungs) == 4
    assert 12 <= len(load_recipe("default", **NO_SIZES).rungs) <= 14


@pytest.mark.parametrize("name", recipe_names())
def test_a_shipped_recipe_is_good_and_commented(name: str) -> None:
    recipe = load_recipe(
        name,
        sequence_length=512,
        effective_batch_size=128,
        micro_batch_size=4,
        gpus=16 if name.startswith("sharded") else 1,
    )
    assert (recipe.name, recipe.source) == (name, "built-in")
    assert recipe.description
    for rung in recipe.rungs:
        config = rung.config
        assert not config_faults(config)
        whole = 4 if steps_in_backward(config) else 128
        assert (config.sequence_length, config.effective_batch_size) == (512, whole)
        assert config.micro_batch_size == 4
        assert len(rung.label) <= 36, "a longer label makes the table wide"
    text = recipe_text(name)
    assert "\t" not in text
    assert max(map(len, text.splitlines())) <= 100
    lines = text.splitlines()
    for number, line in enumerate(lines):
        if line == "[[rung]]":
            assert lines[number - 1].startswith("# "), f"line {number + 1}: why this configuration?"


@pytest.mark.parametrize("name", ["sharded", "sharded-lora"])
def test_a_recipe_for_several_gpus_spreads_every_rung(name: str) -> None:
    for gpus in (2, 8, 16):
        sizes = {**NO_SIZES, "effective_batch_size": 16, "gpus": gpus}
        configs = [rung.config for rung in load_recipe(name, **sizes).rungs]  # type: ignore[arg-type]
        assert {config.world_size for config in configs} == {gpus}
        assert "none" not in {config.sharding for config in configs}
        between_nodes = "hybrid" in {config.sharding for config in configs}
        assert between_nodes == (name == "sharded" and gpus == 16)


@pytest.mark.parametrize("name", recipe_names())
def test_a_built_in_recipe_leaves_out_what_several_gpus_cannot_train(name: str) -> None:
    """`--recipe methods --gpus 2` ended with six errors in a file that is not the user's."""
    sizes = {**NO_SIZES, "effective_batch_size": 16, "gpus": 2}
    recipe = load_recipe(name, **sizes)  # type: ignore[arg-type]
    assert recipe.rungs and not any(config_faults(rung.config) for rung in recipe.rungs)
    without = left_out(recipe, **sizes)  # type: ignore[arg-type]
    assert bool(without) == (name in ("methods", "host"))
    assert not {rung.label for rung in recipe.rungs} & set(without)
    assert left_out(recipe, **{**sizes, "gpus": 1}) == ()  # type: ignore[arg-type]


def test_a_batch_that_the_gpus_cannot_share_is_an_error_of_the_command_line() -> None:
    sizes = {**NO_SIZES, "effective_batch_size": 10, "gpus": 4}
    with pytest.raises(OomDoctorError, match="10 is not a multiple of the 4 GPUs"):
        load_recipe("quick", **sizes)  # type: ignore[arg-type]


def test_on_several_gpus_a_rung_without_sharding_is_copied_to_each() -> None:
    sizes = {**NO_SIZES, "effective_batch_size": 16, "gpus": 8}
    rung = parse_rung("method=lora", **sizes)  # type: ignore[arg-type]
    assert (rung.config.sharding, rung.config.world_size) == ("ddp", 8)
    named = load_recipe("lora", **sizes).rungs[0]  # type: ignore[arg-type]
    assert named.label.endswith("+ddpx8")
    alone = parse_rung("method=lora,sharding=none", **sizes).config  # type: ignore[arg-type]
    fixed = parse_rung("sharding=fsdp,world_size=4", **sizes).config  # type: ignore[arg-type]
    assert (alone.world_size, fixed.world_size) == (1, 4)


def test_an_automatic_label_is_that_of_the_configuration() -> None:
    for name in ("default", "full", "quick"):
        for rung in load_recipe(name, **NO_SIZES).rungs:
            if rung.config.method == "full":
                assert rung.label == label_of(rung.config)


def test_default_goes_from_the_baseline_to_the_leanest() -> None:
    rungs = load_recipe("default", **NO_SIZES).rungs
    first, last = rungs[0].config, rungs[-1].config
    assert (first.method, first.weights_dtype, first.autocast_dtype) == ("full", "float32", "none")
    assert (last.method, last.quantization, last.optimizer) == ("qlora", "nf4", "paged_adamw_8bit")
    assert last.activation_checkpointing == "full"


def test_recipes_are_found_in_a_wheel_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "oomdoctor" / "_recipes").mkdir(parents=True)
    (tmp_path / "oomdoctor" / "_recipes" / "own.toml").write_text("[[rung]]\n")
    monkeypatch.setattr(recipes.resources, "files", lambda package: tmp_path / package)
    assert recipe_names() == ("own",)
    assert recipe_text("own") == "[[rung]]\n"


# --- which recipe, and what the command line adds -------------------------------------------------


def test_none_has_no_rungs() -> None:
    assert load_recipe("none", **NO_SIZES).rungs == ()


@pytest.mark.parametrize(
    "call", [lambda: load_recipe("qlra", **NO_SIZES), lambda: recipe_text("qlra")]
)
def test_an_unknown_recipe_is_met_with_the_nearest(call: Any) -> None:
    with pytest.raises(OomDoctorError) as caught:
        call()
    assert (caught.value.code, caught.value.exit_code) == ("unknown_recipe", ExitCode.USAGE)
    assert "did you mean qlora?" in caught.value.message
    assert (
        "default, full, host, lora, methods, preference, qlora, quick, sharded, sharded-lora, none"
        in str(caught.value.hint)
    )


def test_a_file_of_ones_own(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(
        'description = "mine"\n'
        "[defaults]\nsequence_length = 256\nlora_rank = 8\n"
        '[[rung]]\nmethod = "lora"\nlora_targets = ["q_proj", "v_proj"]\nlora_dropout = 0\n'
        '[[rung]]\nmethod = "qlora"\nlabel = "four bits"\nmicro_batch_size = 1\nlora_rank = 4\n'
    )
    recipe = load_recipe(
        str(path), sequence_length=4096, effective_batch_size=8, micro_batch_size=2
    )
    assert (recipe.name, recipe.description, recipe.source) == ("mine", "mine", str(path))
    first, second = recipe.rungs
    assert first.config == TrainConfig(
        method="lora",
        lora_targets=("q_proj", "v_proj"),
        lora_rank=8,
        sequence_length=256,
        effective_batch_size=8,
        micro_batch_size=2,
    )
    assert isinstance(first.config.lora_dropout, float)
    assert second.label == "four bits"
    assert (second.config.quantization, second.config.lora_rank) == ("nf4", 4)
    assert second.config.micro_batch_size == 1


def test_sizes_of_the_command_line_are_checked_too(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text("[[rung]]\nmicro_batch_size = 4\n")
    assert check_recipe(path) == ()
    with pytest.raises(OomDoctorError) as caught:
        load_recipe(str(path), sequence_length=1, effective_batch_size=6, micro_batch_size=None)
    assert (caught.value.code, caught.value.exit_code) == ("bad_recipe", ExitCode.USAGE)
    assert f"{path}:2: configuration 1 (full-bf16): micro_batch_size: 4 does not divide" in str(
        caught.value
    )
