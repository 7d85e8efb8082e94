"""The page of a report in a real browser: what it shows, on which screens, and to whom."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from chromium import LOADED, Tab
from example_diagnoses import GPU, explained
from example_pages import EVIL, PAGES
from example_plans import cards_report, sweep_report
from example_runs import ran_out

from oomdoctor.records.report.report import Report
from oomdoctor.render import render_report
from oomdoctor.render.formats import Style

ROOT = Path(__file__).parents[2]
AXE = ROOT / "build" / "axe-core" / "axe.min.js"
MORE = {
    "cards": cards_report,
    "sweep": sweep_report,
    "run": ran_out,
    "explain": lambda: explained(GPU),
}
ALL = {**PAGES, **MORE}
pytestmark = pytest.mark.slow


def write(report: Report, folder: Path, name: str) -> Path:
    file = folder / f"{name}.html"
    text = render_report(report, "html", Style(width=80))
    file.write_text(text, encoding="utf-8")
    return file


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("pages")
    return {name: write(make(), folder, name) for name, make in ALL.items()}


@pytest.fixture
def quiet(tab: Tab) -> Iterator[Tab]:
    """The tab, which says nothing wrong and sends nothing, whatever a test does."""
    tab.errors.clear()
    tab.requests.clear()
    yield tab
    assert tab.errors == []
    assert all(request.startswith("file:") for request in tab.requests)
    assert len(set(tab.requests)) <= 1
    assert tab.value("document.images.length + document.scripts.length") == 0


def opened(tab: Tab, file: Path, width: int = 1280, *, dark: bool = False) -> None:
    """Open a page and everything that is folded in it."""
    tab.open(file, width, 900, dark=dark, shown=LOADED)
    tab.value("document.querySelectorAll('details').forEach((one) => one.open = true)")


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("width", [360, 1280])
def test_it_fits_a_phone_and_a_desk(quiet: Tab, files: dict[str, Path], name, width) -> None:
    opened(quiet, files[name], width)
    assert quiet.value("document.documentElement.scrollWidth") <= width
    drawn = quiet.value("""[...document.querySelectorAll('svg.chart')]
        .map((one) => one.getBoundingClientRect()).filter((box) => box.width > 0)
        .map((box) => [box.left, box.right, box.height])""")
    assert len(drawn) == quiet.value("document.querySelectorAll('svg.wide').length")
    for left, right, height in drawn:
        assert left >= 0 and right <= width and height > 100
    assert quiet.value("document.title") != "ran"


@pytest.mark.parametrize("name", ["everything", "hostile", "extreme", "sixty", "cards", "run"])
def test_no_table_runs_past_the_edge_of_a_phone(quiet: Tab, files, name: str) -> None:
    opened(quiet, files[name], 390)
    wide = quiet.value("""[...document.querySelectorAll('.scroll:has(> .stacked)')]
        .filter((one) => one.scrollWidth > one.clientWidth).map((one) => one.ariaLabel)""")
    assert wide == []
    first = "document.querySelector('.stacked td:not([data-name=\"#\"])')"
    assert quiet.value(f"getComputedStyle({first}, '::before').content").endswith(' "')


@pytest.mark.parametrize("name", ["everything", "sixty"])
def test_a_name_of_a_configuration_is_on_one_line(quiet: Tab, files, name: str) -> None:
    opened(quiet, files[name])
    for media in ("", "print"):
        quiet.dark(False, media=media)
        lines = quiet.value("""[...document.querySelectorAll('th.name')].map((one) => {
            const range = document.createRange();
            range.selectNodeContents(one);
            const tops = [...range.getClientRects()].map((box) => box.top);
            return [one.textContent, new Set(tops).size];
        }).filter(([, count]) => count)""")
        assert lines and not [text for text, count in lines if count > 1]


@pytest.mark.parametrize(
    "name", ["everything", "followed", "hostile", "extreme", "sixty", "sweep", "cards"]
)
@pytest.mark.parametrize("width", [360, 1280])
def test_texts_of_charts_are_whole_and_legible(quiet: Tab, files, name: str, width: int) -> None:
    opened(quiet, files[name], width)
    charts = quiet.value("""[...document.querySelectorAll('svg.chart')].filter(
        (one) => one.getBoundingClientRect().width > 0).map((one) => {
          const frame = one.getBoundingClientRect();
          return {
            title: one.getAttribute('aria-label'),
            frame: [frame.left, frame.top, frame.right, frame.bottom],
            texts: [...one.querySelectorAll('text')].map((text) => {
              const box = text.getBoundingClientRect();
              const size = parseFloat(getComputedStyle(text).fontSize);
              const shown = size * frame.width / one.viewBox.baseVal.width;
              return [text.textContent, box.left, box.top, box.right, box.bottom, shown];
            }),
          };
        })""")
    assert charts
    wrong = []
    for chart in charts:
        left, top, right, bottom = chart["frame"]
        for number, (text, x0, y0, x1, y1, size) in enumerate(chart["texts"]):
            if x0 < left - 2 or x1 > right + 2 or y0 < top - 2 or y1 > bottom + 2:
                wrong.append(f"{text!r} leaves {chart['title'][:50]}")
            if size < 10:
                wrong.append(f"{text!r} has {size:.1f} pixels")
            for other, a0, b0, a1, b1, _ in chart["texts"][:number]:
                across, down = min(x1, a1) - max(x0, a0), min(y1, b1) - max(y0, b0)
                if across > 2 and down > 4:
                    wrong.append(f"{text!r} covers {other!r} in {chart['title'][:50]}")
    assert not wrong, "\n".join(wrong)


@pytest.mark.skipif(not AXE.is_file(), reason="no axe-core: run scripts/chromium.sh")
@pytest.mark.parametrize("dark", [False, True])
@pytest.mark.parametrize("width", [360, 1280])
@pytest.mark.parametrize("name", ["everything", "followed", "sweep", "cards", "run"])
def test_nothing_keeps_people_out(quiet: Tab, files, name: str, width: int, dark: bool) -> None:
    opened(quiet, files[name], width, dark=dark)
    quiet.value(AXE.read_text(encoding="utf-8") + "; 0")
    found: list[dict[str, Any]] = quiet.value(
        "axe.run().then((found) => found.violations.map((one) => ({id: one.id, impact: one.impact, "
        "nodes: one.nodes.map((node) => node.html.slice(0, 120) + node.failureSummary)})))"
    )
    assert found == [], json.dumps(found, indent=1)


def test_hostile_names_are_text(quiet: Tab, files: dict[str, Path]) -> None:
    opened(quiet, files["hostile"])
    shown = quiet.value("document.body.textContent")
    assert EVIL.replace("\ud800", "\\ud800") in shown
    assert quiet.value("document.querySelector('h1').textContent").startswith("<img src=x")


def test_dark_and_light(quiet: Tab, files: dict[str, Path]) -> None:
    colors = """[getComputedStyle(document.body).backgroundColor,
        getComputedStyle(document.querySelector('svg.wide text')).fill]"""
    opened(quiet, files["everything"])
    light = quiet.value(colors)
    quiet.dark()
    dark = quiet.value(colors)
    assert light[0] == "rgb(255, 255, 255)" and light[0] != dark[0] and light[1] != dark[1]
    quiet.dark(media="print")  # paper is white
    assert quiet.value(colors)[0] == light[0]
    quiet.dark(False)


def test_the_keyboard_reaches_everything_in_order(quiet: Tab, files: dict[str, Path]) -> None:
    quiet.open(files["everything"], shown=LOADED)
    at = "document.activeElement"
    quiet.key("Tab")
    assert quiet.value(f"{at}.textContent") == "Skip to the report"
    assert quiet.value(f"{at}.getBoundingClientRect().left") >= 0
    quiet.key("Enter")
    quiet.until("document.activeElement.id === 'content'")
    quiet.open(files["everything"], shown=LOADED)
    stops: list[float] = []
    for _ in range(80):
        quiet.key("Tab")
        if quiet.value(f"{at} === document.body"):
            break
        stops.append(quiet.value(
            f"[...document.querySelectorAll('*')].indexOf({at})"
        ))  # fmt: skip
        assert quiet.value(f"getComputedStyle({at}).outlineStyle") != "none"
    assert stops == sorted(set(stops)) and len(stops) > 12
    quiet.value("document.querySelector('details.numbers > summary').focus()")
    assert not quiet.value("document.querySelector('details.numbers').open")
    quiet.key("Enter")
    quiet.until("document.querySelector('details.numbers').open")


def test_contents_lead_to_their_parts(quiet: Tab, files: dict[str, Path]) -> None:
    quiet.open(files["everything"], shown=LOADED)
    links = quiet.value("[...document.querySelectorAll('nav a')].map((a) => [a.hash, a.text])")
    assert len(links) >= 9
    for target, text in links:
        title = quiet.value(f"document.querySelector('{target} h2').textContent")
        assert title == text


@pytest.mark.parametrize("name", ["everything", "sixty", "sweep"])
def test_it_prints(quiet: Tab, files: dict[str, Path], name: str, tmp_path: Path) -> None:
    quiet.open(files[name], 718, 1000, shown=LOADED)  # A4 without its margins
    quiet.dark(False, media="print")
    assert quiet.value("getComputedStyle(document.querySelector('nav')).display") == "none"
    assert quiet.value("document.documentElement.scrollWidth") <= 718
    charts = quiet.value("""[...document.querySelectorAll('svg.wide')]
        .map((one) => one.getBoundingClientRect().height).filter((height) => height > 0)""")
    assert charts and max(charts) < 950  # each fits on a sheet
    assert quiet.value("""[...document.querySelectorAll('.scroll')].every(
        (one) => one.scrollWidth <= one.clientWidth + 1 || one.getBoundingClientRect().width === 0)
    """)
    quiet.paper(tmp_path / "page.pdf")
    assert (tmp_path / "page.pdf").read_bytes().count(b"/Type /Page\n") >= 2
    quiet.dark(False)
