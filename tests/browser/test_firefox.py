"""The three pages in Firefox: each is drawn, and no script or style of it is refused."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from example_diagnoses import GPU, explained
from example_pages import PAGES
from firefox import browser, program
from snapshots import training

from oomdoctor.package_data import page_parts
from oomdoctor.render import render_report
from oomdoctor.render.formats import Style
from oomdoctor.render.snapshot.timeline_page import PARTS, page
from oomdoctor.snapshot.history import history_of
from oomdoctor.snapshot.reading.snapshot import read_snapshot
from oomdoctor.snapshot.timeline import timeline_of

_REASON = "no Firefox: install it with scripts/chromium.sh, or set OOMDOCTOR_FIREFOX"
# Colors other than that of the page, in the pixels of a canvas.
_COLORS = """(() => {
    const canvas = document.querySelector(".u-wrap > canvas"), { width, height } = canvas;
    const pixels = canvas.getContext("2d").getImageData(0, 0, width, height).data;
    return new Set(new Uint32Array(pixels.buffer)).size;
})()"""
_CHARTS = """[...document.querySelectorAll("svg.wide")].filter(
    (one) => one.getBoundingClientRect().height > 100 && one.querySelector("path")).length"""


@pytest.mark.slow
def test_firefox_draws_the_three_pages(tmp_path: Path) -> None:
    if program() is None and os.environ.get("BROWSER") != "1":
        pytest.skip(_REASON)
    assert program() is not None, _REASON
    snapshot = read_snapshot(training().write(tmp_path / "x.pickle"))
    histories = [history_of(snapshot, device) for device in snapshot.devices]
    pages = {
        "snapshot": page(timeline_of("x.pickle", histories), page_parts("timeline", PARTS)),
        "report": render_report(PAGES["everything"](), "html", Style(width=80)),
        "explain": render_report(explained(GPU), "html", Style(width=80)),
    }
    for name, text in pages.items():
        (tmp_path / f"{name}.html").write_text(text, encoding="utf-8")
    (tmp_path / "profile").mkdir()
    with browser(tmp_path / "profile") as firefox:
        firefox.open(tmp_path / "snapshot.html")
        firefox.until("document.documentElement.dataset.ready")
        firefox.until("document.getElementById('parts').children.length > 5")
        assert firefox.value(_COLORS) > 20
        for name, least in (("report", 5), ("explain", 1)):
            firefox.open(tmp_path / f"{name}.html")
            assert firefox.value(_CHARTS) >= least, name
        assert firefox.errors() == []
