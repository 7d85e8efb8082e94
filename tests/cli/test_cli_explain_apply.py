"""`explain --apply`: a diff of the user's file, which is changed only with --write."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from oomdoctor.commands.explain.applied import apply_remedy, start_of
from oomdoctor.commands.run.session import WatchRequest
from oomdoctor.records.report.diagnosis import Diagnosis
from oomdoctor.records.report.user_training import AppliedRemedy, Proof
from oomdoctor.units import GIB

DATA = Path(__file__).parents[1] / "data" / "explain"
SCRIPT = """\
from trl import SFTConfig, SFTTrainer

ROWS = 4  # of one GPU
training = SFTConfig(
    output_dir="out",
    per_device_train_batch_size=ROWS,
    max_length=4960,
    bf16=True,
)
trainer = SFTTrainer(model="meta-llama/Llama-3.1-8B", args=training)
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a log and the file of its training."""
    for name in ("trace.txt", "train.yaml"):
        shutil.copy(DATA / name, tmp_path / name)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def _in_micro_batches_of_one(text: str) -> str:
    text = text.replace("per_device_train_batch_size: 4", "per_device_train_batch_size: 1")
    return text.replace("gradient_accumulation_steps: 1", "gradient_accumulation_steps: 4")


def test_the_first_remedy_is_printed_as_a_diff(cli: Any, folder: Path) -> None:
    before = (folder / "train.yaml").read_text()
    ended = cli("explain", "trace.txt", "--apply", "train.yaml")
    assert ended.code == 0
    assert ended.out.startswith("--- a/train.yaml\n+++ b/train.yaml\n")
    assert "+per_device_train_batch_size: 1" in ended.out
    assert "remedy 1: Use a smaller micro-batch" in ended.err
    line = "oomdoctor explain trace.txt --apply train.yaml --write"
    assert f"to change the file: {line}" in ended.err
    assert (folder / "train.yaml").read_text() == before
    patched = subprocess.run(["patch", "-p1"], input=ended.out, text=True, capture_output=True)
    assert patched.returncode == 0, patched.stdout
    assert (folder / "train.yaml").read_text() == _in_micro_batches_of_one(before)


def test_the_file_is_changed_on_request_and_kept_as_it_was(cli: Any, folder: Path) -> None:
    before = (folder / "train.yaml").read_text()
    (folder / "train.yaml").chmod(0o640)
    ended = cli("explain", "trace.txt", "--apply", "train.yaml", "--write")
    assert ended.code == 0 and "changed train.yaml" in ended.err
    assert (folder / "train.yaml").read_text() == _in_micro_batches_of_one(before)
    assert (folder / "train.yaml.bak").read_text() == before
    assert (folder / "train.yaml").stat().st_mode & 0o777 == 0o640


def test_a_copy_is_never_replaced(cli: Any, folder: Path) -> None:
    first = (folder / "train.yaml").read_text()
    for place in ("1", "2"):
        before = (folder / "train.yaml").read_text()
        command = ("explain", "trace.txt", "--apply", "train.yaml", "--remedy", place, "--write")
        assert cli(*command).code == 0
    assert (folder / "train.yaml.bak").read_text() == first
    assert (folder / "train.yaml.bak.1").read_text() == before != first


def test_a_log_without_a_failure_has_nothing_to_apply(cli: Any, folder: Path) -> None:
    (folder / "fine.txt").write_text("step 1 loss 2.0\n")
    ended = cli("explain", "fine.txt", "--apply", "train.yaml")
    assert (ended.code, ended.out) == (3, "")
    assert "no remedy to apply: oomdoctor explain fine.txt says what was found" in ended.err


def test_another_remedy_is_chosen_by_its_number(cli: Any, folder: Path) -> None:
    listed = json.loads(cli("explain", "trace.txt", "--config", "train.yaml", "--json").out)
    remedies = listed["diagnoses"][0]["remedies"]
    place = next(n for n, one in enumerate(remedies, 1) if one["key"] == "smaller_batch")
    ended = cli("explain", "trace.txt", "--apply", "train.yaml", "--remedy", str(place), "--json")
    document = json.loads(ended.out)
    applied = document["applied"]
    assert (applied["number"], applied["written"]) == (place, False)
    assert applied["changes"] == {"micro_batch_size": "1"}
    assert [line["name"] for line in applied["lines"]] == [
        "per_device_train_batch_size",
        "gradient_accumulation_steps",
    ]
    assert "+per_device_train_batch_size: 1" in applied["diff"]
    assert "+gradient_accumulation_steps: 4" in applied["diff"]


_UNKNOWN = """\
model_name_or_path: someone/else
per_device_train_batch_size: 12
gradient_accumulation_steps: 1
"""


@pytest.mark.parametrize("applied", [12, 2], ids=["the file of the log", "a smaller one"])
def test_the_batch_of_an_unknown_model_is_the_one_that_is_proposed(
    applied: int, cli: Any, folder: Path
) -> None:
    """The remedy said 3, which is enough, and --apply took half of what the file has."""
    (folder / "oom.txt").write_text(
        '  File "train.py", line 7, in forward\n'
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total "
        "capacity of 23.64 GiB of which 512.00 MiB is free. Including non-PyTorch memory, this "
        "process has 23.13 GiB memory in use. Of the allocated memory 22.00 GiB is allocated by "
        "PyTorch, and 600.00 MiB is reserved by PyTorch but unallocated.\n"
    )
    (folder / "logged.yaml").write_text(_UNKNOWN)
    (folder / "own.yaml").write_text(_UNKNOWN.replace("12", str(applied)))
    words = ("explain", "oom.txt", "--config", "logged.yaml")
    remedies = json.loads(cli(*words, "--json").out)["diagnoses"][0]["remedies"]
    place = next(n for n, one in enumerate(remedies, 1) if one["key"] == "smaller_batch")
    assert remedies[place - 1]["changes"] == {"micro_batch_size": 3}
    assert "per_device_train_batch_size: 3" in remedies[place - 1]["lines"]["logged.yaml"]
    ended = cli(*words, "--apply", "own.yaml", "--remedy", str(place))
    assert ("+per_device_train_batch_size: 3" in ended.out) == (applied == 12)
    assert ("the file already has 2" in ended.err) == (applied == 2)


def test_a_script_is_changed_where_its_literal_stands(cli: Any, folder: Path) -> None:
    (folder / "train.py").write_text(SCRIPT)
    ended = cli("explain", "trace.txt", "--apply", "train.py", "--write")
    assert ended.code == 0, ended.err
    new = (folder / "train.py").read_text()
    assert new != SCRIPT and "# of one GPU" in new
    compile(new, "train.py", "exec")


def test_a_file_gets_the_setting_of_the_trainer_that_the_answer_names(
    cli: Any, folder: Path
) -> None:
    """LLaMA-Factory's files have all settings of TrainingArguments."""
    (folder / "eval.txt").write_text(
        "Traceback (most recent call last):\n"
        '  File "/src/llamafactory/train/sft/workflow.py", line 51, in run_sft\n'
        "    trainer.evaluate()\n"
        '  File "/site-packages/transformers/trainer.py", line 4327, in evaluation_loop\n'
        "    all_preds.add(logits)\n"
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total "
        "capacity of 23.65 GiB of which 208.06 MiB is free.\n"
    )
    (folder / "own.yaml").write_text(
        "model_name_or_path: Qwen/Qwen2.5-0.5B\nstage: sft\nfinetuning_type: full\n"
    )
    told = "eval_accumulation_steps: 8"
    assert told in cli("explain", "eval.txt").out
    assert f"+{told}" in cli("explain", "eval.txt", "--apply", "own.yaml").out


