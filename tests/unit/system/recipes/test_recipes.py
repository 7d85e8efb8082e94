from __future__ import annotations

from dataclasses import fields, replace
from pathlib import Path
from typing import Any, get_args, get_type_hints

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from oomdoctor.errors import ExitCode, OomDoctorError
from oomdoctor.records.config import Rung, TrainConfig, config_faults
from oomdoctor.records.facts.optimizers import RECIPE_NAMES
from oomdoctor.system.recipes import recipes
from oomdoctor.system.recipes.recipes import (
    Sizes,
    check_recipe,
    load_recipe,
    parse_rung,
    recipe_names,
    recipe_text,
)
from oomdoctor.system.recipes.rungs import TARGET_WORDS
from oomdoctor.system.recipes.toml_lines import find_lines

NO_SIZES: Sizes = {
    "sequence_length": None,
    "effective_batch_size": None,
    "micro_batch_size": None,
}


@pytest.fixture
def faults(tmp_path: Path) -> Any:
    def check(text: str | bytes) -> list[str]:
        path = tmp_path / "mine.toml"
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        lines = check_recipe(path)
        assert all(line.startswith(f"{path}:") for line in lines)
        return [line.removeprefix(f"{path}:") for line in lines]

    return check


def refused(text: str, **sizes: int) -> OomDoctorError:
    with pytest.raises(OomDoctorError) as caught:
        parse_rung(text, **{**NO_SIZES, **sizes})  # type: ignore[typeddict-item]
    return caught.value


# --- the recipes that come along ------------------------------------------------------------------


