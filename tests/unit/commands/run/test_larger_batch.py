"""How much larger a micro-batch may be: cautious, or nothing is said."""

from __future__ import annotations

from dataclasses import replace

import pytest
from example_runs import RANK

from oomdoctor.commands.run.smallest_card import larger_batch
from oomdoctor.records.report.run import LargerBatch, RankMemory
from oomdoctor.records.report.watch import StepPeaks
from oomdoctor.units import GIB

STEPS = (
    StepPeaks(1, 30 * GIB, 32 * GIB, 10 * GIB, 32 * GIB),
    StepPeaks(2, 44 * GIB, 50 * GIB, 30 * GIB, 50 * GIB),
    StepPeaks(3, 44 * GIB, 50 * GIB, 30 * GIB, 50 * GIB),
)
FITS = replace(
    RANK, steps_memory=STEPS, peak_reserved_bytes=50 * GIB, headroom_bytes=12 * GIB, retries=0
)


def test_all_beyond_what_a_step_leaves_is_taken_to_grow() -> None:
    # 20 GiB for four rows; 12 GiB of room is two rows more.
    assert larger_batch([FITS], 4) == LargerBatch(4, 6, 5 * GIB)


def test_the_fullest_rank_decides() -> None:
    assert larger_batch([FITS, replace(FITS, rank=1, headroom_bytes=6 * GIB)], 4) == LargerBatch(
        4, 5, 5 * GIB
    )


@pytest.mark.parametrize(
    ("ranks", "rows"),
    [
        ([FITS], None),
        ([], 4),
        ([replace(FITS, steps_memory=STEPS[:1])], 4),
        ([replace(FITS, headroom_bytes=GIB)], 4),
        ([replace(FITS, headroom_bytes=None)], 4),
        ([replace(FITS, retries=1)], 4),
        ([replace(FITS, outcome="oom")], 4),
        ([FITS, replace(FITS, rank=1, steps_memory=())], 4),
    ],
)
def test_nothing_is_said_where_it_is_not_known(ranks: list[RankMemory], rows: int | None) -> None:
    assert larger_batch(ranks, rows) is None
