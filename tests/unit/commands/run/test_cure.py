"""Remedies that are tried by running the command again."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
from example_runs import fits, ran_out

from oomdoctor.commands.run.run_watched import cured, settings_of
from oomdoctor.records.report.diagnosis import Remedy
from oomdoctor.records.report.report import Report
from oomdoctor.units import GIB

SMALLER = "TrainingArguments(per_device_train_batch_size=4, gradient_accumulation_steps=4)"
CHECKPOINTS = "TrainingArguments(gradient_checkpointing_kwargs={'use_reentrant': False})"


def _remedy(line: str) -> Remedy:
    return Remedy(line[:20], GIB, "arithmetic", {"transformers": line}, confirmed="no")


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
    assert settings_of(_remedy(line)) == settings


def _past(*lines: str) -> Report:
    report = ran_out()
    (rank,) = report.ranks
    assert rank.oom is not None
    rank = replace(rank, oom=replace(rank.oom, went_past=True))
    told = replace(report.diagnoses[0], remedies=tuple(map(_remedy, lines)))
    return replace(report, ranks=(rank,), diagnoses=(told,))


def test_remedies_are_tried_until_one_fits() -> None:
    report, tried = _past("tokenizer()", CHECKPOINTS, SMALLER, SMALLER), []

    def again(remedy: Remedy, settings: Mapping[str, Any]) -> Report:
        tried.append(settings)
        return fits() if "gradient_accumulation_steps" in settings else report

    first, *others = cured(report, again).diagnoses[0].remedies
    assert [len(one) for one in tried] == [1, 2]
    assert (first.lines["transformers"], first.confirmed, first.enough) == (SMALLER, "run", True)
    assert first.leaves_bytes == max(one.peak_device_bytes or 0 for one in fits().ranks)
    assert [one.confirmed for one in others] == ["no", "no", "no"]
    assert others[1].enough is False and others[1].leaves_bytes is not None


def test_a_run_that_fits_or_fails_otherwise_shows_nothing() -> None:
    def never(remedy: Remedy, settings: Mapping[str, Any]) -> Report:
        raise AssertionError

    assert cured(fits(), never) == fits() and cured(ran_out(), never) == ran_out()
    report = _past(SMALLER)
    broken = replace(fits(), status="error")
    assert cured(report, lambda *_: broken) == report
