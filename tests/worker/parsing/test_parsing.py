"""What is written for TRL, the Trainer and accelerate passes their own parsing."""

from __future__ import annotations

import sys
from importlib import metadata
from importlib.util import find_spec

import pytest
import yaml
from stack_rungs import RUNGS

from oomdoctor.commands.user_training import checked
from oomdoctor.stacks.export import export, settings_of
from oomdoctor.stacks.reading.script import read_script
from oomdoctor.stacks.rung import StackRung
from oomdoctor.worker import parsing
from oomdoctor.worker.parsing import ParserError

pytestmark = pytest.mark.slow


def test_accelerate_loads_what_is_written() -> None:
    for config in RUNGS.values():
        settings = yaml.safe_load(export(StackRung(config, "a rung", "m"), "accelerate"))
        if "parallelism_config" in settings and find_spec("accelerate.parallelism_config") is None:
            continue  # of a newer accelerate
        found = parsing.accelerate(settings)
        assert found["num_processes"] == config.world_size
        assert found["distributed_type"] == settings["distributed_type"]


@pytest.mark.parametrize("program", ("trl", "trainer"))
def test_the_trainers_parse_what_is_written(program: str) -> None:
    pytest.importorskip("trl")
    parse = {"trl": parsing.trl, "trainer": parsing.trainer}[program]
    seen: set[str] = set()
    for config in list(RUNGS.values())[::4]:
        settings = settings_of(config, program)
        if config.optimizer in seen:
            continue  # the others differ in settings that are not parsed apart
        seen.add(config.optimizer)
        found = parse(settings)
        assert found["per_device_train_batch_size"] == config.micro_batch_size
        assert found["gradient_accumulation_steps"] == config.accumulation_steps()
        if program == "trl":
            assert found["max_length"] == config.sequence_length
            assert found["use_peft"] == (config.method != "full")
    assert len(seen) >= 3


def test_what_a_parser_refuses_names_the_setting() -> None:
    with pytest.raises(ParserError, match="not a valid OptimizerNames") as raised:
        parsing.trainer({"optim": "adamw_bogus"})
    assert raised.value.setting == "optim"
    with pytest.raises(ParserError, match="unknown keys") as raised:
        parsing.accelerate(
            {"compute_environment": "LOCAL_MACHINE", "distributed_type": "NO", "bogus": 1}
        )
    assert raised.value.setting == "bogus"


def test_a_script_may_have_settings_that_the_trainer_does_not() -> None:
    found = parsing.trainer({"my_own": 1, "bf16": True})
    assert found["bf16"] is True
    assert "my_own" not in found


def test_of_a_script_only_the_release_of_trl_is_asked() -> None:
    pytest.importorskip("trl")
    text = "from trl import SFTConfig\nSFTConfig(max_length=512, optim='adamw_bogus')\n"
    (found,) = checked((read_script("sft.py", text),), sys.executable)
    assert found.library == f"trl {metadata.version('trl')}"
    assert found.parser is None and not found.effective.get("optim")
