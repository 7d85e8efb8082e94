"""`--from`: the user's own files on the command line, and what the page says about them."""

from __future__ import annotations

import json
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

import pytest
from library_ends import needs_trl
from tiny_models import tiny_folder

from oomdoctor.records.codec import loads
from oomdoctor.records.configuration.keys import label_of
from oomdoctor.records.report.report import Report
from oomdoctor.records.report.user_training import (
    AddedCode,
    ChangedLine,
    UserTraining,
    YourChange,
    YourRung,
)
from oomdoctor.render import render_report
from oomdoctor.render.formats import Style
from oomdoctor.render.ladder.answer import answer_lines

FILES = Path(__file__).parents[1] / "data" / "stacks" / "files"


@pytest.fixture
def _no_libraries(monkeypatch: pytest.MonkeyPatch) -> None:
    """The published names have to do, which takes no seconds."""
    monkeypatch.setattr("oomdoctor.commands.user_training.checked", lambda documents, _: documents)


def asked(cli, planned, *words: str):
    planned.request = None
    ended = cli("plan", *words)
    assert planned.request is not None, ended.err
    return planned.request


@pytest.mark.usefixtures("_no_libraries")
def test_model_and_settings_are_those_of_the_file(cli, planned):
    request = asked(cli, planned, "--from", str(FILES / "axolotl_qlora.yml"), "--gpu", "L4")
    assert request.model.name == "Qwen/Qwen2.5-0.5B"
    first = request.recipe.rungs[0]
    assert (first.label, first.config.method, first.config.micro_batch_size) == (
        "yours",
        "qlora",
        2,
    )
    assert (request.sequence_length, request.effective_batch_size) == (4096, 8)
    others = {rung.config.sequence_length for rung in request.recipe.rungs}
    assert others == {4096}
    assert {rung.config.effective_batch_size for rung in request.recipe.rungs} == {8}
    assert len(request.recipe.rungs) > 10


@pytest.mark.usefixtures("_no_libraries")
def test_a_rung_is_yours_with_other_keys(cli, planned):
    file = str(FILES / "axolotl_qlora.yml")
    words = ("--from", file, "--gpu", "L4", "--recipe", "none")
    request = asked(
        cli, planned, *words, "--rung", "yours,packing=none,attention=sdpa,padding=longest"
    )
    yours, padded = request.recipe.rungs
    assert padded.config == replace(
        yours.config, packing="none", attention="sdpa", padding="longest"
    )
    assert padded.label.endswith("+pad-longest")
    ended = cli("plan", "gpt2", "--gpu", "L4", "--rung", "yours,padding=longest")
    assert ended.code == 2
    assert "yours: is the configuration of --from, which is not given" in ended.err


@pytest.mark.usefixtures("_no_libraries")
def test_the_command_line_overrides_the_file(cli, planned):
    file = str(FILES / "sft.yaml")
    request = asked(cli, planned, "gpt2", "--from", file, "--gpu", "L4", "--recipe", "none",
                    "--seq-len", "512", "--micro-batch", "1")  # fmt: skip
    assert request.model.name == "gpt2"
    (yours,) = request.recipe.rungs
    assert yours.config.sequence_length == 512
    assert (yours.config.micro_batch_size, yours.config.effective_batch_size) == (1, 16)
    left = {one.name: one.reason for one in request.user_training.not_taken}
    assert left["max_length"] == "--seq-len says 512"


@pytest.mark.usefixtures("_no_libraries")
def test_a_launcher_says_how_many_gpus(cli, planned):
    words = ["--from", str(FILES / "trainer.yaml"), "--from", str(FILES / "accelerate_zero3.yaml")]
    request = asked(cli, planned, *words, "--gpu", "H100")
    assert request.gpus == 8
    assert request.recipe.name == "sharded"
    assert request.recipe.rungs[0].config.sharding == "zero3"


@pytest.mark.usefixtures("_no_libraries")
@pytest.mark.parametrize(
    ("text", "message", "hint"),
    [
        (None, "No such file", "check the path"),
        ("hello: world\n", "no setting here tells which program reads it", "--from PROGRAM:"),
        ("max_length: many\n", r"line|train.yaml:1: max_length must be a whole number", "fix"),
        ("max_length: 128\n", "MODEL: is missing: the files", "--help"),
        ("max_length: 128\nfsdp: full_shard\n", "no file says on how many GPUs", "add --gpus N"),
        ("max_length: 0\nmodel_name_or_path: m\n", "must be at least 1", "fix the file"),
        ("bf16: true\nfp16: true\n: [\n", "line 3", "fix the file"),
    ],
)
def test_files_that_cannot_be_used_are_errors(cli, planned, tmp_path, text, message, hint):
    file = tmp_path / "train.yaml"
    if text is not None:
        file.write_text(text)
    ended = cli("plan", "--from", str(file), "--gpu", "L4")
    assert ended.code == 2
    assert planned.request is None
    assert any(part in ended.err for part in message.split("|")), ended.err
    assert hint in ended.err


