"""The mark `gpu_memory` next to other tests of a session: fixtures and modules."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

FIRST = """
import pytest

@pytest.fixture(scope="module")
def opened():
    yield 1
    print("closed")

def test_plain(opened):
    pass

@pytest.mark.gpu_memory("no such card")
def test_marked():
    pass
"""
SECOND = """
import pytest

@pytest.mark.gpu_memory("T4", size="1GiB")
def test_wrong_option():
    pass

def test_plain():
    pass
"""


def test_a_marked_test_leaves_the_fixtures_of_others_alone(tmp_path: Path) -> None:
    """What no card runs is told at once, so nothing is emulated here."""
    (tmp_path / "test_first.py").write_text(FIRST)
    (tmp_path / "test_second.py").write_text(SECOND)
    plugins = ("-p", "oomdoctor.pytest_plugin", "-p", "no:cacheprovider")
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-v", "-s", "--strict-markers", *plugins],
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert "2 failed, 2 passed" in done.stdout, done.stdout
    assert "'no such card' is neither a known card" in done.stdout
    assert "takes a card and max, max_growth, require, time_limit" in done.stdout
    before, _, after = done.stdout.partition("closed")
    assert "test_first.py::test_marked" in before and "test_second.py" in after
