"""Remedies that are tried by running the changed training again."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from example_runs import fits, ran_out

from oomdoctor.commands.explain.applied import trainer_settings
from oomdoctor.commands.run.cure import Change, change_of, changed, check_named, cured, unproven
from oomdoctor.commands.run.session import WatchRequest
from oomdoctor.errors import OomDoctorError
from oomdoctor.records.report.diagnosis import Remedy
from oomdoctor.records.report.report import Report
from oomdoctor.units import GIB

SMALLER = "TrainingArguments(per_device_train_batch_size=4, gradient_accumulation_steps=4)"
CHECKPOINTS = "TrainingArguments(gradient_checkpointing_kwargs={'use_reentrant': False})"
SCRIPT = """\
import helper
from transformers import AutoModelForCausalLM, Trainer, TrainingArguments

model = AutoModelForCausalLM.from_pretrained("gpt2")
args = TrainingArguments("out", per_device_train_batch_size=16)
Trainer(model, args).train()
"""
LOOP = """\
import torch
from transformers import AutoModelForCausalLM

model = AutoModelForCausalLM.from_pretrained("gpt2").cuda()
optimizer = torch.optim.AdamW(model.parameters())
"""


def _remedy(line: str) -> Remedy:
    return Remedy(line[:20], GIB, "arithmetic", {"transformers": line}, confirmed="no")


def _of_rung(**changes: Any) -> Remedy:
    return Remedy("Change it", GIB, "arithmetic", {}, changes=changes)


def _request(*command: str) -> WatchRequest:
    return WatchRequest(command, None, None, "steady")


@pytest.mark.parametrize(
    ("line", "settings"),
    [
        (SMALLER, {"per_device_train_batch_size": 4, "gradient_accumulation_steps": 4}),
        (CHECKPOINTS, {"gradient_checkpointing_kwargs": {"use_reentrant": False}}),
        ("TrainingArguments(per_device_train_batch_size=YOUR_BATCH // 2)", {}),
        ("model = peft.get_peft_model(model, LoraConfig(r=16))", {}),
        ("tokenizer(..., truncation=True)", {}),
    ],
)
def test_the_settings_of_a_remedy(line: str, settings: Mapping[str, Any]) -> None:
    assert trainer_settings(_remedy(line)) == settings


def _past(*lines: str) -> Report:
    report = ran_out()
    (rank,) = report.ranks
    assert rank.oom is not None
    rank = replace(rank, oom=replace(rank.oom, went_past=True))
    told = replace(report.diagnoses[0], remedies=tuple(map(_remedy, lines)))
    return replace(report, ranks=(rank,), diagnoses=(told,))


def _planned(remedy: Remedy, number: int) -> Change | None:
    settings = trainer_settings(remedy)
    return Change(("python", "train.py"), settings=settings) if settings else None


def test_remedies_are_tried_until_one_fits() -> None:
    report, tried = _past("tokenizer()", CHECKPOINTS, SMALLER, SMALLER), []

    def again(remedy: Remedy, change: Change) -> tuple[Report, str | None]:
        tried.append(change.settings)
        return fits() if "gradient_accumulation_steps" in change.settings else report, None

    first, *others = cured(report, report.diagnoses[0], _planned, again).diagnosis.remedies
    assert [len(settings) for settings in tried] == [1, 2]
    assert (first.lines["transformers"], first.confirmed, first.enough) == (SMALLER, "run", True)
    assert first.leaves_bytes == max(rank.peak_device_bytes or 0 for rank in fits().ranks)
    assert [remedy.confirmed for remedy in others] == ["no", "no", "no"]
    assert others[1].enough is False and others[1].leaves_bytes is not None


def test_a_run_that_fails_otherwise_shows_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    report, broken = _past(SMALLER), replace(fits(), status="error")
    told = report.diagnoses[0]
    assert cured(report, told, _planned, lambda *_: (broken, None)).diagnosis == told
    monkeypatch.chdir(tmp_path)
    Path("train.py").write_text(SCRIPT)
    request = _request("python", "train.py")

    def change(remedy: Remedy, number: int) -> Change | None:
        return change_of(request, remedy, number, "train.py")

    applied = cured(report, told, change, lambda *_: (broken, "No module named 'x'")).applied
    assert applied is not None and applied.proof is not None
    assert (applied.proof.fits, applied.proof.reason) == (None, "No module named 'x'")
    proof = unproven(fits(), None)
    assert proof.fits is None and "does not run out as it is" in (proof.reason or "")


def test_a_changed_script_is_a_copy_with_its_neighbors(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("train.py").write_text(SCRIPT)
    Path("helper.py").write_text("")
    request = _request("python", "train.py", "--seed", "1")
    change = change_of(request, _of_rung(micro_batch_size=4), 1, None)
    assert change is not None and change.command == request.command
    with changed(request, change) as with_it:
        copy = Path(with_it.command[1])
        assert "per_device_train_batch_size=4" in copy.read_text()
        assert (copy.parent / "helper.py").is_file() and not with_it.keeps_case
    assert Path("train.py").read_text() == SCRIPT and not copy.exists()


def test_settings_that_no_rung_has_are_written_into_the_file_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("train.py").write_text(SCRIPT)
    remedy = _remedy("TrainingArguments(eval_accumulation_steps=8)")
    change = change_of(_request("python", "train.py"), remedy, 1, None)
    assert change is not None and change.applied is not None
    assert "eval_accumulation_steps=8" in change.applied.diff


def test_code_is_pasted_into_a_plain_loop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("train.py").write_text(LOOP)
    request = _request("python", "train.py")
    for changes, words in (
        ({"activation_checkpointing": "full"}, ("gradient_checkpointing_enable", "model.train()")),
        ({"optimizer": "adamw_bnb_8bit"}, ("+import bitsandbytes", "AdamW8bit(")),
        ({"method": "lora"}, ("+from peft import", "get_peft_model(")),
    ):
        change = change_of(request, _of_rung(**changes), 1, None)
        assert change is not None and change.applied is not None, changes
        assert all(word in change.applied.diff for word in words), change.applied.diff
    # A loop has no place for gradient accumulation, and no TrainingArguments.
    assert change_of(request, _of_rung(micro_batch_size=1), 1, None) is None


def test_an_option_of_the_command_is_changed_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("train.yaml").write_text("model_name_or_path: gpt2\ngradient_checkpointing: false\n")
    command = ("trl", "sft", "--config", "train.yaml", "--per_device_train_batch_size", "8")
    change = change_of(_request(*command), _of_rung(micro_batch_size=2), 1, None)
    assert change is not None
    words = " ".join(change.command)
    assert "--per_device_train_batch_size 2" in words and "batch_size 8" not in words
    change = change_of(_request(*command), _of_rung(activation_checkpointing="full"), 1, None)
    assert change is not None and change.applied is not None
    assert change.applied.file == "train.yaml" and change.command == command


def test_a_command_has_to_name_the_file(tmp_path: Path) -> None:
    file = tmp_path / "train.yaml"
    file.write_text("")
    check_named(("axolotl", "train", str(file)), str(file))
    check_named(("python", "train.py", f"--config={file}"), str(file))
    with pytest.raises(OomDoctorError) as error:
        check_named(("python", "train.py"), str(file))
    assert "does not name" in error.value.message


@pytest.mark.parametrize(
    ("line", "new"),
    [
        ("kept.append(loss)", "kept.append(loss.detach())"),
        ("total += loss", "total += loss.detach()"),
        ("total = total + model(x).mean()", "total = total + model(x).mean().detach()"),
        ("kept.append(loss.item())", None),
        ("total += float(loss)", None),
        ("count += 1", None),
    ],
)
def test_a_loop_keeps_numbers_instead_of_graphs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, line: str, new: str | None
) -> None:
    monkeypatch.chdir(tmp_path)
    loop = f"for x in rows:\n    loss = model(x).mean()\n    loss.backward()\n    {line}\n"
    Path("train.py").write_text(f"{LOOP}kept, total, count = [], 0, 0\n{loop}")
    remedy = replace(_remedy("total += loss.item()"), lines={}, key="detach")
    change = change_of(_request("python", "train.py"), remedy, 1, None)
    assert (change is None) is (new is None)
    if change is not None:
        assert change.applied is not None and f"+    {new}" in change.applied.diff
