"""The documentation site in a real browser, opened as a file."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest
from chromium import LOADED, Tab

ROOT = Path(__file__).parents[2]
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        any(importlib.util.find_spec(name) is None for name in ("sphinx", "myst_parser", "furo")),
        reason="the packages of the group docs are not installed",
    ),
]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The built site."""
    folder = tmp_path_factory.mktemp("site") / "site"
    script = [sys.executable, str(ROOT / "scripts" / "build_site.py"), str(folder)]
    subprocess.run(script, check=True, timeout=200, capture_output=True)
    return folder


def test_the_search_works_from_a_file_and_nothing_is_requested(tab: Tab, site: Path) -> None:
    before = len(tab.errors), len(tab.requests)
    for page in ("index", "plan"):
        tab.open(site / f"{page}.html", shown=LOADED)
    file = site / "search.html"
    tab.open(file, shown=LOADED)
    tab.value("location.href = location.href + '?q=fragmentation'")
    tab.until("document.querySelectorAll('#search-results li').length > 0")
    assert tab.value("document.querySelectorAll('#search-results li a')[0].href").startswith(
        "file:"
    )
    assert tab.errors[before[0] :] == []
    assert not [one for one in tab.requests[before[1] :] if not one.startswith(("file:", "data:"))]


@pytest.mark.parametrize(
    ("width", "dark", "ending"),
    [(1280, False, ""), (1280, True, "-dark"), (390, False, "-phone"), (390, True, "-phone-dark")],
)
def test_a_picture_is_the_one_for_the_screen(
    tab: Tab, site: Path, width: int, dark: bool, ending: str
) -> None:
    tab.open(site / "where-memory-goes.html", width, dark=dark, shown=LOADED)
    shown = tab.value(
        "[...document.querySelectorAll('article img')].filter(i => i.checkVisibility())"
        ".map(i => i.src.split('/').pop())"
    )
    names = ("where-rungs", "where-step", "timeline", "where-length")
    assert shown == [f"{name}{ending}.png" for name in names]
    assert tab.value("document.documentElement.scrollWidth") <= width