def test_without_a_remedy_for_the_file_the_answer_is_no(cli: Any, folder: Path) -> None:
    listed = json.loads(cli("explain", "trace.txt", "--config", "train.yaml", "--json").out)
    remedies = listed["diagnoses"][0]["remedies"]
    place = next(n for n, one in enumerate(remedies, 1) if one["key"] == "bigger_card")
    ended = cli("explain", "trace.txt", "--apply", "train.yaml", "--remedy", str(place))
    assert (ended.code, ended.out) == (3, "")
    assert "it is not a training setting" in ended.err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--write",), "--write: needs --apply FILE"),
        (("--remedy", "2"), "--remedy: needs --apply FILE"),
        (("--apply", "train.yaml", "--remedy", "99"), "99 is not one of them"),
        (("--apply", "train.yaml", "--remedy", "x"), "--remedy: 'x'"),
        (("--apply", "missing.yaml"), "missing.yaml: No such file"),
        (("--apply", "trace.txt"), "--apply"),
    ],
)
@pytest.mark.usefixtures("folder")
def test_what_is_wrong_is_said(cli: Any, words: tuple[str, ...], said: str) -> None:
    ended = cli("explain", "trace.txt", *words)
    assert (ended.code, ended.out) == (2, "")
    assert said in ended.err


