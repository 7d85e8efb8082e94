"""Lines of `explain` for a Trainer and for TRL come from the tables that scripts are read with."""

from __future__ import annotations

import pytest

from oomdoctor.explain.remedies.table import TABLE
from oomdoctor.records.configuration.config import TrainConfig
from oomdoctor.stacks.reading.finish import finished
from oomdoctor.stacks.reading.merge import draft_of
from oomdoctor.stacks.reading.script import read_script
from oomdoctor.stacks.writing.changed_lines import said_in_calls

SAID = [key for key, row in TABLE.items() if said_in_calls(row.settings)]


def test_the_settings_of_remedies_are_said_in_calls() -> None:
    assert {"checkpointing", "liger", "adamw_8bit", "paged_adamw", "adafactor"} <= set(SAID)
    assert said_in_calls({}) == {}
    assert said_in_calls({"offload": "activations"}) == {
        "trl": "SFTConfig(activation_offloading=True)"
    }


@pytest.mark.parametrize("key", SAID)
def test_a_line_of_a_remedy_is_read_as_its_settings(key: str) -> None:
    settings = TABLE[key].settings
    for line in said_in_calls(settings).values():
        config = finished(draft_of([read_script("train.py", line)]), dict).config
        assert {name: getattr(config, name) for name in settings} == settings, line
        assert set(settings) <= set(TrainConfig.__slots__)
