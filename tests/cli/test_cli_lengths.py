"""`--lengths` from the command line: what reaches the survey and the plan, and how it is told."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from oomdoctor.analysis.dataset_distribution import Tally
from oomdoctor.commands.events import SurveyEvent
from oomdoctor.errors import ExitCode
from oomdoctor.records.job.dataset import (
    LengthLimit,
    LengthLine,
    LengthPeak,
    LengthsAnswer,
    LengthShape,
    LengthsRequest,
    RowsAbove,
)
from oomdoctor.units import GIB


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A data file, named relative to the current folder."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "rows.jsonl").write_text('{"text": "a"}\n')
    return "rows.jsonl"


def answer() -> LengthsAnswer:
    """Of a file with one row that is too long for one of two rungs."""
    tally = Tally()
    for row in range(1, 101):
        tally.add(row, 31_902 if row == 7 else 10 * row, "messages, contents joined")
    tally.add_unread(101, "is not JSON")
    lengths = tally.counted("/d/rows.jsonl", "own/model", approximate=False, elapsed_s=0.5)
    shapes = (LengthShape("longest", 31_902), LengthShape("p95", 960))

    def line(label: str, *peaks: tuple[int | None, bool | None]) -> LengthLine:
        found = zip(shapes, peaks, strict=True)
        return LengthLine(
            "NVIDIA GeForce RTX 4090",
            label,
            label,
            tuple(LengthPeak(s.name, s.tokens, 1, p, f) for s, (p, f) in found),
        )

    return LengthsAnswer(
        distribution=lengths.distribution,
        shapes=shapes,
        lines=(
            line("full", (40 * GIB, False), (20 * GIB, True)),
            line("odd", (None, None), (None, None)),
        ),
        limits=(LengthLimit("c", "full", "full", 1, 12_288, RowsAbove(1, 0.01, (7,))),),
        verdict=("row 7 (31,902 tokens) does not fit: full handles rows up to 12,288 tokens",),
    )


def test_the_file_reaches_the_plan_with_its_whole_path(cli, planned, file, tmp_path):
    cli("plan", "m", "--gpu", "T4", "--lengths", file)
    assert planned.request.lengths == LengthsRequest(str(tmp_path / file))
    assert planned.request.sequence_length == 2048


def test_what_belongs_to_it(cli, survey, file, tmp_path):
    (tmp_path / "tok").mkdir()
    arguments = ("--tokenizer", "tok", "--text-field", "body", "--seq-len", "4096")
    cli("probe", "m", "--lengths", file, *arguments)
    assert survey.request.lengths == LengthsRequest(
        str(tmp_path / file), str(tmp_path / "tok"), "body", packed_tokens=4096
    )


def test_without_it_nothing_is_counted(cli, survey, planned):
    cli("probe", "m")
    cli("plan", "m", "--gpu", "T4")
    assert survey.request.lengths is None
    assert planned.request.lengths is None


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--lengths", "missing.jsonl"), "--lengths: 'missing.jsonl' is not a file"),
        (("--lengths", "."), "--lengths: '.' is not a file"),
        (("--tokenizer", "x"), "--tokenizer: needs a data file; add --lengths FILE"),
        (("--text-field", "x"), "--text-field: needs a data file"),
        (
            ("--lengths", "rows.jsonl", "--why", "full-bf16"),
            "--why: cannot be combined with --lengths",
        ),
        (("--lengths", "rows.jsonl", "--sweep", "seq-len=1,2"), "--sweep: cannot be combined with"),
    ],
    ids=" ".join,
)
def test_a_fault_says_what_and_why(cli, planned, file, arguments, words):
    ended = cli("plan", "m", "--gpu", "T4", *arguments)
    assert (ended.code, planned.request) == (ExitCode.USAGE, None)
    assert words in ended.err


def test_a_run_is_not_resumed_with_another_file(cli, survey, file):
    cli("probe", "m", "--quiet")
    ended = cli("probe", "--resume", "latest", "--lengths", file)
    assert ended.code == ExitCode.USAGE
    assert "--lengths: cannot change" in ended.err


def test_the_page_and_the_document(cli, planned, golden, file):
    planned.answer = replace(golden("plan"), lengths=answer())
    page = cli("plan", "m", "--gpu", "T4", "--lengths", file, "--quiet").out
    assert "row 7 (31,902 tokens) does not fit: full handles rows up to 12,288 tokens." in page
    for words in (
        "100 rows",
        "the tokenizer of own/model",
        "median 510, 90th percentile 910, 95th 960, 99th 1,000, longest 31,902",
        "7 (31,902), 100 (1,000), 99 (990)",
        "1 row: row 101 is not JSON",
        "longest row: 31,902",
        "95th percentile: 960",
    ):
        assert words in page
    (histogram,) = (line for line in page.splitlines() if line.split()[:3] == ["0", "to", "128"])
    assert histogram.split()[3:] == ["11", "11.0%"]
    (full,) = (line for line in page.splitlines() if line.startswith("  full  "))
    assert "(40.0 GiB, mb 1)" in full and full.endswith("20.0 GiB, mb 1")
    document = json.loads(cli("show", "--json").out)
    assert document["lengths"]["distribution"]["longest"] == {"row": 7, "tokens": 31902}
    assert document["lengths"]["limits"][0]["above"]["first_rows"] == [7]
    assert "rows/s" in cli("show", "--verbose").out


def test_an_approximation_says_so(cli, planned, golden, file):
    rough = replace(answer().distribution, approximate=True, tokenizer="bytes/4")
    planned.answer = replace(golden("plan"), lengths=replace(answer(), distribution=rough))
    assert "bytes/4 (approximate)" in cli("plan", "m", "--gpu", "T4", "--quiet").out


def test_progress(cli, planned):
    planned.events = (
        SurveyEvent("counting", message="/d/rows.jsonl"),
        SurveyEvent("counting", message="/d/rows.jsonl", phase="row 512, 40%"),
    )
    told = cli("plan", "m", "--gpu", "T4").err.splitlines()
    assert told[1:] == ["counting the tokens of /d/rows.jsonl"]