def test_a_log_without_a_failure_changes_nothing(cli: Any, folder: Path) -> None:
    (folder / "fine.txt").write_text("step 1\nstep 2\n")
    before = (folder / "train.yaml").read_text()
    assert cli("explain", "fine.txt", "--apply", "train.yaml", "--write").code == 3
    assert (folder / "train.yaml").read_text() == before


def _proof(fits: bool | None) -> Proof:
    peak, reason = (None, "No module named 'x'") if fits is None else (2 * GIB, None)
    return Proof(("trl", "sft", "--config", "train.yaml"), "L4", 3 * GIB, peak, fits, reason, {})


@pytest.mark.parametrize(
    ("fits", "code", "said"),
    [
        (True, 0, "proven: with it the training fits on L4: 2.00 GiB instead of 3.00 GiB"),
        (False, 3, "not enough: with it the training needs 2.00 GiB"),
        (None, 6, "not proven: No module named 'x'"),
    ],
)
def test_a_change_is_written_only_if_its_run_fits(
    cli: Any, folder: Path, monkeypatch: pytest.MonkeyPatch, fits: bool | None, code: int, said: str
) -> None:
    asked: list[WatchRequest] = []

    def run(request: WatchRequest, told: Diagnosis, file: str, *_: Any) -> AppliedRemedy:
        asked.append(request)
        return replace(apply_remedy(told, file, None), proof=_proof(fits))

    monkeypatch.setattr("oomdoctor.commands.run.run_watched.verified", run)
    before = (folder / "train.yaml").read_text()
    ended = cli("explain", "trace.txt", "--apply", "train.yaml", "--verify", "--write", "--", *PY)
    assert ended.code == code and said in ended.err
    assert ((folder / "train.yaml").read_text() == before) is not fits
    assert fits or "--apply train.yaml --remedy 1 --write" in ended.err
    (request,) = asked
    assert request.command == PY and request.weights == "synthetic" and not request.cure
    assert request.gpus is not None and request.gpus.card.total_bytes == round(79.25 * GIB)


PY = (sys.executable, "train.py", "train.yaml")


def test_the_command_of_a_file_is_that_of_its_program(tmp_path: Path) -> None:
    for text, command in (
        ("base_model: gpt2\nsequence_len: 512\n", "axolotl train {}"),
        ("model_name_or_path: gpt2\nfinetuning_type: lora\ncutoff_len: 512\n",
         "llamafactory-cli train {}"),
        ("model_name_or_path: gpt2\nuse_peft: true\n", "trl sft --config {}"),
        ("model_name_or_path: gpt2\nbeta: 0.1\nprecompute_ref_log_probs: false\n",
         "trl dpo --config {}"),
        ("model_name_or_path: gpt2\nlearning_rate: 0.1\n", None),
    ):  # fmt: skip
        file = tmp_path / "train.yaml"
        file.write_text(text)
        words, gpus = start_of(str(file))
        assert gpus == 1
        assert words == (None if command is None else tuple(command.format(file).split()))
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    assert start_of(str(script)) == (("python", str(script)), 1)


def test_what_a_run_needs_is_said(cli: Any, folder: Path) -> None:
    (folder / "plain.yaml").write_text("model_name_or_path: gpt2\nper_device_train_batch_size: 4\n")
    ended = cli("explain", "trace.txt", "--apply", "plain.yaml", "--verify")
    assert ended.code == 2 and "no command is known that trains with plain.yaml" in ended.err
    ended = cli(
        "explain", "trace.txt", "--apply", "train.yaml", "--verify", "--gpu", "x", "--", *PY
    )
    assert ended.code == 2 and "--gpu" in ended.err
    assert cli("explain", "trace.txt", "--verify").code == 2
    assert cli("explain", "trace.txt", "--apply", "train.yaml", "--gpu", "L4").code == 2
