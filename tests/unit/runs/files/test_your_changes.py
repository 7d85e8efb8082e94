"""Which changes of the rung of --from are simulated, and which of them are the best."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
from analysis_make import result

from oomdoctor.analysis.search.own_rung import OneChange
from oomdoctor.records.config import TrainConfig
from oomdoctor.records.result import Failure
from oomdoctor.records.rung.choices import AUTO
from oomdoctor.runs.files.your_changes import (
    Simulate,
    Tried,
    no_answer,
    simulate_faster,
    simulate_fitting,
)

KEPT = [OneChange(f"kept {n}", TrainConfig(lora_rank=n), 1) for n in (1, 2)]
OTHER = [OneChange(f"other {n}", TrainConfig(lora_rank=n), 5) for n in (3, 4, 5)]


def simulator(fitting: dict[str, float], asked: list[list[str]]) -> Simulate:
    def simulate(changes: Sequence[OneChange]) -> list[Tried]:
        asked.append([one.words for one in changes])
        return [
            (
                one,
                replace(
                    result(one.words, "fits" if one.words in fitting else "oom"),
                    tokens_per_s=fitting.get(one.words),
                ),
            )
            for one in changes
        ]

    return simulate


def test_changes_of_the_result_are_simulated_only_if_no_other_is_enough() -> None:
    asked: list[list[str]] = []
    found, tried = simulate_fitting(
        KEPT + OTHER, simulator({"kept 1": 1.0, "kept 2": 2.0, "other 3": 9.0}, asked)
    )
    assert [one.words for one, _ in found] == ["kept 2", "kept 1"]
    assert asked == [["kept 1", "kept 2"]]
    assert tried == ("kept 1", "kept 2")
    asked.clear()
    found, tried = simulate_fitting(KEPT + OTHER, simulator({"other 5": 1.0}, asked))
    assert [one.words for one, _ in found] == ["other 5"]
    assert asked == [["kept 1", "kept 2"], ["other 3", "other 4"], ["other 5"]]
    assert len(tried) == 5


def test_only_what_is_faster_by_more_than_the_error_counts() -> None:
    speeds = {"kept 1": 101.0, "kept 2": 150.0, "other 3": 200.0}
    found, tried = simulate_faster(KEPT + OTHER, simulator(speeds, []), 100.0)
    assert [one.words for one, _ in found] == ["other 3", "kept 2"]
    assert len(tried) == 5


@pytest.mark.parametrize("outcome", ["failed", "crashed", "timed_out", "host_oom"])
def test_a_rung_that_says_nothing_about_memory_is_not_changed(outcome: str) -> None:
    row = result("yours", outcome)
    fixed = replace(row, config=row.config.with_micro_batch(1))
    assert no_answer(fixed) == (row.reason or "it did not run")
    assert no_answer(replace(fixed, outcome="oom", failure=None)) is None
    late = replace(fixed, outcome="skipped", failure=Failure("not_reached", "x"), reason="late")
    assert no_answer(late) == "late"
    searched = replace(fixed, outcome="oom", failure=None, config=row.config.with_micro_batch(AUTO))
    assert "micro-batch size" in (no_answer(searched) or "")
