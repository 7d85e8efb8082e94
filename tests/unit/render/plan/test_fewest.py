"""The table of --min, and the sentences below it."""

from __future__ import annotations

import csv
import io
from dataclasses import replace

from example_many_gpus import fewest_report, sharded_report

from oomdoctor.records.report.report import Report
from oomdoctor.render import render_report
from oomdoctor.render.formats import Style


def page(report: Report, *, verbose: bool = False) -> str:
    return render_report(report, "table", Style(width=100, verbose=verbose))


def row(text: str, label: str) -> str:
    return next(line for line in text.splitlines() if line.strip().startswith(label + " "))


def test_a_rung_has_its_fewest_gpus_and_what_one_fewer_misses() -> None:
    text = page(fewest_report())
    assert "Fewest H100 80GB HBM3" in text
    assert row(text, "full-bf16+ckpt+fsdp").split()[1:5] == ["9", "75.2", "GiB", "8"]
    assert "5.40 GiB" in row(text, "full-bf16+ckpt+fsdp")


def test_a_bound_is_only_the_least_that_is_missing() -> None:
    text = page(fewest_report())
    assert "none" in row(text, "full-bf16+ckpt+ddp")
    assert "at least 448 GiB" in row(text, "full-bf16+ckpt+ddp")
    assert "odd: not in the range of --gpus" in text


def test_a_batch_that_rises_with_the_gpus_is_said() -> None:
    report = fewest_report()
    assert report.fewest is not None
    assert "rises to the next multiple" not in page(report)
    first = report.fewest.lines[0]
    lines = (first, replace(first, key="d4", label="other", gpus=16, effective_batch_size=16))
    both = page(replace(report, fewest=replace(report.fewest, lines=lines)))
    assert "The effective batch size rises to the next multiple of the GPUs." in both


def test_what_no_engine_ran_is_named() -> None:
    report = fewest_report()
    assert report.fewest is not None
    assert "Simulated:" not in page(report)
    first = report.fewest.lines[0]
    lines = (first, replace(first, key="d4", label="other", evidence="predicted"))
    assert "Simulated: other." in page(replace(report, fewest=replace(report.fewest, lines=lines)))


def test_a_line_of_csv_is_a_rung() -> None:
    text = render_report(fewest_report(), "csv", Style(width=80))
    lines = list(csv.DictReader(io.StringIO(text)))
    assert [line["gpus"] for line in lines] == ["9", "", ""]
    assert lines[0]["fewer"] == "8"


def test_the_head_counts_the_gpus_and_names_the_engines() -> None:
    text = page(sharded_report(), verbose=True)
    assert "8 x NVIDIA H100 80GB HBM3" in text
    assert "usable per GPU" in text
    assert "2 configs: the engine itself ran on the emulated card" in text
    assert "Checked on the emulated card" not in text
    assert "1 to 64 x NVIDIA H100" in page(fewest_report(), verbose=True)
