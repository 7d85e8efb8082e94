"""oomdoctor.pyz: how it starts where little is allowed, and what it is made of."""

from __future__ import annotations

import ast
import json
import os
import runpy
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow
ROOT = Path(__file__).parents[2]
START = ROOT / "scripts" / "pyz" / "start.py"


def unpacked(home: Path) -> Path:
    """The one folder in the cache."""
    (folder,) = (home / "cache" / "oomdoctor" / "pyz").iterdir()
    return folder


def test_it_unpacks_once(pyz, isolated):
    assert pyz("--version").returncode == 0
    first = (unpacked(isolated) / "oomdoctor" / "units.py").stat().st_ino
    assert pyz("--version").returncode == 0
    assert (unpacked(isolated) / "oomdoctor" / "units.py").stat().st_ino == first


def test_many_first_starts_at_the_same_time(pyz, isolated):
    started = [pyz.start("recipes", "show", "quick") for _ in range(4)]
    texts = {process.communicate()[0] for process in started}
    assert [process.returncode for process in started] == [0] * 4
    assert len(texts) == 1
    assert (unpacked(isolated) / "oomdoctor").is_dir()


def test_a_folder_that_another_start_completes_is_kept(pyz, isolated, monkeypatch):
    """Two first starts: the slower one must not take away what the faster one is running."""
    start = runpy.run_path(str(START))
    with zipfile.ZipFile(pyz.path) as archive:

        def extract(target: str) -> None:
            assert pyz("--version").returncode == 0  # faster
            zipfile.ZipFile.extractall(archive, target)

        monkeypatch.setattr(archive, "extractall", extract)
        kept = Path(start["kept"](archive))
    (folder,) = (isolated / "cache" / "oomdoctor" / "pyz").iterdir()
    assert kept == folder
    assert (folder / "oomdoctor" / "__pycache__").is_dir()  # that of the faster one, which has run


def test_files_that_a_clean_up_removed_come_back(pyz, isolated):
    pyz("--version")
    shutil.rmtree(unpacked(isolated) / "oomdoctor" / "records")
    (unpacked(isolated) / "oomdoctor" / "units.py").write_text("")
    assert pyz("gpus", "t4").returncode == 0
    assert (unpacked(isolated) / "oomdoctor" / "records").is_dir()


def test_without_a_folder_in_the_cache_it_unpacks_for_one_start(pyz, isolated, tmp_path):
    (isolated / "cache").write_text("a file")
    ended = pyz("plan", "gpt2", "--gpu", "T4", TMPDIR=str(tmp_path))
    assert (ended.returncode, "lower bound" in ended.stdout) == (5, True), ended.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("arguments", "shown"),
    [
        ("gpus t4", "Tesla T4"),
        ("models gpt2", "openai-community/gpt2"),
        ("recipes show quick", "[[rung]]"),
        ("env", "XDG_STATE_HOME"),
        ("explain -", "No memory failure"),
    ],
)
def test_nothing_needs_to_be_written(pyz, isolated, tmp_path, arguments, shown):
    # No file may have a byte, as on a full disk or in a read-only system.
    words = ["bash", "-c", 'ulimit -f 0; exec "$@"', "bash", *pyz.words, *arguments.split()]
    ended = subprocess.run(
        words,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        encoding="utf-8",
        env={"PATH": "/usr/bin:/bin", "TMPDIR": str(tmp_path)},
        cwd=tmp_path,
    )
    assert shown in ended.stdout, ended.stderr
    assert list(tmp_path.iterdir()) == []


def test_a_plan_in_another_interpreter(pyz):
    rung = ("--recipe", "none", "--rung", "method=lora", "--micro-batch", "1")
    ended = pyz("plan", "gpt2", "--gpu", "T4", *rung, "--python", sys.executable, "--json")
    assert ended.returncode == 0, ended.stderr
    (row,) = json.loads(ended.stdout)["results"]
    assert row["outcome"] == "fits"


def test_an_old_python_says_what_is_missing(tmp_path):
    source = START.read_text()
    ast.parse(source, feature_version=(3, 7))
    place = "/home/ann/oomdoctor.pyz/__main__.py"
    code = f"import sys; sys.version_info = (3, 6, 8); __file__ = {place!r}; exec({source!r})"
    ended = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        encoding="utf-8",
        env={"PATH": str(tmp_path)},
    )
    assert ended.returncode == 5
    assert "this is 3.6" in ended.stderr
    assert ended.stderr.endswith("or run /path/to/python3.11 /home/ann/oomdoctor.pyz\n")
    newer = tmp_path / "python3.13"
    newer.write_text('#!/bin/sh\necho "newer $@"\n')
    newer.chmod(0o755)
    ended = subprocess.run(
        [sys.executable, "-c", code, "gpus"],
        stdout=subprocess.PIPE,
        encoding="utf-8",
        env={"PATH": f"{tmp_path}{os.pathsep}/bin"},
    )
    assert ended.stdout == "newer /home/ann/oomdoctor.pyz gpus\n"


def test_two_builds_are_the_same(pyz, tmp_path):
    again = tmp_path / "again.pyz"
    subprocess.run([sys.executable, ROOT / "scripts" / "build_pyz.py", again], check=True)
    assert again.read_bytes() == pyz.path.read_bytes()
    assert again.read_bytes().startswith(b"#!/usr/bin/env python3\n")
    assert os.access(again, os.X_OK)


def test_it_holds_the_files_of_the_wheel(pyz, wheel):
    with zipfile.ZipFile(pyz.path) as one, zipfile.ZipFile(wheel) as other:
        ours = {name: one.read(name) for name in one.namelist() if name.startswith("oomdoctor/")}
        theirs = {
            name: other.read(name) for name in other.namelist() if name.startswith("oomdoctor/")
        }
    assert ours.keys() == theirs.keys()
    assert ours == theirs
