"""`runs`: the list, its filters, and what --prune deletes."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from example_runs import ran_out

from oomdoctor.records.codec import dumps
from oomdoctor.system.store import cases, run_folders


def made(golden, kind: str, day: int) -> Path:
    """A stored run of a day in November."""
    report = golden(kind)
    folder = run_folders.runs_dir() / f"202611{day:02d}-120000-model-a7b1"
    folder.mkdir(parents=True)
    run_folders.RunFolder(folder).write_request(report.request)
    run_folders.RunFolder(folder).write_report(report)
    return folder


@pytest.fixture
def history(golden) -> list[Path]:
    """A plan, a probe, a case and a damaged run, the latest first."""
    plan, probe = made(golden, "plan", 22), made(golden, "gpu", 21)
    case = cases.cases_dir() / "20261120-120000-train-a7b1"
    case.mkdir(parents=True)
    (case / "case.json").write_text(dumps(ran_out()))
    broken = made(golden, "plan", 19)
    (broken / "report.json").write_text('{"schema": "oomd')
    return [plan, probe, case, broken]


def names(ended) -> list[str]:
    return [run["name"] for run in json.loads(ended.out)["runs"]]


def test_the_latest_comes_first_and_a_damaged_one_is_listed(cli, history):
    ended = cli("runs", "--json")
    assert (ended.code, ended.err) == (0, "")
    assert names(ended) == [path.name for path in history]
    rows = {run["name"]: run for run in json.loads(ended.out)["runs"]}
    assert rows[history[2].name]["outcome"] == "out of GPU memory"
    assert rows[history[3].name]["outcome"].startswith("unreadable: ")
    text = cli("runs").out
    assert all(path.name in text for path in history)


def test_filters_and_the_limit(cli, history):
    assert names(cli("runs", "--command", "probe", "--json")) == [history[1].name]
    assert names(cli("runs", "--command", "run", "--json")) == [history[2].name]
    assert names(cli("runs", "--model", "TRAIN.PY", "--json")) == [history[2].name]
    assert names(cli("runs", "--limit", "1", "--json")) == [history[0].name]
    assert "--limit 0" in cli("runs", "--limit", "1").out
    assert cli("runs", "--model", "no-such-model").code == 3
    assert cli("runs", "--since", "1d", "--model", "no-such", "--json").code == 3


def test_a_dry_run_deletes_nothing(cli, history):
    ended = cli("runs", "--prune", "--keep", "1", "--dry-run", "--json")
    found = json.loads(ended.out)
    assert ended.code == 0 and found["dry_run"] is True
    assert [run["name"] for run in found["deleted"]] == [p.name for p in history[:0:-1]]
    assert all(path.is_dir() for path in history)


def test_nobody_to_ask_is_an_error(cli, history):
    ended = cli("runs", "--prune", "--keep", "1")
    assert ended.code == 2 and "--yes" in ended.err
    assert all(path.is_dir() for path in history)


def test_prune_deletes_the_oldest(cli, history):
    ended = cli("runs", "--prune", "--keep", "2", "--yes", "--json")
    found = json.loads(ended.out)
    assert (ended.code, found["kept"], found["refused"]) == (0, 2, [])
    assert found["freed_bytes"] > 0
    assert [path.is_dir() for path in history] == [True, True, False, False]
    again = cli("runs", "--prune", "--keep", "2", "--yes")
    assert "Nothing to delete" in again.out


def test_a_filter_says_which_runs_count(cli, history):
    assert cli("runs", "--prune", "--command", "plan", "--keep", "1", "--yes").code == 0
    assert [path.is_dir() for path in history] == [True, True, True, False]


def test_a_run_that_goes_on_stays(cli, history):
    with run_folders.RunFolder(history[3]).running():
        assert cli("runs", "--prune", "--keep", "0", "--yes").code == 0
    assert [path.is_dir() for path in history] == [False, False, False, True]


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (("--keep", "1"), "--keep"),
        (("--dry-run",), "--dry-run"),
        (("--prune",), "--keep N"),
        (("--prune", "--older-than", "soon"), "--older-than"),
        (("--prune", "--max-size", "big"), "--max-size"),
        (("--since", "soon"), "--since"),
        (("--command", "explain"), "--command"),
        (("--limit", "-1"), "--limit"),
    ],
)
def test_what_is_wrong_is_named(cli, arguments, named):
    ended = cli("runs", *arguments)
    assert (ended.code, ended.out) == (2, "")
    assert named in ended.err


def test_no_runs_yet(cli):
    assert (cli("runs").code, cli("runs").out) == (0, "nothing to list\n")


def test_a_standing_limit_is_applied_after_a_run(cli, history, survey, monkeypatch):
    monkeypatch.setenv("OOMDOCTOR_RUNS_LIMIT", "2")
    ended = cli("probe", "m")
    assert "deleted 3 old runs: OOMDOCTOR_RUNS_LIMIT is 2" in ended.err
    assert [path.is_dir() for path in history] == [True, False, False, False]
    assert len(os.listdir(run_folders.runs_dir())) == 2  # noqa: PTH208


def test_a_wrong_limit_is_said_and_deletes_nothing(cli, history, survey, monkeypatch):
    monkeypatch.setenv("OOMDOCTOR_RUNS_LIMIT", "a few")
    assert "OOMDOCTOR_RUNS_LIMIT is ignored" in cli("probe", "m").err
    assert all(path.is_dir() for path in history)


def test_prune_without_a_limit_takes_the_standing_one(cli, history, monkeypatch):
    monkeypatch.setenv("OOMDOCTOR_RUNS_LIMIT", "1")
    assert cli("runs", "--prune", "--yes").code == 0
    assert [path.is_dir() for path in history] == [True, False, False, False]
