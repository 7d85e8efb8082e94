"""The table of pages: every format reads it, and nothing else says what a verb's page has."""

from __future__ import annotations

import re
from dataclasses import replace
from importlib import import_module
from pathlib import Path

import pytest
from example_diagnoses import GPU, explained
from example_gpu import gpu_report
from example_snapshots import replayed

from oomdoctor.records.report.report import Report
from oomdoctor.render import pages
from oomdoctor.render.blocks import Look
from oomdoctor.render.ladder_page import ENTRIES, PARTS
from oomdoctor.render.pages import PAGES, SURVEY, page_of, parts_of, sections_of

RENDER = Path(pages.__file__).parent


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.commands[0])
def test_what_a_row_names_is_there(page: pages.Page) -> None:
    for text in filter(None, (page.sections, page.rows, page.parts)):
        module, _, name = text.partition(":")
        assert callable(getattr(import_module(f"oomdoctor.render.{module}"), name))
    assert not page.needs or page.needs in Report.__slots__


def test_a_verb_has_one_page() -> None:
    """And another one for reports that have what it needs."""
    commands = [(command, page.needs) for page in PAGES for command in page.commands]
    assert len(commands) == len(set(commands))
    for page in PAGES:
        for command in page.commands:
            report = replace(gpu_report(), command=command)
            assert page_of(report) is (SURVEY if page.needs else page)
    assert page_of(replace(gpu_report(), command="export")) is SURVEY


def test_a_browser_gets_every_section_of_the_text() -> None:
    report = gpu_report()
    in_parts = [section.title for part in parts_of(report) for section in part.sections]
    text = [section.title for section in sections_of(report, Look(verbose=True))]
    for title in text:
        assert title in in_parts or title in ("Memory at the peak", "Versions")  # a chart, a part
    assert {entry.part for entry in ENTRIES} - {""} <= {part.name for part in PARTS}


def test_a_browser_gets_every_remedy_and_line_of_code() -> None:
    for report in (explained(GPU), replayed()):
        text = sections_of(report, Look(verbose=True, drawn=True))
        assert [section for part in parts_of(report) for section in part.sections] == text
        assert "--verbose shows" not in str(text)


def test_nothing_but_the_table_asks_for_the_command() -> None:
    """One question is left: whether a report predicts, which words and columns depend on."""
    asked = {
        f"{path.relative_to(RENDER)}: {line.strip()}"
        for path in RENDER.rglob("*.py")
        for line in path.read_text().splitlines()
        if re.search(r"report\.command (==|in|not in|!=)|title\.startswith", line)
    }
    assert asked == {
        'ladder/header.py: return report.command == "plan"',
        "pages.py: if report.command in page.commands and (not page.needs or getattr(report, "
        "page.needs)):",
    }
