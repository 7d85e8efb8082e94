"""The table of formats: every row renders, is loaded only when used, and is known to the CLI."""

from __future__ import annotations

import subprocess
import sys

import pytest
from example_reports import REPORTS

from oomdoctor.render import render_report
from oomdoctor.render.formats import FORMATS, Style, format_endings, format_names, format_of_file


@pytest.mark.parametrize("name", format_names())
def test_every_format_renders_a_report(name: str) -> None:
    text = render_report(REPORTS["gpu"](), name, Style(width=80))
    assert "lora-r16+ckpt" in text


@pytest.mark.parametrize("row", FORMATS, ids=lambda row: row.name)
def test_a_format_does_not_load_the_others(row) -> None:
    code = (
        "import sys; from oomdoctor.render.formats import FORMATS\n"
        f"before = set(sys.modules); __import__({row.module!r})\n"
        "print(*[row.name for row in FORMATS if row.module in set(sys.modules) - before])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == [row.name]


def test_names_and_endings_are_unique() -> None:
    assert len(set(format_names())) == len(FORMATS)
    assert len(set(format_endings())) == len(format_endings())


@pytest.mark.parametrize("row", FORMATS, ids=lambda row: row.name)
def test_a_file_ending_chooses_its_format(row) -> None:
    for ending in row.endings:
        assert format_of_file(f"a.b{ending}") == format_of_file(f"A{ending.upper()}") == row.name


def test_other_endings_choose_nothing() -> None:
    assert format_of_file("report.txt") is None
    assert format_of_file("json") is None
