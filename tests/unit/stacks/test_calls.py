"""Lines of `explain` for a Trainer and for TRL come from the tables that scripts are read with."""

from __future__ import annotations

from dataclasses import replace

import pytest
import yaml  # type: ignore[import-untyped]

from oomdoctor.explain.remedies.row import fill
from oomdoctor.explain.remedies.table import TABLE
from oomdoctor.records.configuration.config import TrainConfig
from oomdoctor.records.report.user_training import Document
from oomdoctor.stacks.reading.finish import finished
from oomdoctor.stacks.reading.merge import draft_of
from oomdoctor.stacks.reading.script import read_script
from oomdoctor.stacks.writing.changed_lines import (
    IN_FILES,
    ON_COMMAND_LINES,
    changed_lines,
    said_by_programs,
    unsaid,
)

SAID = [key for key, row in TABLE.items() if said_by_programs(row.settings)]


def test_the_settings_of_remedies_are_said_by_programs() -> None:
    assert {"checkpointing", "liger", "adamw_8bit", "paged_adamw", "adafactor"} <= set(SAID)
    assert said_by_programs({}) == {}
    assert said_by_programs({"offload": "activations"}) == {
        "trl": "SFTConfig(activation_offloading=True)",
        "axolotl": "activation_offloading: true",
        "torchtune": "enable_activation_offloading: true",
    }
    assert "torchtune" not in said_by_programs({"method": "lora"})  # another builder


@pytest.mark.parametrize("key", ["smaller_batch", "shorter_sequence"])
def test_lines_with_numbers_are_settings_of_their_programs(key: str) -> None:
    for program in IN_FILES:
        line = fill(TABLE[key].lines[program], {"batch": "3", "steps": "5", "length": "192"})
        document = Document("train.yaml", yaml.safe_load(line), asked=program)
        config = finished(draft_of([document]), dict).config
        if key == "smaller_batch":
            assert (config.micro_batch_size, config.accumulation_steps()) == (3, 5)
        else:
            assert config.sequence_length == 192


def test_a_setting_that_says_the_same_as_before_stays() -> None:
    """LoRA and QLoRA are one `finetuning_type` of LLaMA-Factory; it has no qlora."""
    values = {"finetuning_type": "lora", "cutoff_len": 512, "per_device_train_batch_size": 1}
    training = finished(draft_of([Document("a.yaml", values, asked="llama-factory")]), dict)
    after = replace(training.config, method="qlora", quantization="nf4")
    assert unsaid(training, replace(after, quant_storage="bfloat16")) == ()  # its own choice
    names = {line.name for line in changed_lines(training, after)}
    assert "quantization_bit" in names and "finetuning_type" not in names


@pytest.mark.parametrize("key", SAID)
def test_a_line_of_a_remedy_is_read_as_its_settings(key: str) -> None:
    settings = TABLE[key].settings
    for name, line in said_by_programs(settings).items():
        if name in IN_FILES:
            document = Document("train.yaml", yaml.safe_load(line), asked=name)
        elif name in ON_COMMAND_LINES:
            words = line.split()
            pairs = zip(words[::2], words[1::2], strict=True)
            options = {name.removeprefix("--"): yaml.safe_load(value) for name, value in pairs}
            document = Document("train.yaml", options, asked=name)
        else:
            document = read_script("train.py", line)
        config = finished(draft_of([document]), dict).config
        assert {name: getattr(config, name) for name in settings} == settings, line
        assert set(settings) <= set(TrainConfig.__slots__)
