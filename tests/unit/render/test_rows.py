"""The rows of `run` as CSV."""

from __future__ import annotations

import csv
import io

import pytest
from example_runs import RUNS

from oomdoctor.render import render_report
from oomdoctor.render.formats import Style


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
