"""`diff`: which runs are compared, the formats, and the exit code."""

from __future__ import annotations

import csv
import io
import json
from dataclasses import replace

import pytest

from oomdoctor.records.codec import dumps
from oomdoctor.system.store import run_folders
from oomdoctor.units import GIB


def stored(report, day: int, model: str = "org/a") -> str:
    folder = run_folders.runs_dir() / f"202611{day:02d}-120000-model-a7b1"
    folder.mkdir(parents=True)
    request = replace(report.request, model=replace(report.request.model, name=model))
    run_folders.RunFolder(folder).write_request(request)
    run_folders.RunFolder(folder).write_report(replace(report, request=request))
    return folder.name


def upgraded(report, *, worse: bool):
    """The report after an upgrade of torch; with `worse` its first fitting rung runs out."""
    versions = {**report.machine.versions, "torch": "9.9.0"}
    results = list(report.results)
    if worse:
        place = next(i for i, one in enumerate(results) if one.outcome == "fits")
        results[place] = replace(results[place], outcome="oom", missed_by_bytes=GIB)
    machine = replace(report.machine, versions=versions)
    return replace(report, machine=machine, results=tuple(results))


def test_the_first_two_lines_answer_what_an_upgrade_changed(cli, golden):
    report = golden("gpu")
    stored(report, 20), stored(upgraded(report, worse=True), 21)
    ended = cli("diff")
    first, second = ended.out.splitlines()[:2]
    old = report.machine.versions["torch"]
    assert first.startswith(f"torch {old} -> 9.9.0: worse; 1 of 10 configurations no longer fits")
    assert second.startswith("Most: ") and "fits -> out of memory, short by 1.00 GiB" in second
    assert (ended.code, ended.err) == (3, "")


def test_no_change_that_matters_is_exit_code_0(cli, golden):
    report = golden("gpu")
    stored(report, 20), stored(upgraded(report, worse=False), 21)
    ended = cli("diff")
    assert ended.code == 0
    assert "9.9.0: no change that matters in " in ended.out.splitlines()[0]
    assert ended.out.splitlines()[1].startswith("Every number of ")


def test_better_is_exit_code_0(cli, golden):
    report = golden("gpu")
    stored(upgraded(report, worse=True), 20), stored(report, 21)
    ended = cli("diff", "--json")
    assert (ended.code, json.loads(ended.out)["diff"]["verdict"]) == (0, "better")


def test_the_last_two_of_a_kind_are_compared(cli, golden):
    one = stored(golden("gpu"), 18)
    two = stored(golden("gpu"), 19)
    stored(golden("gpu"), 20, "org/b")
    stored(golden("plan"), 21)
    three = stored(golden("gpu"), 17)
    found = json.loads(cli("diff", "--json").out)["diff"]
    assert (found["before"]["name"], found["after"]["name"]) == (one, two)
    found = json.loads(cli("diff", three, "--json").out)["diff"]
    assert (found["before"]["name"], found["after"]["name"]) == (three, two)
    found = json.loads(cli("diff", two, one, "--json").out)["diff"]
    assert (found["before"]["name"], found["after"]["name"]) == (two, one)


def test_files_folders_and_other_formats(cli, golden, tmp_path):
    report = golden("gpu")
    (tmp_path / "a.json").write_text(dumps(report))
    (tmp_path / "b.json").write_text(dumps(upgraded(report, worse=True)))
    name = stored(report, 20)
    folder = str(run_folders.runs_dir() / name)
    assert cli("diff", str(tmp_path / "a.json"), folder).code == 0
    both = (str(tmp_path / "a.json"), str(tmp_path / "b.json"))
    rows = list(csv.DictReader(io.StringIO(cli("diff", *both, "--format", "csv").out)))
    assert rows[0]["verdict"] == "worse" and {row["quantity"] for row in rows} > {"tokens_per_s"}
    assert "| config | verdict |" in cli("diff", *both, "--format", "markdown").out
    assert len(cli("diff", *both, "--verbose").out) > len(cli("diff", *both).out)


def test_a_prediction_and_a_measurement(cli, golden, tmp_path):
    (tmp_path / "a.json").write_text(dumps(golden("plan")))
    (tmp_path / "b.json").write_text(dumps(golden("gpu")))
    ended = cli("diff", str(tmp_path / "a.json"), str(tmp_path / "b.json"))
    assert "predicted -> measured" in " ".join(ended.out.split())
    assert ended.code in (0, 3) and ended.err == ""


def test_two_runs_without_a_common_rung_are_inconclusive(cli, golden, tmp_path):
    report = golden("gpu")
    some, other = report.results[:1], report.results[-1:]
    (tmp_path / "a.json").write_text(dumps(replace(report, results=some)))
    (tmp_path / "b.json").write_text(dumps(replace(report, results=other)))
    ended = cli("diff", str(tmp_path / "a.json"), str(tmp_path / "b.json"))
    assert ended.code == 6 and "Nothing can be compared" in ended.out


def test_a_report_of_an_earlier_version_is_read(cli, golden, tmp_path):
    document = json.loads(dumps(golden("gpu")))
    for new in ("diff", "gathered", "triage", "files", "watch"):
        del document[new]
    (tmp_path / "old.json").write_text(json.dumps(document))
    (tmp_path / "new.json").write_text(dumps(golden("gpu")))
    assert cli("diff", str(tmp_path / "old.json"), str(tmp_path / "new.json")).code == 0


@pytest.mark.parametrize(
    ("make", "code", "said"),
    [
        (lambda path: (), 2, "no two runs"),
        (lambda path: ("nothing", "latest"), 2, "nothing is not a run"),
        (lambda path: (str(path / "bad.json"), str(path / "bad.json")), 5, "not JSON"),
        (lambda path: (str(path / "explain.json"),) * 2, 2, "has no results to compare"),
    ],
)
def test_what_cannot_be_compared(cli, golden, tmp_path, make, code, said):
    (tmp_path / "bad.json").write_text("{")
    (tmp_path / "explain.json").write_text(dumps(golden("explain-gpu")))
    ended = cli("diff", *make(tmp_path))
    assert (ended.code, ended.out) == (code, "")
    assert said in ended.err


def test_one_run_alone_has_no_partner(cli, golden):
    name = stored(golden("gpu"), 20)
    stored(golden("plan"), 21)
    ended = cli("diff", name)
    assert ended.code == 2 and "no other run" in ended.err


@pytest.mark.parametrize("width", [60, 80, 120])
def test_no_line_is_wider_than_the_terminal(golden, width, tmp_path, monkeypatch):
    from oomdoctor.commands.diff import difference
    from oomdoctor.render import render_report
    from oomdoctor.render.formats import Style

    (tmp_path / "a.json").write_text(dumps(golden("gpu")))
    (tmp_path / "b.json").write_text(dumps(upgraded(golden("gpu"), worse=True)))
    monkeypatch.chdir(tmp_path)
    found = difference("a.json", "b.json")
    page = render_report(
        replace(golden("error"), command="diff", errors=(), diff=found),
        "table",
        Style(terminal=True, width=width, verbose=True),
    )
    assert max(map(len, page.splitlines())) <= width
