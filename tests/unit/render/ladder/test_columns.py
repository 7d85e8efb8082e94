"""The tables of rungs: what each column shows, and when it is left out."""

from __future__ import annotations

from dataclasses import replace

import pytest
from example_gpu import gpu_report

from oomdoctor.records.job.dataset import TrainingTime
from oomdoctor.records.job.result import Failure, PredictedPeak, ProbeResult
from oomdoctor.render.ladder.columns import (
    DID_NOT_FIT,
    FITS,
    NOT_RUN,
    Row,
    shared_notes,
    table,
    why_not_run,
)
from oomdoctor.units import GIB, format_bytes

_FULL_FP32, _FULL_BF16, _LORA = gpu_report().results[:3]
# One row a column: what it shows of a rung.
SHOWN = {
    "#": "2",
    "config": "lora-r16+ckpt",
    "batch": "4 x 8",
    "peak": "22.9 GiB",
    "peak/GPU": "",
    "of usable": "fits, 95%",
    "peak phase": "backward",
    "tokens/s": "5,310 ±0.6%",
    "vs fastest": "0.50x",
    "your data": "",
    "{tokens} tokens": "3 min 08 s",
    "your data costs": "",  # no price was given
    "{tokens} tokens cost": "",
    "notes": "a; b",
}
MISSED = {
    "config": "full-bf16",
    "outcome": "out of memory",
    "batch": "1 x 32",
    "needs": "~45.0 GiB",
    "short by": "at least 21.3 GiB",
    "phase": "backward",
    "notes": "",
}
NOT_MEASURED = {
    "config": "full-fp32",
    "outcome": "skipped",
    "reason": "too big; short by at least 96.1 GiB",
}


def _row(result: ProbeResult = _LORA) -> Row:
    return Row(result, "±", 2, 24 * GIB, 10624.0, "1M", ("a", "b"))


@pytest.mark.parametrize("cell", FITS, ids=lambda cell: cell[0].name)
def test_a_rung_that_fits(cell) -> None:
    column, show = cell
    assert show(_row()) == SHOWN[column.name]


@pytest.mark.parametrize("cell", DID_NOT_FIT, ids=lambda cell: cell[0].name)
def test_a_rung_that_did_not_fit(cell) -> None:
    column, show = cell
    assert show(_row(_FULL_BF16)) == MISSED[column.name]


@pytest.mark.parametrize("cell", NOT_RUN, ids=lambda cell: cell[0].name)
def test_a_rung_that_was_not_run(cell) -> None:
    column, show = cell
    row = _row(replace(_FULL_FP32, reason="too big"))
    assert show(row) == NOT_MEASURED[column.name]


def test_a_step_that_ran_says_exactly_what_it_needs() -> None:
    ran = replace(_LORA, outcome="oom", missed_by_bytes=GIB, reason="22.9 GiB is too much")
    shown = {column.name: show(_row(ran)) for column, show in DID_NOT_FIT}
    assert (shown["needs"], shown["short by"]) == ("22.9 GiB", "1.00 GiB")
    assert shown["notes"] == "ran, but left too little headroom"
    predicted = replace(ran, evidence="predicted")
    assert DID_NOT_FIT[-1][1](_row(predicted)) == ""


def test_a_peak_of_several_gpus_is_that_of_each() -> None:
    spread = replace(_LORA, config=replace(_LORA.config, sharding="ddp", world_size=8))
    shown = {column.name: show(_row(spread)) for column, show in FITS}
    assert (shown["peak"], shown["peak/GPU"], shown["batch"]) == ("", "22.9 GiB", "4 x 8 x 8")


def test_an_engine_that_had_room_says_nothing_of_headroom() -> None:
    spread = replace(_LORA.config, sharding="ddp", world_size=8)
    ran = replace(_LORA, config=spread, outcome="oom", evidence="emulated", missed_by_bytes=GIB)
    shown = [DID_NOT_FIT[-1][1](replace(_row(ran), planned=planned)) for planned in (True, False)]
    assert shown == ["", "ran, but left too little headroom"]


def test_a_prediction_says_what_a_step_that_ran_out_needs() -> None:
    """The failed request alone shows only a fraction of what is missing."""
    expected = PredictedPeak(40 * GIB, 41 * GIB, 42 * GIB)
    told = replace(_FULL_BF16, predicted=expected)
    shown = {column.name: show(_row(told)) for column, show in DID_NOT_FIT}
    assert (shown["needs"], shown["short by"]) == ("~42.0 GiB", "at least 21.3 GiB")
    told = replace(told, missed_by_bytes=2 * GIB)
    shown = {column.name: show(_row(told)) for column, show in DID_NOT_FIT}
    assert shown["short by"] == "~18.0 GiB"
    wrong = replace(told, predicted=PredictedPeak(20 * GIB, 21 * GIB, 22 * GIB))
    shown = {column.name: show(_row(wrong)) for column, show in DID_NOT_FIT}
    assert (shown["needs"], shown["short by"]) == ("", "at least 2.00 GiB")


def test_the_reason_is_shown_where_no_number_says_it() -> None:
    unknown = replace(_FULL_BF16, missed_by_bytes=None, reason="ran out while loading")
    assert DID_NOT_FIT[-1][1](_row(unknown)) == "ran out while loading"


def test_the_own_data_takes_the_place_of_the_tokens() -> None:
    own = TrainingTime(52_000, 3.0, 4875, 10**9, 26_280.0, 0.01)
    grid, _ = table(FITS, [_row(replace(_LORA, training_time=own))])
    kept = grid.without_empty_columns()
    shown = dict(zip([column.name for column in kept.columns], kept.rows[0], strict=True))
    assert shown["your data"] == "7 h 18 min"
    assert "1M tokens" not in shown


def test_what_all_rows_share_is_said_once() -> None:
    grid, same = table(FITS, [_row(), replace(_row(), place=3)])
    assert same == ["peak in backward"]
    headings = [column.name for column in grid.columns]
    assert "1M tokens" in headings and "peak phase" not in headings
    assert all(len(row) == len(headings) for row in grid.rows)


def test_one_row_shares_nothing() -> None:
    grid, same = table(FITS, [_row()])
    assert same == []
    assert len(grid.columns) == len(FITS)


def test_only_notes_of_every_row_are_shared() -> None:
    assert shared_notes([["a", "b"], ["b", "c"], ["b"]]) == ["b"]
    assert shared_notes([["a"], ["b"]]) == []
    assert shared_notes([["a"]]) == []


def test_a_rung_that_was_not_reached_says_so_once() -> None:
    failure = Failure("not_reached", "the survey ended before this configuration was tried")
    waiting = replace(_FULL_FP32, failure=failure, missed_by_bytes=None)
    bound = "not reached; lower bound 1.00 GiB"
    assert why_not_run(replace(waiting, reason=bound)) == bound
    assert why_not_run(replace(waiting, reason=failure.message)) == failure.message
    assert why_not_run(replace(waiting, reason=None)) == failure.message


def test_an_amount_of_memory_is_said_once_in_a_reason() -> None:
    missed = f"short by {format_bytes(_FULL_FP32.missed_by_bytes)}"
    assert why_not_run(replace(_FULL_FP32, reason=missed)) == missed


def test_a_price_gives_the_cost_of_the_tokens() -> None:
    row = replace(_row(), per_hour=2.0, currency="$")
    costs = {
        column.name: show(row) for column, show in FITS if column.name.endswith((" cost", " costs"))
    }
    assert costs["your data costs"] == ""  # no rows were given
    assert costs["{tokens} tokens cost"].startswith("~$0.1")  # 188 s of 2 dollars an hour
