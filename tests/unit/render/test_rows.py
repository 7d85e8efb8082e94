"""The rows of `run`: as CSV, and as a table of ranks."""

from __future__ import annotations

import csv
import io
from dataclasses import replace

import pytest
from example_runs import RUNS, fits

from oomdoctor.render import render_report
from oomdoctor.render.formats import Style
from oomdoctor.render.run_page import rank_grid


@pytest.mark.parametrize("name", RUNS)
def test_a_run_has_a_row_a_rank(name: str) -> None:
    report = RUNS[name]()
    text = render_report(report, "csv", Style(width=80))
    rows = list(csv.DictReader(io.StringIO(text)))
    for row, rank in zip(rows, report.ranks, strict=True):
        assert row["outcome"] == rank.outcome
        assert row["peak_reserved_bytes"] == str(rank.peak_reserved_bytes)
        short = "" if rank.oom is None else str(rank.oom.requested_bytes)
        assert row["oom.requested_bytes"] == short
        smallest = "" if report.smallest_gpu is None else report.smallest_gpu.name
        assert row["smallest_gpu"] == smallest


def test_ranks_with_equal_rows_share_one_unless_all_are_asked_for() -> None:
    rank = fits().ranks[0]
    ranks = tuple(replace(rank, rank=n, device=d) for n in range(2) for d in range(2))
    for together, names in ((True, ["0-1"]), (False, ["0", "0", "1", "1"])):
        assert [row[0] for row in rank_grid(ranks, together=together).rows] == names
