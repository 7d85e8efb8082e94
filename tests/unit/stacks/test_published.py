"""What is written for a program are settings that it has, with values of their type.

The published schemas of axolotl, LLaMA-Factory, ms-swift and torchtune are restated in
tests/data/stacks/published (scripts/build_stack_names.py), for where a program is not installed.
tests/worker/parsing asks their own parsers.
"""

from __future__ import annotations

import ast
import json
import re
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import yaml
from stack_rungs import RUNGS

import oomdoctor.stacks
from oomdoctor.package_data import data_of, data_text
from oomdoctor.records.configuration.config import TrainConfig, is_fsdp, is_zero
from oomdoctor.stacks.engines import engine_settings, zero_settings
from oomdoctor.stacks.export import export, settings_of
from oomdoctor.stacks.names.row import (
    by_name,
    flat,
    listed,
    published_data,
    settings_data,
    words_of,
)
from oomdoctor.stacks.names.tables import _KINDS
from oomdoctor.stacks.partial_config import PartialConfig
from oomdoctor.stacks.programs import BY_NAME, PROGRAMS
from oomdoctor.stacks.programs.torchtune import builder_of
from oomdoctor.stacks.rung import StackRung

PUBLISHED = Path(__file__).parents[2] / "data" / "stacks" / "published"
SCHEMAS = ("axolotl", "llama-factory", "ms-swift", "torchtune")
MODEL = "meta-llama/Meta-Llama-3.1-8B-Instruct"
WORDS = {"bool": bool, "int": int, "float": (int, float), "str": str, "list": list, "dict": dict}


def published(program: str) -> dict[str, Any]:
    return json.loads((PUBLISHED / f"{program}.json").read_text())


def exported(config: TrainConfig, program: str) -> dict[str, Any]:
    return yaml.safe_load(export(StackRung(config, "a rung", MODEL), program))


def accepts(kind: str, value: Any) -> bool:
    """Whether a value has the type of an annotation; words that are not plain accept anything."""
    found = re.findall(
        r"\b(bool|int|float|str|list|dict)\b", re.sub(r"Literal\[[^]]*]", "", kind.lower())
    )
    if value is None or not found or "Literal" in kind:
        return True
    kinds = tuple(one for word in found for one in
                  (WORDS[word] if isinstance(WORDS[word], tuple) else (WORDS[word],)))  # fmt: skip
    if isinstance(value, bool):
        return bool in kinds
    return isinstance(value, kinds) or re.search(r"[A-Z]\w+Config|Optimizers", kind) is not None


def test_versions_are_those_of_the_table() -> None:
    for program in SCHEMAS:
        assert BY_NAME[program].version == published(program)["version"]


def test_settings_without_a_row_belong_to_a_table_and_have_no_row() -> None:
    for name, said in settings_data().items():
        others = ("peft-targets", "words", "refused", "parallel", "beside", "built")
        if name in others or name.startswith("program-"):
            continue
        assert said.keys() <= {"neutral", "reasons", "defaults", "source"}, name
        assert said.get("defaults", {}).keys() <= PartialConfig.__annotations__.keys(), name
        neutral, reasons = listed(said.get("neutral", "")), by_name(said.get("reasons", {}))
        assert not neutral & reasons.keys(), name
    for program in PROGRAMS:
        for table in (program.names, program.script):
            rows = {row.name for row in table.rows} if table is not None else set()
            assert not rows & (table.reasons.keys() if table is not None else set())


def test_rows_say_only_what_tables_read() -> None:
    reads = {*_KINDS, "on", "means", "words", "reader", "rows", "alone"}
    more = {"off", "also", "null", "keys", "copies", "as", "is", "write", "writer", "only", "usual"}
    for part, rows in data_of("stacks/rows.toml").items():
        for name, said in rows.items():
            keys = set() if isinstance(said, str) else said.keys()
            assert keys <= reads | more | {"aliases"}, (part, name)
            one = keys & reads - ({"words"} if keys & set(_KINDS) else set())
            assert isinstance(said, str) or len(one) == 1, (part, name)
    assert settings_data()["refused"].keys() <= settings_data()["words"].keys()


def test_what_rows_name_is_there_and_nothing_else() -> None:
    folder = Path(oomdoctor.stacks.__file__).parent
    code = {file: file.read_text() for file in folder.rglob("*.py")}
    used = Counter(re.findall(r"\w+", "\n".join((*code.values(), data_text("stacks/rows.toml")))))
    made = {
        node.name
        for file, text in code.items()
        if file.parent.name in ("names", "programs")
        for node in ast.parse(text).body
        if isinstance(node, ast.FunctionDef)
    }
    assert {name for name in made if used[name] < 2} == set()


def test_words_mean_a_value_or_keys_of_a_partial_configuration() -> None:
    for setting, rows in settings_data()["words"].items():
        assert words_of(setting).keys() == {word for one in rows for word in one.split() or [one]}
        for meaning in rows.values():
            keys = meaning.keys() if isinstance(meaning, dict) else set()
            assert keys <= PartialConfig.__annotations__.keys(), setting


def test_the_package_has_the_published_names() -> None:
    for program in SCHEMAS:
        assert published_data()[program] == sorted(published(program)["settings"])
    assert published_data()["torchtune models"] == published("torchtune")["models"]


# axolotl's schema lists fields, and its files have these names for two of them.
AXOLOTL_ALIASES = {"model_type": "type_of_model", "model_revision": "revision_of_model"}


