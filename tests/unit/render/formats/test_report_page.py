"""The page of a report as text: complete, escaped, and closed to everything else."""

from __future__ import annotations

import re
from base64 import b64encode
from dataclasses import replace
from hashlib import sha256
from html import unescape
from html.parser import HTMLParser
from pathlib import Path

import pytest
from example_diagnoses import EXPLAINED
from example_gpu import gpu_report
from example_plans import PLANS
from example_reports import REPORTS
from example_runs import RUNS
from example_slurm import SLURM
from example_snapshots import SNAPSHOTS

from oomdoctor.records.codec import loads
from oomdoctor.records.report.report import Report
from oomdoctor.render import render_report
from oomdoctor.render.formats import Style
from oomdoctor.units import format_bytes

ROOT = Path(__file__).parents[4]

EVIL = '</title><script>alert("1")</script><img src=x onerror=alert(2)>&{{ 7*7 }}\ud800\x00'
VOID = {"meta", "path", "use", "rect", "br", "line"}
EXAMPLES = {**REPORTS, **PLANS, **EXPLAINED, **RUNS, **SNAPSHOTS, **SLURM}


def page_of(report: Report) -> str:
    return render_report(report, "html", Style(width=80))


class Outline(HTMLParser):
    """Which elements a page has; each has to be closed."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: set[str] = set()
        self.ids: list[str] = []
        self.targets: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.add(tag)
        for name, value in attrs:
            assert not name.startswith("on") and name not in ("src", "style")
            if name == "id":
                self.ids.append(value or "")
            if name == "href":
                self.targets.append(value or "")
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag not in VOID:
            assert self.open.pop() == tag


@pytest.mark.parametrize("name", EXAMPLES)
def test_every_report_has_a_page(name: str) -> None:
    page = page_of(EXAMPLES[name]())
    outline = Outline()
    outline.feed(page)
    assert not outline.open and not outline.seen & {"script", "img", "link", "iframe", "object"}
    assert len(outline.ids) == len(set(outline.ids))
    assert all(target.startswith("#") for target in outline.targets)
    assert {target[1:] for target in outline.targets} <= set(outline.ids)


def test_the_page_has_every_section_and_number() -> None:
    report = gpu_report()
    page = unescape(re.sub("<[^>]+>", " ", page_of(report)))
    for result in report.results:
        assert result.label in page
    for wanted in (
        "Ranking", "Memory against throughput", "What did not fit, and why", "Warnings", "Next",
        "About this run", "Every configuration in detail", *report.next_commands,
        *(one.message for one in report.warnings), "bitsandbytes", "driver",
    ):  # fmt: skip
        assert wanted in page
    best = next(one for one in report.results if one.key == report.ranking[0])
    assert format_bytes(best.deciding_peak_bytes()) in page


@pytest.mark.parametrize("name", RUNS)
def test_the_title_of_a_run_is_its_command(name: str) -> None:
    """Also if memory ran out, where `source` is the snapshot in the case."""
    report = replace(RUNS[name](), source="snapshot-rank0-gpu0.pickle")
    (title,) = re.findall("<title>(.*?)</title>", page_of(report), re.DOTALL)
    assert " ".join(report.command_line) in unescape(title)


def test_no_text_of_a_report_becomes_markup() -> None:
    report = gpu_report()
    assert report.model is not None and report.machine is not None
    results = tuple(replace(one, label=EVIL, reason=EVIL, notes=(EVIL,)) for one in report.results)
    page = page_of(
        replace(
            report,
            results=results,
            run_dir=EVIL,
            next_commands=(EVIL,),
            tool=replace(report.tool, name=EVIL, version="1\x1b[31m\x9b0m\x07"),
            model=replace(report.model, id=EVIL, architecture=EVIL),
            machine=replace(report.machine, gpu_name=EVIL, versions={EVIL: EVIL}),
        )
    )
    page.encode()
    assert (
        "<script" not in page
        and "<img" not in page
        and "49" not in re.findall(r"&amp;(.{2,9}) ", page)
    )
    assert "{{ 7*7 }}" in unescape(page)
    assert not re.search(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]", page)


def test_only_its_style_is_allowed() -> None:
    page = page_of(gpu_report())
    policy = re.search(r'Content-Security-Policy" content="([^"]+)"', page)
    (style,) = re.findall(r"<style>(.*?)</style>", page, re.DOTALL)
    digest = b64encode(sha256(style.encode()).digest()).decode()
    assert policy is not None
    assert unescape(policy[1]).startswith(f"default-src 'none'; style-src 'sha256-{digest}'")


def test_an_interrupted_run_says_so_and_shows_what_there_is() -> None:
    report = REPORTS["interrupted"]()
    page = unescape(re.sub("<[^>]+>", " ", page_of(report)))
    assert "interrupted after" in page and "--resume" in page
    assert all(result.label in page for result in report.results)


def test_nothing_to_draw_is_still_a_page() -> None:
    report = replace(gpu_report(), results=(), ranking=(), ranking_reasons={})
    page = page_of(report)
    assert "<svg" not in page and "About this run" in page


def test_the_users_rung_stands_before_the_ranking() -> None:
    report = loads(Report, (ROOT / "docs" / "reports" / "from-axolotl.json").read_text())
    page = render_report(report, "html", Style(width=80))
    place = page.index('id="yours"')
    assert place < page.index('id="ranking"')
    assert "Fits with" in page[place:]
    assert "axolotl.yml" in page[place:]
