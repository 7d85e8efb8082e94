"""What `export` writes has no character that a terminal, an editor or a parser acts on."""

from __future__ import annotations

import ast
import json
from typing import get_args

import pytest
import yaml

from oomdoctor.records.configuration.config import TrainConfig
from oomdoctor.records.facts.choices import FormatName
from oomdoctor.stacks.export import export
from oomdoctor.stacks.rung import StackRung
from oomdoctor.stacks.scripts.code import literal
from oomdoctor.stacks.writing.yaml_text import scalar, yaml_text

SIGNS = "\x1b]0;title\x07\x00\x7f\x85\x9b31m\u200b\u2028\u2029\u202e\u2066\ufeff\U000e0041\r\n\t"
HOSTILE = f'a/{SIGNS}"\'\\"""b'


@pytest.mark.parametrize("target", get_args(FormatName))
def test_a_hostile_name(target: str) -> None:
    """A raw escape stood in the comments of YAML, and a change of direction in strings."""
    config = TrainConfig(micro_batch_size=2, method="lora", lora_targets=("q_proj", HOSTILE))
    if target == "deepspeed":
        config = TrainConfig(micro_batch_size=2, sharding="zero2", world_size=2)
    rung = StackRung(
        config,
        HOSTILE,
        # torchtune has a list of models
        "meta-llama/Llama-3.1-8B" if target == "torchtune" else HOSTILE,
        origin=(f"Measured {HOSTILE}.",),
        beside={"output_dir": HOSTILE, "dataset": HOSTILE},
    )
    text = export(rung, target)
    assert not {sign for sign in text if not sign.isprintable()} - {"\n"}
    if text.startswith("{"):
        assert json.loads(text)
    elif text.startswith("#"):
        assert isinstance(yaml.safe_load(text), dict)
    else:
        assert ast.parse(text)


def test_the_value_stays() -> None:
    for text in (HOSTILE, "😀 é \u202e", *map(chr, range(256))):
        assert ast.literal_eval(literal(text)) == text
        if "\x00" not in text:
            assert yaml.safe_load(f"a: {scalar(text)}") == {"a": text}
            assert yaml.safe_load(yaml_text({text: 1})) == {text: 1}
    assert literal("é 😀") == '"é 😀"'
