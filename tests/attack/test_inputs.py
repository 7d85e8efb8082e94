"""Hostile files end with a reason in little time, and odd ones that are fine are read."""

from __future__ import annotations

import json
import math
import pickle
import time
from pathlib import Path

import pytest
from attack import MODEL as LLAMA

from oomdoctor.errors import OomDoctorError
from oomdoctor.records.codec import dumps, loads
from oomdoctor.records.job.model import ModelSpec
from oomdoctor.records.report.user_training import Document
from oomdoctor.snapshot.reading.snapshot import read_snapshot
from oomdoctor.system.models.checkpoint import read_config
from oomdoctor.system.settings_file import read_with_text
from oomdoctor.system.training_files import with_named_file
from oomdoctor.worker.training.model_config import load_config

MAPPINGS = "".join(
    f"a{i}: &a{i} {{l: *a{i - 1}, r: *a{i - 1}}}\n" if i else "a0: &a0 {x: 1, y: 2}\n"
    for i in range(30)
)
LISTS = "".join(
    f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]\n" if i else "a0: &a0 [x, x]\n"
    for i in range(9)
)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (MAPPINGS, "aliases stand for more values"),
        (LISTS, "aliases stand for more values"),
        ("lora: &a {b: *a}\n", "an alias is inside"),
        ("lora: &a [*a]\n", "an alias is inside"),
        ('{"a":' * 5000 + "1" + "}" * 5000, "nested too deeply"),
        ("a: " + "[" * 5000 + "]" * 5000, "nested too deeply"),
        ('{"a": ' + "9" * 5000 + "}", "limit"),
    ],
)
def test_a_file_of_settings_is_refused(text: str, reason: str, tmp_path: Path) -> None:
    """YAML of 1 kB took 24 GB; an alias inside itself was an internal error."""
    file = tmp_path / "train.yaml"
    file.write_text(text)
    began = time.process_time()
    with pytest.raises(OomDoctorError, match=reason) as error:
        read_with_text(file, "--from")
    assert error.value.exit_code == 2
    assert time.process_time() - began < 10


def test_aliases_that_repeat_little_are_read(tmp_path: Path) -> None:
    file = tmp_path / "train.yaml"
    file.write_text("a: &a {x: 1}\nb: *a\nc: [*a, *a]\n")
    assert read_with_text(file, "--config")[0] == {
        "a": {"x": 1},
        "b": {"x": 1},
        "c": [{"x": 1}, {"x": 1}],
    }


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (json.dumps(LLAMA)[:-1] + ', "n": ' + "9" * 5000 + "}", "thousands of digits"),
        ('{"a":' + "[" * 100_000 + "]" * 100_000 + "}", "nested too deeply"),
        (json.dumps(LLAMA | {"num_hidden_layers": 10**9}), "no model has as many layers"),
        (json.dumps({"text_config": LLAMA | {"num_hidden_layers": 10**9}}), "as many layers"),
        ("[]", "not a JSON object"),
        ("", "not valid JSON"),
    ],
)
def test_a_configuration_of_a_model_is_refused(text: str, reason: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(OomDoctorError, match=reason) as error:
        read_config(tmp_path / "config.json")
    assert error.value.exit_code == 4


def test_infinity_reaches_the_model(tmp_path: Path) -> None:
    """Published state-space models have it; it was an internal error."""
    text = json.dumps(LLAMA | {"rope_theta": math.inf, "time_step_limit": [0.0, math.inf]})
    (tmp_path / "config.json").write_text(text)
    config = read_config(tmp_path / "config.json")
    spec = ModelSpec("me/m", "local", "LlamaForCausalLM", "llama", "causal-lm", config)
    built = load_config(loads(ModelSpec, dumps(spec)))
    assert built.time_step_limit == [0.0, math.inf]


def test_attention_of_the_hub_is_not_asked_for() -> None:
    config = LLAMA | {"_attn_implementation": "someone/kernel"}
    spec = ModelSpec("me/m", "local", "LlamaForCausalLM", "llama", "causal-lm", config)
    assert load_config(spec)._attn_implementation != "someone/kernel"


def test_a_line_number_that_no_file_has_is_damage(tmp_path: Path) -> None:
    """10**30 was an internal error."""
    frame = {"filename": "x.py", "line": 10**30, "name": "f"}
    block = {"address": 1 << 40, "size": 512, "state": "active_allocated", "frames": [frame]}
    segment = {"device": 0, "address": 1 << 40, "total_size": 512, "stream": 0, "blocks": [block]}
    file = tmp_path / "snapshot.pickle"
    file.write_bytes(pickle.dumps({"segments": [segment], "device_traces": [[]]}))
    with pytest.raises(OomDoctorError, match="line number that no file has") as error:
        read_snapshot(file)
    assert error.value.exit_code == 2


def test_a_name_that_no_file_can_have_is_missing(tmp_path: Path) -> None:
    document = Document(str(tmp_path / "train.yaml"), {"deepspeed": "x" * 100_000})
    assert with_named_file(document) == document.values