def _report(golden, yours: YourRung) -> Report:
    """The example of a plan whose first rung is the user's."""
    report = golden("plan")
    training = loads(UserTraining, (FILES.parent / "user_training.json").read_text())
    request = replace(report.request, user_training=training)
    first = report.results[0]
    return replace(report, request=request, yours=replace(yours, key=first.key))


def test_the_page_says_how_a_script_makes_a_change(golden):
    lines = (
        ChangedLine("a/train.py", "per_device_train_batch_size", "8", "1", 3, "ROWS = 1"),
        ChangedLine("a/train.py", "optim", None, "sgd", 5, 'optim="sgd"', "TrainingArguments"),
        ChangedLine("a/train.py", "packing", "true", None, 6, "without packing", "SFTConfig"),
    )
    where = "below the call that loads the model"
    code = AddedCode("a/train.py", "below", 2, where, "model = wrap(\n    model\n)", ("import x",))
    change = YourChange("LoRA", "yours,method=lora", lines, 1, 16, 8 << 30, None, None, "predicted",
                        (code,))  # fmt: skip
    report = _report(golden, YourRung("", "yours", "fits", (change,), ("x",), None))
    text = render_report(report, "table", Style(width=100))
    assert (
        'in train.py: ROWS = 1 (line 3), add optim="sgd" to TrainingArguments(...) (line 5), '
        "SFTConfig(...) without packing (line 6); the code below" in text
    )
    pasted = "(line 2):\n  import x\n\n  model = wrap(\n      model\n  )\n"
    assert f"LoRA: in train.py, {where} {pasted}" in text


def test_the_page_has_yours_first_and_only_once(golden):
    change = YourChange(
        "micro-batch size 1",
        "method=lora",
        (
            ChangedLine("a/train.yaml", "micro_batch_size", "2", "1", 13),
            ChangedLine("a/train.yaml", "flash_attention", "true", None, 4),
            ChangedLine("a/train.yaml", "attn_implementation", None, "sdpa", None),
            ChangedLine(None, "PYTORCH_CUDA_ALLOC_CONF", None, "expandable_segments:True", None),
        ),
        1, 16, 8 << 30, 1234.0, 1.5,
    )  # fmt: skip
    report = _report(golden, YourRung("", "yours", "fits", (change,), ("x",), None))
    text = render_report(report, "table", Style(width=100))
    head, _, rest = text.partition("Yours: train.yaml")
    label = report.results[0].label
    assert rest and "Fits" not in head
    fitting = sum(one.surely_fits for one in report.results)
    assert f": {fitting} of {len(report.results)} configs" in head
    assert sum(line.strip().startswith((label, f"1  {label}")) for line in rest.splitlines()) <= 1
    config = report.request.user_training.config
    length = f"sequence length {config.sequence_length:,}"
    assert f"Read as    {label_of(config)}, {length}\n" in rest
    assert "Fits with  micro-batch size 1: peak 8.00 GiB, ~1,230 tokens/s (1.50x)" in rest
    assert (
        "in train.yaml: micro_batch_size: 1 (line 13), remove flash_attention (line 4), add "
        "attn_implementation: sdpa; in the environment: "
        "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True" in rest
    )
    assert "Not taken  packing: true (line 9): no reason" in rest
    more = render_report(report, "table", Style(width=100, verbose=True))
    for one in report.request.user_training.said:
        assert f"{one.name} {one.value} (line {one.line})" in more
    assert "1 setting that does not change memory or speed" in rest
    assert loads(Report, render_report(report, "json", Style(width=100))) == report


@pytest.mark.parametrize(
    ("outcome", "notes", "said"),
    [
        ("oom", (), "Yours does not fit: short by 61.0 GiB, needs 84.0 GiB; fits with LoRA"),
        ("fits", (), "Yours fits: 84.0 of "),
        ("fits", ("borderline: it may not fit",), "Yours is borderline: 84.0 of "),
        ("oom", ("borderline: it may not fit",), "Yours is borderline: 84.0 of "),
        ("failed", (), "Yours was not simulated"),
    ],
)
def test_the_headline_is_about_yours(golden, outcome, notes, said):
    change = YourChange("LoRA", "yours,method=lora", (), 1, 16, 8 << 30, None, None)
    report = _report(golden, YourRung("", "yours", "fits", (change,), (), None))
    first = report.results[0]
    peak = replace(first.measurement, peak_reserved_bytes=84 << 30, peak_device_bytes=84 << 30)
    own = replace(
        first,
        outcome=outcome,
        measurement=peak,
        peak_device_bytes=84 << 30,
        missed_by_bytes=61 << 30 if outcome == "oom" else None,
        notes=notes,
        borderline=bool(notes),
    )
    report = replace(report, results=(own, *report.results[1:]))
    assert answer_lines(report, "±")[0].startswith(said)


