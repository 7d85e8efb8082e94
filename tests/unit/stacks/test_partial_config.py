"""The partial configuration lists every key that a table of a program can set."""

from __future__ import annotations

from dataclasses import fields

import pytest

from oomdoctor.records.configuration.config import TrainConfig
from oomdoctor.stacks.partial_config import PartialConfig, RungKeys
from oomdoctor.stacks.programs import PROGRAMS
from oomdoctor.stacks.reading.partial import OTHERS

TABLES = [table for program in PROGRAMS for table in (program.names, program.script)]
ALL = [*(table for table in TABLES if table is not None), OTHERS]


def test_the_keys_of_a_rung_are_those_of_its_record() -> None:
    assert set(RungKeys.__annotations__) == {field.name for field in fields(TrainConfig)}


@pytest.mark.parametrize("table", ALL)
def test_no_table_sets_a_key_that_is_not_listed(table) -> None:
    keys = {key for row in table.rows for key in row.keys} | set(table.defaults)
    assert keys <= set(PartialConfig.__annotations__)


def test_every_key_is_set_by_a_table() -> None:
    keys = {key for table in ALL for row in table.rows for key in row.keys}
    keys |= {key for table in ALL for key in table.defaults}
    more = set(PartialConfig.__annotations__) - set(RungKeys.__annotations__) - keys
    assert more == {
        *("freezes", "first_version", "batch_of_micro"),
        *("deepspeed_file", "deepspeed_file_of_launcher"),
        *("eval_batch_size", "eval_accumulation_steps", "workers"),
    }
