"""The list of runs in each of its formats."""

from __future__ import annotations

import csv
import io
import json
import re
from dataclasses import fields, replace

from oomdoctor.records.report.earlier_runs import StoredRun
from oomdoctor.render.formats import Style
from oomdoctor.render.runs_page import listed_as_before, run_list

RUN = StoredRun(
    name="20260102-030405-model-a7b1",
    kind="run",
    path="/runs/20260102-030405-model-a7b1",
    command="plan",
    command_line=(),
    model="org/model-1B",
    device="NVIDIA GeForce RTX 4090",
    started_at="2026-01-02T03:04:05+00:00",
    changed_at="2026-01-02T03:05:05+00:00",
    status="ok",
    fits=9,
    rungs=14,
    outcome="9 of 14 fit",
    size_bytes=3 * 1024**2,
    problem=None,
)
CASE = replace(
    RUN,
    name="20260101-030405-train-a7b1",
    kind="case",
    command="run",
    command_line=("python", "/home/you/train.py", "--lr", "1e-4"),
    model=None,
    status="no",
    outcome="out of GPU memory",
)
BROKEN = replace(
    RUN, status="unreadable", outcome="unreadable: not JSON", problem="not JSON", started_at=None
)


def listed(*runs: StoredRun, format: str = "table", width: int = 0) -> str:
    return run_list("runs", runs).text(format, Style(terminal=bool(width), width=width or 100))


def test_a_line_has_what_one_looks_for() -> None:
    text = listed(RUN, CASE)
    assert re.search(
        r"a7b1 +2026-01-02 03:04 UTC +plan +org/model-1B +RTX 4090 +3.00 MiB +9 of 14 fit\n", text
    )
    assert re.search(r"run train.py +- +RTX 4090 +3.00 MiB +out of GPU memory\n", text)
    assert text.endswith("2 runs, 6.00 MiB.\n")


def test_a_damaged_run_has_a_line_with_the_reason() -> None:
    assert "unreadable: not JSON" in listed(BROKEN)
    assert "unreadable: not JSON" in listed(BROKEN, format="csv")


def test_json_and_csv_have_every_field() -> None:
    document = json.loads(listed(RUN, CASE, format="json"))
    assert (document["schema"], document["command"]) == ("oomdoctor/1", "runs")
    names = [field.name for field in fields(StoredRun)]
    assert list(document["runs"][0]) == names
    assert document["runs"][1]["command_line"] == list(CASE.command_line)
    rows = list(csv.DictReader(io.StringIO(listed(RUN, CASE, format="csv"))))
    assert [row["size_bytes"] for row in rows] == ["3145728", "3145728"]
    assert list(rows[0]) == names


def test_markdown_is_a_table() -> None:
    assert listed(RUN, format="markdown").startswith("| name | when |")


def test_no_line_is_wider_than_the_terminal() -> None:
    for width in (60, 80, 100):
        assert max(map(len, listed(RUN, CASE, BROKEN, width=width).splitlines())) <= width


def test_show_list_keeps_its_keys() -> None:
    found = listed_as_before((RUN, CASE))
    assert [run["name"] for run in found["runs"]] == [RUN.name]
    old = {"name", "path", "started_at", "model", "device", "status", "fits", "rungs", "problem"}
    assert old <= set(found["runs"][0])
    assert found["cases"][0]["command"] == "python /home/you/train.py --lr 1e-4"


def test_nothing_to_list() -> None:
    assert listed() == "nothing to list\n"
