"""The scripts that `export` writes: valid, laid out as ruff does, and only what the rung needs."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from export_rungs import OF_TRAINERS, OF_TRL, RUNGS

from oomdoctor import stacks
from oomdoctor.errors import ExitCode, OomDoctorError
from oomdoctor.package_data import data_text
from oomdoctor.records.configuration.config import TrainConfig
from oomdoctor.records.configuration.keys import label_of
from oomdoctor.stacks.export import export
from oomdoctor.stacks.rung import StackRung

SCRIPTS = ("trainer", "trl", "pytorch", "unsloth")


def rung(versions: dict[str, str] | None = None, **values: Any) -> StackRung:
    config = TrainConfig(**{"micro_batch_size": 2, "effective_batch_size": 4, **values})
    return StackRung(
        config, label_of(config), "some/model", origin=("Measured.",), versions=versions or {}
    )


def text(target: str, name: str) -> str:
    return export(rung(**ALL[name]), target)


ALL = RUNGS | OF_TRL | OF_TRAINERS


# Whether it is a rung of RUNGS: those can be said by all but Unsloth.
UNSAID = {("trainer", False), ("pytorch", False)}


@pytest.mark.parametrize("target", SCRIPTS)
def test_scripts_are_laid_out_as_ruff_does(target: str, tmp_path: Path) -> None:
    for name in ALL:
        try:
            (tmp_path / f"{name}.py").write_text(text(target, name))
        except OomDoctorError:
            assert target == "unsloth" or (target, name in RUNGS) in UNSAID, (target, name)
    assert (tmp_path / "plain.py").exists() and (tmp_path / "qlora.py").exists()
    for words in (("check", "--select", "E,F,W,I,B,UP,C4"), ("format", "--check")):
        command = [sys.executable, "-m", "ruff", *words, "--isolated", "--line-length", "100", "."]
        ended = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
        assert ended.returncode == 0, ended.stdout


@pytest.mark.parametrize("target", SCRIPTS)
def test_a_script_holds_only_what_its_rung_needs(target: str) -> None:
    found = text(target, "plain")
    for word in ("peft", "bitsandbytes", "checkpoint", "autocast", "os.environ"):
        assert word not in re.sub(r"\w+_checkpointing=False", "", found), word
    functions = [node for node in ast.parse(found).body if isinstance(node, ast.FunctionDef)]
    for function in functions:
        assert found.count(f"{function.name}(") > 1 or f"={function.name}," in found


def test_the_words_of_the_installed_versions_are_written() -> None:
    old = export(rung({"transformers": "4.55.0"}, activation_checkpointing="full"), "trainer")
    assert "torch_dtype=" in old and "gradient_checkpointing=True" in old
    new = export(rung({"transformers": "5.23.0"}, activation_checkpointing="full"), "trainer")
    assert " dtype=" in new and "activation_checkpointing=True" in new


@pytest.mark.parametrize(
    ("target", "values", "words"),
    [
        ("pytorch", {"sharding": "ddp", "world_size": 2}, "sharding = ddp"),
        ("pytorch", {"offload": "optimizer"}, "offload = optimizer"),
        ("pytorch", {"optimizer": "lomo"}, "the optimizer lomo"),
        ("trainer", {"offload": "activations"}, "offload = activations"),
        ("trainer", {"packing": "packed"}, "packing = packed"),
        ("pytorch", {"objective": "dpo"}, "objective = dpo"),
        ("unsloth", {"objective": "grpo", "num_generations": 4}, "objective = grpo"),
        ("llama-factory", {"objective": "grpo", "num_generations": 4}, "objective = grpo"),
        ("torchtune", {"objective": "reward"}, "objective = reward"),
        ("pytorch", {"fp8": "transformer_engine"}, "fp8 = transformer_engine"),
        ("trl", {"optimizer_in_backward": True}, "optimizer_in_backward"),
        ("trainer", {"loss": "chunked"}, "loss = chunked"),
        ("pytorch", {"loss": "chunked"}, "loss = chunked"),
        ("trl", {"sharding": "fsdp", "world_size": 4, "reduce_dtype": "float32"}, "reduce_dtype"),
        ("trainer", {"sharding": "fsdp", "world_size": 4, "prefetch": "forward"}, "prefetch"),
    ],
)
def test_what_a_target_cannot_say_is_refused(
    target: str, values: dict[str, Any], words: str
) -> None:
    with pytest.raises(OomDoctorError, match=words) as caught:
        export(rung(**values), target)
    assert caught.value.exit_code == ExitCode.NO


def test_other_tasks_are_refused() -> None:
    config = TrainConfig(micro_batch_size=1)
    with pytest.raises(OomDoctorError, match="the task masked-lm"):
        export(StackRung(config, "a", "m", task="masked-lm"), "trainer")


@pytest.mark.parametrize("target", SCRIPTS)
def test_a_name_cannot_add_code(target: str) -> None:
    evil = 'm"""\nimport os\nos.abort()\n"""\\'
    config = TrainConfig(micro_batch_size=2, effective_batch_size=4)
    found = export(StackRung(config, evil, evil, origin=(evil,), revision=evil), target)
    calls = [node for node in ast.walk(ast.parse(found)) if isinstance(node, ast.Attribute)]
    assert "abort" not in {call.attr for call in calls}
    defaults = [node.value for node in ast.walk(ast.parse(found)) if isinstance(node, ast.Constant)]
    assert evil in defaults


def test_nodes_that_copy_a_model_are_a_mesh() -> None:
    found = export(rung(sharding="hybrid", world_size=16, effective_batch_size=32), "trl")
    assert "ParallelismConfig(dp_replicate_size=2, dp_shard_size=8)" in found
    assert "from accelerate.parallelism_config import ParallelismConfig" in found
    assert "torchrun --nnodes 2" in found and "--nproc-per-node 8" in found


def test_a_sharded_rung_says_how_it_is_started() -> None:
    found = export(rung(sharding="zero2", world_size=4), "trainer")
    assert "torchrun --nproc-per-node 4 train.py" in found and '"stage": 2' in found


@pytest.mark.parametrize(
    ("values", "found"),
    [
        ({"objective": "dpo", "sharding": "fsdp"}, '{"device_map": None}'),
        ({"objective": "dpo", "sharding": "ddp"}, None),
        ({"objective": "dpo", "sharding": "fsdp", "method": "lora"}, None),
        ({"objective": "dpo", "reference": "precomputed", "sharding": "fsdp"}, "device_map"),
        ({"objective": "grpo", "reference": "kl", "sharding": "fsdp"}, "device_map"),
        ({"objective": "grpo", "reference": "kl", "revision": "main"}, '{"revision": "main"}'),
        ({"objective": "grpo", "sharding": "fsdp"}, None),
    ],
)
def test_how_trl_loads_a_reference_is_said(values: dict[str, Any], found: str | None) -> None:
    """With FSDP TRL itself would spread it over the GPUs, and it would ask for no revision."""
    gpus = 2 if "sharding" in values else 1
    revision = values.pop("revision", None)
    script = export(replace(rung(world_size=gpus, **values), revision=revision), "trl")
    assert ("model_init_kwargs" in script) == (found is not None)
    assert found is None or found in script.split("model_init_kwargs")[1].splitlines()[0]


def test_rows_that_all_ranks_add_to_are_in_a_file_that_all_read() -> None:
    values = {"objective": "dpo", "reference": "precomputed", "method": "lora"}
    assert "Dataset.from_list" in export(rung(**values), "trl")
    shared = export(rung(**values, world_size=2, sharding="ddp"), "trl")
    assert "Dataset.from_json" in shared and "Dataset.from_list" not in shared


def test_every_part_of_scripts_is_used() -> None:
    named = re.findall(r"^#: (\w+)", data_text("scripts/parts.py.txt"), re.MULTILINE)
    folder = Path(stacks.__file__).with_name("scripts")
    code = "".join(file.read_text(encoding="utf-8") for file in folder.glob("*.py"))
    used = set(re.findall(r"\b(?:function|lines)\(\s*\"(\w+)\"", code))
    assert set(named) == used
    assert len(named) == len(used)
