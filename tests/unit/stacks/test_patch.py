"""Settings are changed in the text of a file, and every other character stays as it is."""

from __future__ import annotations

import json
from typing import Any

import pytest
import yaml
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from oomdoctor.stacks.reading.script import parse
from oomdoctor.stacks.writing.patch import Edit, NotPatchedError, patched

YAML = """\
# my training
model: org/m   # the base
batch: 4       # per GPU
targets: [q, v]  # of attention
empty:
fsdp:
  offload: false   # keep
  # nothing more

# the end
"""


def changed(text: str, name: str, value: Any, path: str = "train.yaml") -> str:
    return patched(path, text, [Edit(name, value)])


@pytest.mark.parametrize(
    ("name", "value", "old", "new"),
    [
        ("batch", 1, "batch: 4       # per GPU", "batch: 1       # per GPU"),
        ("targets", ["k"], "[q, v]  # of", "[k]  # of"),
        ("empty", True, "empty:\n", "empty: true\n"),
        ("fsdp.offload", True, "offload: false   # keep", "offload: true   # keep"),
        ("model", "a b: c", "org/m   #", '"a b: c"   #'),
    ],
)
def test_only_the_value_changes(name: str, value: Any, old: str, new: str) -> None:
    assert changed(YAML, name, value) == YAML.replace(old, new)


def test_new_settings_stand_behind_the_last_of_their_table() -> None:
    text = changed(YAML, "fsdp.version", 2)
    assert "  offload: false   # keep\n  version: 2\n" in text
    text = changed(YAML, "deepspeed.zero.stage", 2)
    assert yaml.safe_load(text)["deepspeed"] == {"zero": {"stage": 2}}
    assert "# the end" in text
    assert changed("a: 1", "b", 2) == "a: 1\nb: 2\n"
    assert changed("{a: 1}\n", "b", 2) == "{a: 1, b: 2}\n"


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("a: |\n  many\n  lines\n", "a"),
        ("a:\n  - x\n  - y\n", "a"),
        ("a: &anchor 1\nb: *anchor\n", "a"),
        ("a: 1\n", "a.b"),
        ("- a\n- b\n", "a"),
    ],
)
def test_what_cannot_be_changed_in_place_is_refused(text: str, name: str) -> None:
    with pytest.raises(NotPatchedError):
        changed(text, name, 5)


@settings(max_examples=60)
@given(
    st.dictionaries(
        st.from_regex(r"[a-z]{1,8}", fullmatch=True),
        st.one_of(st.integers(), st.booleans(), st.text(max_size=8), st.none()),
        min_size=1,
    ),
    st.one_of(st.integers(), st.booleans(), st.sampled_from(["adamw", "no", "a: b", "# x", "1e3"])),
)
@example({"no": None}, 0)
@example({"yes": 1, "null": ""}, "no")
def test_any_table_says_the_new_value_and_else_the_same(values: dict[str, Any], new: Any) -> None:
    text = yaml.safe_dump(values, sort_keys=False, allow_unicode=True)
    name = next(iter(values))
    said = yaml.safe_load(text)
    assume(len(text.splitlines()) == len(values))  # each value on one line
    assert yaml.safe_load(changed(text, name, new)) == said | {name: new}
    assert yaml.safe_load(changed(text, "added_key", new)) == said | {"added_key": new}


def test_json_keeps_its_order_and_indentation() -> None:
    text = json.dumps({"b": 1, "a": {"c": False}}, indent=4) + "\n"
    assert changed(text, "a.c", True, "ds.json") == text.replace("false", "true")
    assert json.loads(changed(text, "z", [1], "ds.json")) == {"b": 1, "a": {"c": False}, "z": [1]}


SCRIPT = """\
import argparse
BATCH = 4  # rows
parser.add_argument("--length", default=2048)
args = parser.parse_args()
training = SFTConfig(
    output_dir="größe",  # ünïcode
    per_device_train_batch_size=BATCH,
    max_length=args.length,
    optim="adamw_torch" if fast else "sgd",
    gradient_checkpointing=False  # slow
)
"""


@pytest.mark.parametrize(
    ("name", "value", "old", "new"),
    [
        ("per_device_train_batch_size", 1, "BATCH = 4", "BATCH = 1"),
        ("max_length", 64, "default=2048", "default=64"),
        ("gradient_checkpointing", True, "=False  #", "=True  #"),
    ],
)
def test_a_literal_of_a_script_changes(name: str, value: Any, old: str, new: str) -> None:
    assert changed(SCRIPT, name, value, "train.py") == SCRIPT.replace(old, new)


def test_a_keyword_is_added_to_a_script() -> None:
    text = changed(SCRIPT, "use_liger_kernel", True, "train.py")
    assert parse("train.py", text).values["use_liger_kernel"] is True
    text = changed("TrainingArguments('o', optim='sgd')\n", "bf16", True, "t.py")
    assert text == "TrainingArguments('o', optim='sgd', bf16=True)\n"


@pytest.mark.parametrize("name", ["optim", "lora_r", "dtype"])
def test_an_expression_and_an_object_of_a_script_are_left_alone(name: str) -> None:
    with pytest.raises(NotPatchedError):
        changed(SCRIPT, name, 1, "train.py")
