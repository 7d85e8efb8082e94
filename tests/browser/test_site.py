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


def test_the_search_works_from_a_file_and_nothing_is_requested(tab: Tab, tmp_path: Path) -> None:
    script = [sys.executable, str(ROOT / "scripts" / "build_site.py"), str(tmp_path / "site")]
    subprocess.run(script, check=True, timeout=200, capture_output=True)
    before = len(tab.errors), len(tab.requests)
    for page in ("index", "plan"):
        tab.open(tmp_path / "site" / f"{page}.html", shown=LOADED)
    file = tmp_path / "site" / "search.html"
    tab.open(file, shown=LOADED)
    tab.value("location.href = location.href + '?q=fragmentation'")
    tab.until("document.querySelectorAll('#search-results li').length > 0")
    assert tab.value("document.querySelectorAll('#search-results li a')[0].href").startswith(
        "file:"
    )
    assert tab.errors[before[0] :] == []
    assert not [one for one in tab.requests[before[1] :] if not one.startswith(("file:", "data:"))]
