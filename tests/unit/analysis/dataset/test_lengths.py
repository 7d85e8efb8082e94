"""Row lengths: the distribution, the shapes that follow, the search for the longest that fits."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest
from analysis_make import request, result, rung
from hypothesis import given
from hypothesis import strategies as st

from oomdoctor.analysis.dataset_distribution import Tally, percentile, rows_above, shapes_of
from oomdoctor.analysis.dataset_verdict import cards_verdict, verdict
from oomdoctor.commands.ladder.dataset import at_rows
from oomdoctor.records.job.dataset import (
    CountedRows,
    LengthBin,
    LengthLimit,
    LengthShape,
    LengthsRequest,
    RowLength,
    RowsAbove,
    UnreadRow,
)
from oomdoctor.records.job.result import ProbeResult
from oomdoctor.units import GIB

ASKED = LengthsRequest("data.jsonl")


def best(label: str, size: int, peak: int) -> ProbeResult:
    """A row that fits."""
    return replace(result("a"), label=label, micro_batch_size=size, peak_device_bytes=peak)


def counted(*tokens: int) -> CountedRows:
    """The rows of a file, numbered from 1."""
    tally = Tally()
    for row, length in enumerate(tokens, 1):
        tally.add(row, length, "text")
    return tally.counted("data.jsonl", "tiny", approximate=False, elapsed_s=1.0)


def test_the_distribution_of_a_hundred_rows():
    lengths = counted(*range(1, 101)).distribution
    assert (lengths.rows, lengths.tokens) == (100, 5050)
    assert lengths.longest == RowLength(100, 100)
    assert lengths.longest_rows == tuple(RowLength(n, n) for n in range(100, 90, -1))
    assert (lengths.p50, lengths.p90, lengths.p95, lengths.p99) == (50, 90, 95, 99)
    assert lengths.sources == {"text": 100}


def test_of_equally_long_rows_the_first_is_told():
    lengths = counted(7, *[9] * 20).distribution
    assert lengths.longest == RowLength(2, 9)
    assert [row.row for row in lengths.longest_rows] == list(range(2, 12))


@given(st.lists(st.integers(0, 5000), min_size=1), st.integers(1, 100))
def test_a_percentile_is_the_shortest_that_so_many_do_not_exceed(lengths, percent):
    found = percentile(Counter(lengths), percent)
    enough = percent * len(lengths) / 100
    assert found in lengths
    assert sum(length <= found for length in lengths) >= enough - 1e-9
    assert sum(length < found for length in lengths) < enough


def test_rows_that_were_not_read_are_counted_and_told():
    tally = Tally()
    assert tally.first_unread is None
    tally.add(1, 3, "text")
    for row in range(2, 20):
        tally.add_unread(row, "is not JSON")
    lengths = tally.counted("f", "t", approximate=False, elapsed_s=0.0).distribution
    assert (lengths.rows, lengths.unread_rows, len(lengths.unread)) == (1, 18, 10)
    assert tally.first_unread == UnreadRow(2, "is not JSON")


def test_the_histogram_doubles_up_to_the_longest_row():
    assert counted(0, 1, 128, 129, 500, 513).distribution.histogram == (
        LengthBin(128, 3),
        LengthBin(256, 1),
        LengthBin(512, 1),
        LengthBin(1024, 1),
    )


@given(st.lists(st.integers(0, 3000), min_size=1), st.integers(0, 30))
def test_rows_above_a_multiple_are_exact(lengths, steps):
    limit = 128 * steps
    above = rows_above(counted(*lengths), limit)
    longer = [row for row, length in enumerate(lengths, 1) if length > limit]
    assert (above.rows, above.first_rows) == (len(longer), tuple(longer[:10]))
    assert above.share == len(longer) / len(lengths)


def test_no_row_is_above_the_longest():
    assert rows_above(counted(100, 131), 131) == RowsAbove(0, 0.0, ())


@pytest.mark.parametrize(
    ("packed", "positions", "shapes"),
    [
        (None, None, [1000, 950, 1024]),  # the 99th percentile, 990, in steps of 128
        (4096, None, [1000, 950, 4096]),
        (4096, 512, [512, 512, 512]),
    ],
)
def test_shapes(packed, positions, shapes):
    lengths = counted(*range(10, 1001, 10)).distribution
    asked = LengthsRequest("data.jsonl", packed_tokens=packed)
    assert [shape.tokens for shape in shapes_of(lengths, asked, positions)] == shapes


LIMIT = LengthLimit("card", "key", "full", 4, 12_288, RowsAbove(3, 0.03, (5, 7, 90)))
LENGTHS = counted(*[100] * 97, 13_000, 31_902, 14_000).distribution
LONGEST = LengthShape("longest", 31_902)


def test_a_row_that_no_rung_takes():
    assert verdict(LENGTHS, LONGEST, None, (LIMIT,)) == (
        "row 99 (31,902 tokens) does not fit: full handles rows up to 12,288 tokens at "
        "micro-batch 4; 3 rows (3.0%) are longer: 5, 7, 90",
    )


def test_a_row_that_only_another_rung_takes():
    one = LengthLimit("card", "key", "full", 1, 0, RowsAbove(1, 0.0001, (8,)))
    taken = best("lora", 1, 3 * GIB)
    assert verdict(LENGTHS, LONGEST, taken, (LIMIT, one)) == (
        "row 99 (31,902 tokens) does not fit with full, which handles rows up to 12,288 tokens at "
        "micro-batch 4; 3 rows (3.0%) are longer: 5, 7, 90",
        "full handles no row at micro-batch 1; 1 row (0.010%) is longer: 8",
        "that row fits with lora at micro-batch 1, peak 3.00 GiB",
    )


def test_a_row_that_fits_and_one_of_which_nothing_is_known():
    every = LengthLimit("card", "key", "full", 4, 31_902, RowsAbove(0, 0.0, ()))
    told = "row 99 (31,902 tokens) fits with full at micro-batch 4, peak 1.00 GiB"
    assert verdict(LENGTHS, LONGEST, best("full", 4, GIB), (every,)) == (told,)
    assert verdict(LENGTHS, LONGEST, None) == (
        "row 99 (31,902 tokens) does not fit with any config",
    )


def test_a_row_longer_than_the_model_has_positions_is_cut():
    (told,) = verdict(LENGTHS, LengthShape("longest", 2048), best("full", 1, GIB))
    assert told.startswith("row 99 (31,902 tokens, truncated to the model's 2,048 positions) ")


def test_several_cards():
    told = "row 99 (31,902 tokens) fits on 3 of 45 cards"
    assert cards_verdict(LENGTHS, LONGEST, 3, 45) == (told,)


def test_packed_rows_decide_and_longer_ones_are_cut():
    packed = LengthShape("packed", 2048)
    cut = "packing cuts or splits longer rows; the longest, row 99, has 31,902 tokens"
    assert verdict(LENGTHS, packed, best("full", 4, GIB)) == (
        "rows packed to 2,048 tokens fit with full at micro-batch 4, peak 1.00 GiB",
        cut,
    )
    assert verdict(LENGTHS, packed, None) == (
        "rows packed to 2,048 tokens do not fit with any config",
        cut,
    )
    assert cards_verdict(LENGTHS, LengthShape("packed", 32_768), 3, 45) == (
        "rows packed to 32,768 tokens fit on 3 of 45 cards",
    )


@pytest.mark.parametrize(("packed", "tokens"), [(None, 31_902), (2048, 2048)])
def test_rungs_are_about_the_longest_row_unless_rows_are_packed(packed, tokens):
    asked = request(rung(), lengths=LengthsRequest("rows.jsonl", packed_tokens=packed))
    found = at_rows(asked, counted(*[100] * 97, 13_000, 31_902, 14_000))
    assert found.sequence_length == tokens
    assert {rung.config.sequence_length for rung in found.recipe.rungs} == {tokens}
