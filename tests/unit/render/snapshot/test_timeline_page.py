"""The file that a browser opens: complete, and closed to what a snapshot says."""

from __future__ import annotations

import re
from base64 import b64encode
from hashlib import sha256
from importlib import resources

import pytest
from timelines import crowded

from oomdoctor.package_data import page_parts
from oomdoctor.render.snapshot.timeline_page import PARTS, SCRIPTS, page

EVIL = "</title><script>alert(1)</script>&\udcff$data"


@pytest.fixture(scope="module")
def html() -> str:
    return page(crowded(100, EVIL), page_parts("timeline", PARTS))


def test_no_text_of_the_snapshot_is_in_the_page(html: str) -> None:
    assert EVIL not in html and "alert(1)</script>" not in html
    assert "&lt;/title&gt;&lt;script&gt;alert(1)" in html
    html.encode()


def test_only_its_own_scripts_may_run(html: str) -> None:
    policy = re.search(r'Content-Security-Policy" content="([^"]+)"', html)
    assert policy is not None and policy[1].startswith("default-src 'none'; script-src 'sha256-")
    for kind, tag in (("script-src", "script"), ("style-src", "style")):
        (text,) = re.findall(rf"<{tag}>(.*?)</{tag}>", html, re.DOTALL)
        digest = b64encode(sha256(text.encode()).digest()).decode()
        assert f"{kind} 'sha256-{digest}'" in policy[1]


def test_it_needs_nothing_else(html: str) -> None:
    shown = html.replace("https://github.com/leeoniya/uPlot", "")
    assert not re.search(r"https?:|src=|href=|@import|url\(", shown.split('id="data"')[0])


def test_the_license_of_the_library_is_in_the_page(html: str) -> None:
    assert "MIT License" in html or "Permission is hereby granted" in html
    assert "uPlot (v1." in html


def test_all_files_of_the_folder_are_used() -> None:
    folder = resources.files("oomdoctor").joinpath("data", "timeline")
    assert {file.name for file in folder.iterdir()} == set(PARTS)


def test_no_part_ends_its_element_early() -> None:
    for name, text in page_parts("timeline", SCRIPTS).items():
        assert "</script" not in text and "<!--" not in text, name
