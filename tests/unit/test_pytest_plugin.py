"""The mark `gpu_memory` next to other tests of a session: fixtures and modules."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
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


EXPECTED = """
import pytest

@pytest.mark.xfail(reason="of the mark")
@pytest.mark.gpu_memory("T4")
def test_marked_as_well():
    assert False, "as it is expected"

@pytest.mark.gpu_memory("T4")
def test_says_it_itself():
    pytest.xfail("of the test")
"""
# In the place of the emulated card: the process of the test on this machine, and its peak.
RUNS_HERE = """
import os, subprocess
from dataclasses import replace
from example_runs import RANK, fits
from oomdoctor.commands.check import running

def run_one(check, folder):
    done = subprocess.run(
        check.command, cwd=folder, env={**os.environ, **check.environment},
        capture_output=True, text=True,
    )
    report = replace(fits(), exit_code_of_command=done.returncode,
                     ranks=(replace(RANK, peak_device_bytes=PEAK),))
    return running.Ran(report, 0, None, 1.0, done.stdout)

running.run_one = run_one
"""


def _run_here(folder: Path, test: str, *words: str, peak: int = 1 << 30) -> str:
    """What pytest prints of tests whose processes run here and say to have this peak."""
    (folder / "test_it.py").write_text(test)
    (folder / "conftest.py").write_text(RUNS_HERE.replace("PEAK", str(peak)))
    plugins = ("-p", "oomdoctor.pytest_plugin", "-p", "no:cacheprovider")
    paths = os.pathsep.join([str(ROOT), str(ROOT / "tests" / "examples")])
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-rx", *plugins, *words],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": paths},
        capture_output=True,
        text=True,
    )
    return done.stdout + done.stderr


def test_a_test_may_expect_to_fail_by_its_mark_or_by_a_call(tmp_path: Path) -> None:
    told = _run_here(tmp_path, EXPECTED)
    assert "2 xfailed" in told, told
    assert "of the mark" in told and "of the test" in told


PASSES = """
import pytest

@pytest.mark.gpu_memory("T4")
@pytest.mark.parametrize("number", [1, 2])
def test_passes(number):
    pass
"""


def test_an_update_says_what_it_changed(tmp_path: Path) -> None:
    told = _run_here(tmp_path, PASSES, "--gpu-memory-update", "-k", "1")
    assert "gpu-memory.json: 1 new peak" in told, told
    assert "new      1.00 GiB  test_it.py::test_passes[1] on T4" in told

    told = _run_here(tmp_path, PASSES, "--gpu-memory-update", "-n", "2", peak=3 << 29)
    assert "gpu-memory.json: 1 new peak, 1 changed, 0 as before" in told, told
    assert "changed  1.00 GiB -> 1.50 GiB  test_it.py::test_passes[1] on T4" in told

    told = _run_here(tmp_path, PASSES, "--gpu-memory-update", peak=3 << 29)
    assert "gpu-memory.json: 0 new peaks, 0 changed, 2 as before" in told, told
    assert "gpu-memory.json" not in _run_here(tmp_path, PASSES, peak=3 << 29)
