"""Which changes of the rung of --from are simulated, and which of them are the best."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import pytest
from analysis_make import GIB, measurement, request, result

from oomdoctor.analysis.search.own_rung import OneChange
from oomdoctor.records.config import TrainConfig
from oomdoctor.records.result import Failure, ProbeResult
from oomdoctor.records.rung.choices import AUTO
from oomdoctor.records.user_training import UserTraining
from oomdoctor.runs.devices.cards import room_for
from oomdoctor.runs.files.your_changes import (
    Simulate,
    Tried,
    answer_fits,
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


def needs(words: str, gib: int | None) -> ProbeResult:
    peak = None if gib is None else gib * GIB
    measured = None if gib is None else measurement(gib * GIB, overhead_bytes=GIB // 2)
    return replace(result(words, "oom"), peak_device_bytes=peak, measurement=measured)


def test_changes_of_the_result_are_simulated_only_if_no_other_is_enough() -> None:
    asked: list[list[str]] = []
    found = simulate_fitting(
        KEPT + OTHER, simulator({"kept 1": 1.0, "kept 2": 2.0, "other 3": 9.0}, asked)
    )
    assert [one.words for one, _ in found.fitting] == ["kept 2", "kept 1"]
    assert asked == [["kept 1", "kept 2"]]
    assert found.tried == ("kept 1", "kept 2")
    asked.clear()
    found = simulate_fitting(KEPT + OTHER, simulator({"other 5": 1.0}, asked))
    assert [one.words for one, _ in found.fitting] == ["other 5"]
    assert asked == [["kept 1", "kept 2"], ["other 3", "other 4"], ["other 5"]]
    assert len(found.tried) == 5


def test_shorter_rows_come_last_however_fast_they_are() -> None:
    shorter = OneChange("shorter", TrainConfig(sequence_length=512), 120, shortens=True)
    speeds = {"other 3": 1.0, "shorter": 9.0}
    found = simulate_fitting([OTHER[0], shorter], simulator(speeds, []))
    assert [one.words for one, _ in found.fitting] == ["other 3", "shorter"]


def test_if_nothing_fits_the_smallest_is_named_with_the_cards_that_would_do() -> None:
    peaks = {"kept 1": 40, "kept 2": 30, "other 3": 26, "other 4": 27}

    def simulate(changes: Sequence[OneChange]) -> list[Tried]:
        return [(one, needs(one.words, peaks.get(one.words))) for one in changes]

    row = needs("yours", 60)
    found = simulate_fitting(KEPT + OTHER, simulate)
    assert not found.fitting and found.least is not None and found.least[0] is OTHER[0]
    card_for = partial(room_for, own="8.9", headroom=0.05)
    training = UserTraining((), None, None, None, row.config, (), (), ())
    answer = answer_fits(request(), training, row, (), found.tried, 23 * GIB, found.least, card_for)
    assert answer.reason == (
        "other 3 needs the least, 26.0 GiB, short by 3.00 GiB; "
        "smallest card: NVIDIA GeForce RTX 5090 with it, NVIDIA H100 PCIe as it is"
    )


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
