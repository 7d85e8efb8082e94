"""The answer of --sweep, --solve and --min with --from: it is about the user's own rung."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from example_many_gpus import fewest_report
from example_plans import solve_report, sweep_report

from oomdoctor.records.configuration.config import TrainConfig
from oomdoctor.records.report.report import Report
from oomdoctor.records.report.user_training import YOURS, TrainingFile, UserTraining
from oomdoctor.render.ladder.answer import answer_lines

TRAINING = UserTraining(
    files=(TrainingFile("train.yaml", "axolotl", "yaml"),), model="m", revision=None, task=None,
    config=TrainConfig(), said=(), not_taken=(), assumed=(),
)  # fmt: skip


def of_yours(report: Report, *, alone: bool = False, **changes: Any) -> str:
    """The answer, as if the first rung were that of the user's file."""
    name = next(one for one in ("sweep", "solve", "fewest") if getattr(report, one) is not None)
    answer = getattr(report, name)
    first = answer.lines[0].key
    lines = [
        replace(line, label=YOURS, **changes) if line.key == first else line
        for line in answer.lines
        if line.key == first or not alone
    ]
    assert report.request is not None
    request = replace(report.request, user_training=TRAINING)
    answers: dict[str, Any] = {name: replace(answer, lines=tuple(lines))}
    return answer_lines(replace(report, request=request, **answers), "±")[0]


@pytest.mark.parametrize(
    ("report", "changes", "start"),
    [
        (sweep_report, {"crossed_at": 3_219}, "Yours fits up to sequence length 3,219"),
        (sweep_report, {"crossed_at": None, "largest_fitting": None, "reason": None},
         "Yours fits at none of"),
        (solve_report, {"largest": 3_712}, "Yours fits up to sequence length 3,712"),
        (solve_report, {"largest": None, "reason": None}, "Yours fits at no sequence length"),
        (solve_report, {"largest": None, "reason": "no"}, "Yours was not simulated"),
        (fewest_report, {"gpus": 4}, "Yours fits on 4 GPUs"),
        (fewest_report, {"gpus": None, "reason": None}, "Yours fits on none of 1 to 64 GPUs"),
    ],
)  # fmt: skip
def test_the_users_own_rung_comes_first(report: Any, changes: dict[str, Any], start: str) -> None:
    assert of_yours(report(), **changes).startswith(start)
    assert of_yours(report(), alone=True, **changes).startswith(start)