def test_the_recipes_of_the_house() -> None:
    assert recipe_names() == (
        "default",
        "full",
        "host",
        "lora",
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
        assert (config.sequence_length, config.effective_batch_size) == (512, 128)
        assert config.micro_batch_size == 4
        assert len(rung.label) <= 36, "a longer label makes the table wide"
    text = recipe_text(name)
    assert "\t" not in text
    assert max(map(len, text.splitlines())) <= 100
    lines = text.splitlines()
    for number, line in enumerate(lines):
        if line == "[[rung]]":
            assert lines[number - 1].startswith("# "), f"line {number + 1}: why this rung?"


@pytest.mark.parametrize("name", ["sharded", "sharded-lora"])
def test_a_recipe_for_several_gpus_spreads_every_rung(name: str) -> None:
    for gpus in (2, 8, 16):
        sizes = {**NO_SIZES, "effective_batch_size": 16, "gpus": gpus}
        configs = [rung.config for rung in load_recipe(name, **sizes).rungs]  # type: ignore[arg-type]
        assert {config.world_size for config in configs} == {gpus}
        assert "none" not in {config.sharding for config in configs}
        between_nodes = "hybrid" in {config.sharding for config in configs}
        assert between_nodes == (name == "sharded" and gpus == 16)


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
                assert rung.label == rung.config.label()


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
    assert "default, full, host, lora, qlora, quick, sharded, sharded-lora, none" in str(
        caught.value.hint
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
    assert f"{path}:2: rung 1 (full-bf16): micro_batch_size: 4 does not divide" in str(caught.value)


# --- faults ---------------------------------------------------------------------------------------


def test_all_faults_at_once_with_line_and_key(faults: Any) -> None:
    told = faults(
        'nmae = "x"\n'
        "[defaults]\n"
        "lora_rnk = 3 # [[rung]]\n"
        'optimizer = "adamw_8bits"\n'
        "[[rung]]\n"
        'method = "loraa"\n'
        'micro_batch_size = "outo"\n'
        "\n"
        "[[rung]]\n"
        'lora_targets = "q_proj"\n'
        'label = "b"\n'
        "compile = 1\n"
        "[rung.sharding]\n"
        "kind = 1\n"
    )
    assert [line.split(" is ")[0].split(" must ")[0] for line in told] == [
        "1: nmae:",
        "3: defaults: lora_rnk:",
        '4: defaults: optimizer: "adamw_8bits"',
        "6: rung 1: method:",
        "7: rung 1: micro_batch_size:",
        "10: rung 2 (b): lora_targets:",
        "12: rung 2 (b): compile:",
        "13: rung 2 (b): sharding:",
    ]
    assert "did you mean lora_rank?" in told[1]
    assert "did you mean adamw_8bit, adamw_bnb_8bit or " in told[2]
    assert told[3].endswith('must be "full", "lora" or "qlora", not "loraa" (did you mean lora?)')
    assert told[4].endswith('must be an integer or "auto", not "outo" (did you mean auto?)')
    assert told[6].endswith("must be true or false, not 1")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", "1: there is no [[rung]]"),
        ("rung = []", "1: there is no [[rung]]"),
        ("\n[rung]\n", "2: rung: must be an array of tables"),
        ("defaults = 1\n[[rung]]", "1: defaults: must be a table"),
        ("description = 1\n[[rung]]", "1: description: must be a string"),
        ('[defaults]\nlabel = "x"\n[[rung]]', "2: defaults: label: must be set in a [[rung]]"),
        ('[[rung]]\nlabel = ""', "2: rung 1: label: must be one line of text"),
        ("[[rung]]\nlora_rank = 0", "2: rung 1 (full-bf16): lora_rank: must be at least 1"),
        ("[[rung]]\nlora_rank = true", "2: rung 1: lora_rank: must be an integer, not true"),
        ("[[rung]]\nlora_dropout = nan", "2: rung 1 (full-bf16): lora_dropout: must be at least 0"),
        ("[[rung]]\nlora_targets = []", "2: rung 1 (full-bf16): lora_targets: is empty"),
        ('[[rung]]\nmethod = "qlora"\nquantization = "none"', "3: rung 1 (qlora-none-r16): quant"),
        (
            '[defaults]\nquantization = "nf4"\n[[rung]]',
            "2: rung 1 (full-bf16): quantization: needs",
        ),
        ('[[rung]]\n[[rung]]\nlabel = "b"', "2: rung 2 (b): micro_batch_size: repeats rung 1"),
        (
            '[[rung]]\n[[rung]]\nmicro_batch_size = 4\nlabel = "b"',
            "3: rung 2 (b): micro_batch_size",
        ),
        ("[[rung]]\n[[rung]]\nlora_rank = 4", "2: rung 2 (full-bf16): label: is already the label"),
        ("[[rung]]\nmethod = lora\n", "2: not TOML: invalid value in column 10"),
        ("[[rung]]\n\nmethod =", "3: not TOML: invalid value"),
        ('[[rung]]\nlabel = """x\ny\n', "4: not TOML: "),
        ("[[rung]]\na = 1\na = 2\n", "3: not TOML: cannot overwrite a value"),
        (b"\xff", " not UTF-8 text"),
        ("a = " + "1" * 5000, "1: not TOML: "),
    ],
)
def test_a_fault_is_told_at_its_line(faults: Any, text: str | bytes, expected: str) -> None:
    told = faults(text)
    assert len(told) == 1
    assert told[0].startswith(expected)


def test_a_contradiction_is_not_told_where_it_is_the_echo_of_a_fault(faults: Any) -> None:
    assert len(faults('[[rung]]\nmethod = "qlor"\nquantization = "nf4"')) == 1
    assert len(faults('[defaults]\nmethod = "qlor"\n[[rung]]\nquantization = "nf4"')) == 1


def test_a_file_that_cannot_be_read(tmp_path: Path) -> None:
    assert check_recipe(tmp_path) == (f"cannot read {tmp_path}: Is a directory",)
    assert "No such file" in check_recipe(tmp_path / "none.toml")[0]


def test_lines_are_found_behind_strings_comments_and_arrays() -> None:
    lines = find_lines(
        "# [[rung]]\n"
        'description = """\n'
        "[[rung]]\n"
        "method = 1\n"
        '"""\n'
        "defaults.lora_rank = 4\n"
        "[[ rung ]] # one\n"
        "lora_targets = [\n"
        '  "a]", # [\n'
        "  'method',\n"
        "]\n"
        '"method" = "lora"\n'
        "[[rung]]\n"
        "x = {a = 1, b = [1]}\n"
        "  lora_rank = 2\n"
    )
    assert lines.of("", 0, "description") == 2
    assert lines.of("defaults", 0, "lora_rank") == 6
    assert lines.of("rung", 0) == 7
    assert lines.of("rung", 0, "lora_targets") == 8
    assert lines.of("rung", 0, "method") == 12
    assert lines.of("rung", 1) == 13
    assert lines.of("rung", 1, "lora_rank") == 15
    assert lines.of("rung", 1, "method") == 13
    assert lines.of("nowhere") == 1


