"""The lines that `explain` tells to type are lines that the library takes."""

from __future__ import annotations

import ast
from dataclasses import fields
from importlib.metadata import version

import pytest

from oomdoctor.explain.remedies.table import TABLE

LINES = [(row.key, line) for row in TABLE.values() for line in row.lines.values()]


@pytest.mark.skipif(version("transformers") < "5", reason="the lines are those of transformers 5")
def test_training_arguments_exist():
    from transformers import TrainingArguments

    known = {field.name for field in fields(TrainingArguments)}
    told = 0
    for key, line in LINES:
        if line.startswith("TrainingArguments("):
            call = ast.parse(line.replace("$half=", "bf16=").replace("$", ""), mode="eval").body
            assert isinstance(call, ast.Call)
            assert {argument.arg for argument in call.keywords} <= known, key
            told += 1
    assert told > 10
