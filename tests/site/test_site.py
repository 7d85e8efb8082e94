"""The documentation site: it builds without a warning, and needs nothing from the network."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote

import pytest
from plain_words import found, working_names

ROOT = Path(__file__).parents[2]
PAGES = sorted(page.stem for page in (ROOT / "docs").glob("*.md"))
# The names of records in JSON are names in the code.
RECORDS = set(re.findall(r"^### (\w+)$", (ROOT / "docs" / "json.md").read_text(), re.MULTILINE))
_NOT_SAID = ("script", "style", "code", "pre", "svg")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        any(importlib.util.find_spec(name) is None for name in ("sphinx", "myst_parser", "furo")),
        reason="the packages of the group docs are not installed",
    ),
]


class Links(HTMLParser):
    """What a page links to, loads, and can be linked at."""

    def __init__(self, page: Path) -> None:
        super().__init__()
        self.links: list[str] = []
        self.loads: list[str] = []
        self.targets: set[str] = set()
        self.feed(page.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        if given.get("id"):
            self.targets.add(str(given["id"]))
        if tag == "a" and given.get("href"):
            self.links.append(str(given["href"]))
        loaded = given.get("src") or (given.get("href") if tag == "link" else None)
        if loaded:
            self.loads.append(loaded)


class Words(HTMLParser):
    """What a page says: its text and the texts of its attributes, without code and output."""

    def __init__(self, page: Path) -> None:
        super().__init__()
        self.said: list[str] = []
        self._skipped = 0
        self.feed(page.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._skipped += tag in _NOT_SAID
        self.said += [str(text) for name, text in attrs if name in ("alt", "title", "aria-label")]

    def handle_endtag(self, tag: str) -> None:
        self._skipped -= tag in _NOT_SAID

    def handle_data(self, data: str) -> None:
        if not self._skipped and data.strip() not in RECORDS:
            self.said.append(data)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The built site."""
    folder = tmp_path_factory.mktemp("build") / "site"
    script = [sys.executable, str(ROOT / "scripts" / "build_site.py"), str(folder)]
    done = subprocess.run(script, capture_output=True, text=True, timeout=200, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    return folder


def test_every_page_is_on_the_site_and_in_the_menu(site: Path) -> None:
    index = (site / "index.html").read_text(encoding="utf-8")
    tree = index.partition('class="sidebar-tree"')[2].partition("</aside>")[0]
    for page in PAGES:
        assert (site / f"{page}.html").is_file()
        assert page == "index" or f'href="{page}.html"' in tree, page
    captions = re.findall(r'class="caption-text">([^<]+)<', tree)
    assert captions[-2:] == ["Reference", "Explanation"] and "How to" in captions


def test_links_lead_to_a_page_and_a_heading(site: Path) -> None:
    pages = {page.name: Links(page) for page in site.glob("*.html")}
    checked = 0
    for name, page in pages.items():
        for link in page.links:
            if re.match(r"[a-z]+:", link):
                continue
            file, _, anchor = link.partition("#")
            target = (site / unquote(file)) if file else site / name
            assert target.exists(), (name, link)
            if anchor and target.suffix == ".html" and target.name in pages:
                assert unquote(anchor) in pages[target.name].targets, (name, link)
            checked += 1
    assert checked > 500


def test_nothing_is_loaded_from_elsewhere(site: Path) -> None:
    for page in site.glob("*.html"):
        for loaded in Links(page).loads:
            assert not re.match(r"(?:[a-z]+:)?//", loaded), (page.name, loaded)
    for sheet in site.rglob("*.css"):
        text = sheet.read_text(encoding="utf-8")
        assert not re.search(r"(?:@import|url\()\s*['\"]?(?:https?:)?//", text), sheet.name


def test_what_is_not_a_page_stays_out(site: Path) -> None:
    assert not (site / "reports").exists() and not (site / "examples").exists()


def test_only_commands_look_like_commands(site: Path) -> None:
    tutorial = (site / "tutorial.html").read_text(encoding="utf-8")
    assert '<span class="go"># this process' in tutorial  # a line of the output, not a root prompt
    claims = (site / "claims.html").read_text(encoding="utf-8")
    assert "python scripts/evaluation/check_claims.py --python .venv-cuda/bin/python" in claims


def test_options_keep_their_dashes(site: Path) -> None:
    """Smart quotes would make a dash of the two hyphens, which no shell takes."""
    for page in site.glob("*.html"):
        assert not re.search(r"[–—“”][a-z]", page.read_text(encoding="utf-8")), page.name


def test_the_site_is_plain_english(site: Path) -> None:
    """Also what Sphinx, the theme and our scripts add to the pages of docs/."""
    words = 0
    turns = {}
    for page in site.glob("*.html"):
        text = "".join(Words(page).said)
        words += len(text.split())
        turns[page.name] = [*found(text, ROOT / "docs" / "index.md"), *working_names(text)]
    assert words > 50_000
    assert not {name: each for name, each in turns.items() if each}


def test_pictures_are_there_for_each_screen(site: Path) -> None:
    page = (site / "where-memory-goes.html").read_text(encoding="utf-8")
    for ending, screens in (("", "only-light only-wide"), ("-phone-dark", "only-dark only-narrow")):
        assert re.search(rf'<img[^>]*{screens}[^>]*src="_images/where-step{ending}.png"', page)