# --- rungs of the command line --------------------------------------------------------------------


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
    assert parse_rung("lora_targets=q_proj", **NO_SIZES).config.lora_targets == ("q_proj",)
    assert parse_rung("lora_targets=attention", **NO_SIZES).config.lora_targets == "attention"
    assert parse_rung("method=qlora", **NO_SIZES).config.quantization == "nf4"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", "write key=value"),
        ("method", "method: write key=value"),
        ("method=", "method: write key=value"),
        ("method=lora,method=full", "method: is set twice"),
        ("rank=3", "rank: is not a key (did you mean lora_rank?)"),
        ("lora_rank=four", 'lora_rank: must be an integer, not "four"'),
        ("lora_rank=4.0", "lora_rank: must be an integer"),
        ("compile=1", "compile: must be true or false"),
        ("lora_dropout=1..2", "lora_dropout: must be a number"),
        ("quantization=nf4", 'quantization: needs method "qlora"'),
        ("micro_batch_size=3", "micro_batch_size: 3 does not divide"),
        ("lora_targets=+", "lora_targets: must be"),
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
        return "+".join(value) if isinstance(value, tuple) else str(value)

    return ",".join(f"{f.name}={word(getattr(config, f.name))}" for f in fields(config))


NAMES = st.text("abcdefghijklmnopqrstuvwxyz_.", min_size=1, max_size=8)
COUNTS = st.integers(1, 2**31)
BY_NAME = {
    "optimizer": st.sampled_from(RECIPE_NAMES),
    "lora_dropout": st.floats(0, 0.99),
    "micro_batch_size": st.just("auto") | COUNTS,
    "lora_targets": st.sampled_from(TARGET_WORDS) | st.lists(NAMES, min_size=1).map(tuple),
}


def values_of(name: str, hint: Any) -> st.SearchStrategy[Any]:
    if name in BY_NAME:
        return BY_NAME[name]
    if hint is bool:
        return st.booleans()
    return COUNTS if hint is int else st.sampled_from(get_args(hint))


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
        assert parse_rung(words_of(config), **NO_SIZES).config == config


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


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.text() | st.text("[]=\"'#\n ax1.{}").map(lambda text: "[[rung]]\n" + text))
def test_no_file_is_answered_by_a_crash(tmp_path: Path, text: str) -> None:
    path = tmp_path / "any.toml"
    path.write_bytes(text.encode(errors="surrogatepass"))
    for fault in check_recipe(path):
        assert fault.startswith(str(path))


@pytest.mark.parametrize(
    ("changes", "key"),
    [
        ({"sharding": "ddp", "fsdp_version": 1}, "fsdp_version"),
        ({"sharding": "ddp", "prefetch": "forward"}, "prefetch"),
        ({"sharding": "zero2", "prefetch": "none"}, "prefetch"),
        ({"sharding": "fsdp", "prefetch": "none"}, "prefetch"),
        ({"sharding": "ddp", "reduce_dtype": "float32"}, "reduce_dtype"),
        ({"sharding": "zero3", "sync_each_batch": True}, "sync_each_batch"),
        ({"sharding": "fsdp", "bucket_elements": 5}, "bucket_elements"),
        ({"sharding": "ddp", "offload": "parameters"}, "offload"),
        ({"sharding": "fsdp", "offload": "optimizer"}, "offload"),
        ({"sharding": "hybrid"}, "world_size"),
        ({"sharding": "none"}, "sharding"),
    ],
    ids=str,
)
def test_a_setting_that_the_engine_does_not_have_is_refused(
    changes: dict[str, Any], key: str
) -> None:
    config = TrainConfig(**{"world_size": 4, **changes})
    assert [name for name, _ in config_faults(config)] == [key]


@pytest.mark.parametrize("sharding", ["zero3", "fsdp"])
def test_what_an_engine_has_is_accepted(sharding: Any) -> None:
    plain = TrainConfig(sharding=sharding, world_size=4, reduce_dtype="float32")
    assert config_faults(plain) == []
    assert config_faults(replace(plain, offload="parameters")) == []
