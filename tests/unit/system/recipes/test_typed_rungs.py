"""Rungs of the command line: what can be typed, and what is wrong with it."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any, get_args, get_type_hints

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oomdoctor.errors import ExitCode, OomDoctorError
from oomdoctor.records.configuration.config import Rung, TrainConfig, steps_in_backward
from oomdoctor.records.configuration.faults import config_faults
from oomdoctor.records.configuration.keys import KEYS, MEANS_NOTHING, settled
from oomdoctor.records.facts.optimizers import RECIPE_NAMES
from oomdoctor.system.recipes.recipes import Sizes, parse_rung
from oomdoctor.system.recipes.rungs import TARGET_WORDS

NO_SIZES: Sizes = {"sequence_length": None, "effective_batch_size": None, "micro_batch_size": None}


def refused(text: str, **sizes: int) -> OomDoctorError:
    with pytest.raises(OomDoctorError) as caught:
        parse_rung(text, **{**NO_SIZES, **sizes})  # type: ignore[typeddict-item]
    return caught.value


def test_a_rung_of_the_command_line() -> None:
    rung = parse_rung(
        "method=lora, lora_rank=64,micro_batch_size=4,lora_targets=q_proj+v_proj,compile=true,"
        "lora_dropout=0.1,label=mine",
        sequence_length=64,
        effective_batch_size=8,
        micro_batch_size=None,
    )
    assert rung == Rung(
        "mine",
        TrainConfig(
            method="lora",
            autocast_dtype="bfloat16",
            lora_rank=64,
            micro_batch_size=4,
            lora_targets=("q_proj", "v_proj"),
            compile=True,
            lora_dropout=0.1,
            sequence_length=64,
            effective_batch_size=8,
        ),
        follows_card=True,
    )
    assert parse_rung("method=lora,lora_targets=q_proj", **NO_SIZES).config.lora_targets == (
        "q_proj",
    )
    attention = parse_rung("method=lora,lora_targets=attention", **NO_SIZES).config
    assert attention.lora_targets == "attention"
    assert parse_rung("method=qlora", **NO_SIZES).config.quantization == "nf4"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", "write key=value"),
        ("method", "method: write key=value"),
        ("method=", "method: write key=value"),
        ("method=lora,method=full", "method: is set twice"),
        ("rank=3", "rank: is not a key (did you mean lora_rank or optimizer_rank?)"),
        ("lora_rank=four", 'lora_rank: must be an integer, not "four"'),
        ("lora_rank=4.0", "lora_rank: must be an integer"),
        ("method=qlora,quantization=torchao", '"torchao" is not supported: peft trains LoRA on'),
        ("method=qlora,quantization=fp8", '"fp8" is not supported: use checkpoint'),
        ("compile=1", "compile: must be true or false"),
        ("lora_dropout=1..2", "lora_dropout: must be a number"),
        ("quantization=nf4", 'quantization: needs method "qlora"'),
        ("micro_batch_size=3", "micro_batch_size: 3 does not divide"),
        ("lora_targets=+", "lora_targets: must be"),
        ("method=lora,modules_to_save=+", "modules_to_save: must be a list of module names"),
        ("dora=true", "dora: is not a key (did you mean use_dora?)"),
        ("allow_tf32=true", "allow_tf32: is not a key (did you mean tf32?)"),
    ],
)
def test_what_is_wrong_with_a_rung(text: str, expected: str) -> None:
    error = refused(text)
    assert (error.code, error.exit_code) == ("bad_rung", ExitCode.USAGE)
    assert expected in error.message


def test_all_faults_of_a_rung_at_once() -> None:
    assert len(refused("method=loraa,rank=3,x").message.splitlines()) == 1 + 3


def words_of(config: TrainConfig) -> str:
    def word(value: Any) -> str:
        if isinstance(value, bool):
            return str(value).lower()
        return "+".join(value) or "none" if isinstance(value, tuple) else str(value)

    return ",".join(f"{f.name}={word(getattr(config, f.name))}" for f in fields(config))


NAMES = st.text("abcdefghijklmnopqrstuvwxyz_.", min_size=1, max_size=8)
COUNTS = st.integers(1, 2**31)
BY_NAME = {
    "optimizer": st.sampled_from(RECIPE_NAMES),
    "micro_batch_size": st.just("auto") | COUNTS,
    "modules_to_save": st.lists(NAMES.filter("none".__ne__)).map(tuple),
    "lora_targets": st.sampled_from(TARGET_WORDS) | st.lists(NAMES, min_size=1).map(tuple),
}


def values_of(name: str, hint: Any) -> st.SearchStrategy[Any]:
    if name in BY_NAME:
        return BY_NAME[name]
    if hint is bool:
        return st.booleans()
    numbers = {int: COUNTS, float: st.just(0.0) | st.floats(0, 0.99)}
    return numbers[hint] if hint in numbers else st.sampled_from(get_args(hint))


CONFIGS = st.fixed_dictionaries(
    {name: values_of(name, hint) for name, hint in get_type_hints(TrainConfig).items()}
).map(lambda values: TrainConfig(**values))


@given(CONFIGS)
def test_every_configuration_can_be_typed(config: TrainConfig) -> None:
    # One target called like a word for all targets cannot be told from the word.
    if isinstance(config.lora_targets, tuple) and "+".join(config.lora_targets) in TARGET_WORDS:
        config = replace(config, lora_targets=("q_proj",))
    if config_faults(config):
        assert refused(words_of(config)).code == "bad_rung"
    else:
        if steps_in_backward(config):  # the whole batch is one micro-batch
            config = config.with_micro_batch(config.rank_batch_size())
        kept = settled(config)
        assert parse_rung(words_of(kept), **NO_SIZES).config == kept
        if any(getattr(kept, f) != getattr(config, f) for f in KEYS if KEYS[f].group != "GPUs"):
            assert MEANS_NOTHING in refused(words_of(config)).message


@pytest.mark.parametrize(
    ("text", "decider", "instead"),
    [
        ("method=full,lora_rank=8", 'method "full"', "--rung method=full"),
        ("lora_rank=8,loss=liger", 'method "full"', "--rung loss=liger"),
        ("method=lora,kbit_prepare=none", 'quantization "none"', "--rung method=lora"),
        ("method=lora,checkpoint_every=3", 'activation_checkpointing "none"', "--rung method=lora"),
        ("method=lora,optimizer_rank=4", 'optimizer "adamw_torch_fused"', "--rung method=lora"),
        ("method=lora,library=unsloth,autocast_dtype=none", 'library "unsloth"',
         "--rung method=lora,library=unsloth"),
        ("method=lora,gpus_per_node=4", 'sharding "none"', "--rung method=lora"),
    ],
)  # fmt: skip
def test_a_typed_key_that_means_nothing_is_refused(text: str, decider: str, instead: str) -> None:
    error = refused(text, gpus=1)
    assert f"means nothing with {decider}" in error.message
    assert error.hint == f"leave it out: {instead}"


def test_a_key_that_means_nothing_may_have_its_default_or_come_from_the_files() -> None:
    assert parse_rung("method=full,lora_rank=16", **NO_SIZES).label == "full-bf16"
    yours = TrainConfig(method="lora", lora_rank=8)
    assert parse_rung("yours,method=full", yours, **NO_SIZES).config.lora_rank == 16


@given(
    st.text()
    | st.lists(
        st.tuples(st.sampled_from([*get_type_hints(TrainConfig), "label", "?"]), st.text())
    ).map(lambda pairs: ",".join(f"{key}={value}" for key, value in pairs))
)
def test_no_text_is_answered_by_a_crash(text: str) -> None:
    try:
        rung = parse_rung(text, **NO_SIZES)
    except OomDoctorError as error:
        assert error.exit_code == ExitCode.USAGE
    else:
        assert not config_faults(rung.config)


def test_a_step_in_the_backward_pass_takes_the_whole_batch_at_once() -> None:
    sizes = {"sequence_length": 64, "effective_batch_size": 8, "micro_batch_size": None}
    assert parse_rung("optimizer_in_backward=true", **sizes).config.micro_batch_size == 8
    fixed = parse_rung("optimizer_in_backward=true,effective_batch_size=2", **sizes)
    assert fixed.config.micro_batch_size == 2
    asked = parse_rung("optimizer_in_backward=true", **(sizes | {"micro_batch_size": 4})).config
    assert (asked.micro_batch_size, asked.effective_batch_size) == (4, 4)
