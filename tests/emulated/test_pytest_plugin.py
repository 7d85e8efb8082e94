"""The mark `gpu_memory`: each marked test has an emulated card, a budget and a baseline."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

from emulated_run import Watched

TESTS = """
import pytest

@pytest.fixture
def rows():
    return ROWS

def step(rows):
    import torch
    net = torch.nn.Linear(1024, 1024).cuda()
    optimizer = torch.optim.AdamW(net.parameters())
    for _ in range(2):
        net(torch.randn(rows, 1024, device="cuda")).sum().backward()
        optimizer.step()
        optimizer.zero_grad()

@pytest.mark.gpu_memory("RTX 4090", max="1GiB", max_growth="0%")
def test_within(rows):
    step(rows)

@pytest.mark.gpu_memory("RTX 4090", max="100MiB")
def test_above(rows):
    step(rows)

@pytest.mark.gpu_memory("RTX 4090")
@pytest.mark.parametrize("right", [False])
def test_itself(rows, right):
    assert right, "as any other test"

@pytest.mark.gpu_memory("RTX 4090")
def test_skips_itself():
    pytest.skip("not on this card")

@pytest.mark.xfail
@pytest.mark.gpu_memory("RTX 4090")
def test_is_expected_to_fail():
    assert False

def test_unmarked():
    import torch
    assert not torch.cuda.is_initialized()
"""


def _pytest(watched: Watched, rows: int, *words: str) -> dict[str, tuple[str | None, str]]:
    """The tag and the text of each test's failure, by name; None of a test that passed."""
    folder: Path = watched.folder
    (folder / "test_memory.py").write_text(TESTS.replace("ROWS", str(rows)))
    (folder / "pytest.ini").write_text(f"[pytest]\ngpu_memory_python = {watched.python}\n")
    plugins = ("-p", "oomdoctor.pytest_plugin", "-p", "no:cacheprovider")
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "--junitxml", "told.xml", *plugins, *words],
        cwd=folder,
        env=watched.environment,
        capture_output=True,
        text=True,
        timeout=280,
    )
    assert (folder / "told.xml").exists(), done.stdout + done.stderr
    cases = ElementTree.parse(folder / "told.xml").iter("testcase")
    told: dict[str, tuple[str | None, str]] = {}
    for case in cases:
        (child, *_) = [c for c in case if c.tag != "properties"] or [None]
        text = "" if child is None else f"{child.get('message')}\n{child.text}"
        told[case.get("name", "")] = (None if child is None else child.tag, text)
    return told


def test_a_marked_test_runs_on_its_card_and_is_judged(watched: Watched) -> None:
    told = _pytest(watched, 64, "-n", "2", "--gpu-memory-update")
    assert told["test_within"] == (None, "") and told["test_unmarked"] == (None, "")
    assert told["test_above"][0] == "failure" and "more than the budget" in told["test_above"][1]
    assert "on RTX 4090: AssertionError: as any other test" in told["test_itself[False]"][1]
    assert told["test_skips_itself"][0] == "skipped"
    assert "not on this card" in told["test_skips_itself"][1]
    assert told["test_is_expected_to_fail"][0] == "skipped"  # as JUnit XML calls it
    baseline = json.loads((watched.folder / "gpu-memory.json").read_text())
    names = {row["name"] for row in baseline["checks"]}
    assert names == {"test_memory.py::test_within", "test_memory.py::test_above"}

    told = _pytest(watched, 8192, "-k", "test_within")
    tag, text = told["test_within"]
    assert tag == "failure" and "more than the baseline allows" in text
    assert "activations +" in text and "test_memory.py:" in text


def test_it_is_skipped_where_it_cannot_run_unless_it_is_required(watched: Watched) -> None:
    watched.python = Path(sys.executable)  # whose torch is a build for the CPU
    told = _pytest(watched, 8, "-k", "test_within")
    assert told["test_within"][0] == "skipped" and "CUDA" in told["test_within"][1]
    assert "gpu_memory_python" in told["test_within"][1]
    told = _pytest(watched, 8, "-k", "test_within", "-o", "gpu_memory_require=true")
    assert told["test_within"][0] == "failure" and "CUDA" in told["test_within"][1]