def test_axolotl_has_what_is_written() -> None:
    known = published("axolotl")["settings"]
    known |= {alias: known[name] for alias, name in AXOLOTL_ALIASES.items()}
    for config in RUNGS.values():
        for name, value in flat(exported(config, "axolotl")):
            head = name if name in known else name.partition(".")[0]
            assert head in known, (name, config)
            if head == name:
                assert accepts(known[name]["type"], value), (name, value, known[name])


@pytest.mark.parametrize("program", ("llama-factory", "ms-swift"))
def test_programs_around_the_trainer_have_what_is_written(program: str) -> None:
    transformers = pytest.importorskip("transformers")
    known = published(program)["settings"]
    arguments = transformers.TrainingArguments.__dataclass_fields__
    for config in RUNGS.values():
        if (config.objective, program) == ("grpo", "llama-factory"):
            continue
        for name, value in flat(exported(config, program)):
            head = name.partition(".")[0]
            if head == "parallelism_config" and head not in arguments:
                continue  # of a newer transformers
            assert head in known or head in arguments, name
            if name in known:
                assert accepts(known[name]["type"], value), (name, value)


def test_torchtune_has_what_is_written() -> None:
    known = published("torchtune")["settings"]
    # Settings that recipes read, and no shipped configuration has.
    more = {
        "fsdp_cpu_offload",
        "fsdp_reshard_after_forward",
        "tokenizer.merges_file",
        "model.use_dora",
        "enable_fp8_training",
    }
    written = 0
    for config in RUNGS.values():
        try:
            settings = exported(config, "torchtune")
        except Exception as error:
            assert re.search("cannot express (the optimizer|objective)", str(error))
            continue
        written += 1
        for name, _ in flat(settings):
            assert name in known or name in more, name
    assert written > 20


@pytest.mark.parametrize(
    ("model", "builder"),
    [
        ("Qwen/Qwen2.5-7B", "qwen2_5.lora_qwen2_5_7b_base"),
        ("Qwen/Qwen2.5-7B-Instruct", "qwen2_5.lora_qwen2_5_7b_instruct"),
        ("Qwen/Qwen2.5-0.5B", "qwen2_5.lora_qwen2_5_0_5b"),
        ("meta-llama/Llama-3.1-8B", "llama3_1.lora_llama3_1_8b"),
        ("Qwen/Qwen2-VL-7B-Instruct", None),
        ("Qwen/Qwen2.5-7B-Instruct-1M", None),
    ],
)
def test_torchtune_builds_base_models_too(model: str, builder: str | None) -> None:
    found = builder_of(TrainConfig(method="lora"), model)
    assert found == (builder and f"torchtune.models.{builder}")


@pytest.mark.parametrize("program", SCHEMAS)
def test_defaults_are_the_published_ones(program: str) -> None:
    known = published(program)["settings"]
    table = BY_NAME[program].names
    assert table is not None
    compared = 0
    for row in table.rows:
        default = known.get(row.name, {}).get("default")
        if default is None or not row.keys:
            continue
        try:
            read = row.read(default)
        except ValueError:
            continue
        for key, value in read.items():
            if key in table.defaults:
                assert table.defaults[key] == value, (row.name, key)
                compared += 1
    assert compared >= (0 if program == "torchtune" else 5)


@pytest.mark.parametrize("target", (*SCHEMAS, "accelerate"))
def test_a_file_says_what_it_cannot_hold(target: str) -> None:
    config = TrainConfig(micro_batch_size=2, method="lora", autocast_dtype="bfloat16",
                         allocator="expandable_segments", lora_targets=("q_proj",))  # fmt: skip
    text = export(StackRung(config, "a rung", MODEL, origin=("From a run.",)), target)
    assert text.startswith("# ")
    assert "# From a run." in text
    if target != "accelerate":
        assert "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True" in text


def test_deepspeed_needs_a_rung_that_it_shards() -> None:
    zero = next(config for config in RUNGS.values() if is_zero(config))
    settings = json.loads(export(StackRung(zero, "zero", MODEL), "deepspeed"))
    assert settings["zero_optimization"]["stage"] == int(zero.sharding[-1])
    with pytest.raises(Exception, match="deepspeed cannot express sharding = none"):
        export(StackRung(TrainConfig(micro_batch_size=1), "one", MODEL), "deepspeed")


def test_engines_are_those_that_the_worker_trains_with() -> None:
    """`stacks/engines.py` is what real engines run with, so the tables must say the same."""
    compared = 0
    for config in RUNGS.values():
        if is_zero(config):
            wanted = zero_settings(config)
            written = settings_of(config, "deepspeed")
            assert written["zero_optimization"] == wanted["zero_optimization"]
            assert (written["bf16"], written["fp16"]) == (wanted["bf16"], wanted["fp16"])
            inside = settings_of(config, "trainer")["deepspeed"]
            assert inside["zero_optimization"] == wanted["zero_optimization"]
            assert inside["train_micro_batch_size_per_gpu"] == "auto"
            compared += 1
        if is_fsdp(config):
            wanted = engine_settings(config, 2)
            written = settings_of(config, "trainer")
            assert written["fsdp"] == wanted["fsdp"]
            assert written["fsdp_config"].items() <= wanted["fsdp_config"].items()
            compared += 1
    assert compared > 10