@needs_trl
@pytest.mark.slow
@pytest.mark.usefixtures("one_simulator")
def test_a_plan_of_the_own_file_tries_changes(cli, tmp_path):
    tiny_folder(tmp_path / "model")
    file = tmp_path / "train.yaml"
    file.write_text(
        f"model_name_or_path: {tmp_path / 'model'}\nmax_length: 64\nlearning_rate: 1.0e-4\n"
        "per_device_train_batch_size: 1\ngradient_accumulation_steps: 4\ndtype: bfloat16\n"
    )
    ended = cli("plan", "--from", str(file), "--gpu", "L4", "--recipe", "none", "--json")
    assert ended.code == 0, ended.err
    report = json.loads(ended.out)
    (row,) = report["results"]
    assert (row["label"], row["outcome"], row["micro_batch_size"]) == ("yours", "fits", 1)
    assert row["config"]["activation_checkpointing"] == "full"  # the default of TRL
    assert report["yours"]["aim"] == "faster"
    assert "no activation checkpointing" in report["yours"]["tried"]
    best = report["yours"]["changes"][0]
    assert best["speedup"] > 1
    assert best["lines"][0]["file"] == str(file)
    parser = report["request"]["user_training"]["files"][0]["parser"]
    assert parser.startswith("trl ") if find_spec("trl") else parser is None
    left = {one["name"]: one["matters"] for one in report["request"]["user_training"]["not_taken"]}
    assert left == {"learning_rate": False}
    short = cli("plan", "--from", str(file), "--gpu", "500MiB", "--recipe", "none", "--json")
    answer = json.loads(short.out)
    own = answer["results"][0]
    expected = (0, "ok") if own["outcome"] == "fits" else (3, "no")
    if own["borderline"]:
        expected = (6, "partial")
    assert (short.code, answer["status"]) == expected
    assert answer["yours"]["aim"] == "fits"
    assert answer["yours"]["reason"] or answer["yours"]["changes"]


@pytest.mark.slow
@pytest.mark.usefixtures("one_simulator")
def test_a_probe_measures_the_change_that_is_simulated_to_fit(cli, tmp_path):
    tiny_folder(tmp_path / "model")
    file = tmp_path / "train.yaml"
    file.write_text(
        f"model_name_or_path: {tmp_path / 'model'}\nmax_length: 64\ndtype: bfloat16\n"
        "per_device_train_batch_size: 2\ngradient_accumulation_steps: 4\n"
        "loss_type: dft\n"  # the only one of TRL that is not computed in chunks
    )
    ended = cli("probe", "--from", str(file), "--device", "cpu", "--recipe", "none", "--vram",
                "1.9MiB", "--json")  # fmt: skip
    assert ended.code == 3, ended.err
    report = json.loads(ended.out)
    (row,) = report["results"]
    assert (row["label"], row["outcome"]) == ("yours", "oom")
    yours = report["yours"]
    assert (yours["aim"], yours["tried"]) == ("fits", ["micro-batch size 1"])
    (change,) = yours["changes"]
    assert (change["change"], change["evidence"]) == ("micro-batch size 1", "measured")
    assert 0 < change["peak_device_bytes"] <= report["budget"]["usable_bytes"]
    assert change["tokens_per_s"] > 0
    assert [line["line"] for line in change["lines"]] == [4, 5]
    assert "[2/2] yours with micro-batch size 1: fits" in ended.err


@pytest.mark.parametrize(
    ("changes", "masks"),
    [
        ({"micro_batch_size": 4}, "masks of 128 MiB in each layer"),
        ({"micro_batch_size": 4, "activation_checkpointing": "full"}, "masks of 192 MiB in all"),
        ({"micro_batch_size": 1, "objective": "dpo"}, "masks of 64.0 MiB in each layer"),
        ({"micro_batch_size": 1}, None),
        ({"micro_batch_size": 4, "attention": "flash_attention_2"}, None),
        ({"micro_batch_size": 4, "packing": "packed"}, None),
        ({"micro_batch_size": 4, "padding": "longest"}, None),
    ],
)
def test_the_page_says_what_padding_would_need(golden, changes, masks):
    """The figures are those of eight layers on the emulated GPU, with a batch that is padded."""
    report = _report(golden, YourRung("", "yours", None, (), (), None))
    training = report.request.user_training
    usual = {"weights_dtype": "bfloat16", "autocast_dtype": "none", "sequence_length": 4096}
    usual |= {"attention": "sdpa", "activation_checkpointing": "none", "packing": "none"}
    config = replace(training.config, **(usual | changes))
    request = replace(report.request, user_training=replace(training, config=config))
    text = render_report(replace(report, request=request), "table", Style(width=120))
    assert ("rows without padding" in text) is (masks is not None)
    assert masks is None or masks in text
    assert ("add --rung yours,padding=longest" in text) is (masks is not None)


def test_a_rung_without_changes_says_why_in_one_sentence(golden):
    """It said "Faster with nothing that was tried: its speed cannot be estimated"."""
    reason = "its speed cannot be estimated, so no change is known to make it faster"
    report = _report(golden, YourRung("", "yours", "faster", (), (), reason))
    text = render_report(report, "table", Style(width=120))
    lines = [" ".join(line.split()) for line in text.splitlines()]
    assert f"Changes {reason}" in lines
    assert "Faster with" not in text
