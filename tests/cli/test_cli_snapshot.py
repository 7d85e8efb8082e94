"""`snapshot` on the command line: the page, JSON, hostile and broken files."""

from __future__ import annotations

import json
import os
import pickle
import subprocess
import sys
from pathlib import Path

import pytest
from snapshots import large_blocks, training

from oomdoctor.cli.explain_sources import say_tenths
from oomdoctor.units import MIB


def snapshot(*words: str, width: int = 100) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "oomdoctor", "snapshot", *words],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "COLUMNS": str(width)},
    )


@pytest.fixture
def file(tmp_path: Path) -> Path:
    writer = training()
    writer.note("oom", 5 * MIB, 64 * MIB, "forward")
    return writer.write(tmp_path / "memory_snapshot.pickle")


def test_the_page(file: Path) -> None:
    ended = snapshot(str(file))
    assert ended.returncode == 0 and ended.stderr == ""
    for text in (
        "GPU 0: 92.0 MiB allocated",
        "Ran out  tried to allocate 64.0 MiB with 5.00 MiB free, model.py:33 in forward",
        "Peak     in the backward pass (torch runs it in C++), optimizer step 2",
        "logits",
        "train.py:21",
        "functional.py:3462",
        "Do this first",
    ):
        assert text in ended.stdout, ended.stdout


def test_json_is_one_document(file: Path) -> None:
    ended = snapshot(str(file), "--json")
    document = json.loads(ended.stdout)
    assert document["command"] == "snapshot" and document["source"] == str(file)
    (device,) = document["devices"]
    assert device["peak_allocated_bytes"] == 92 * MIB
    assert device["peak"]["categories"]["logits_bytes"] == 32 * MIB
    assert device["peak"]["blocks"][0]["where"] == {
        "file": "train.py",
        "line": 21,
        "function": "main",
    }
    assert device["oom"]["requested_bytes"] == 64 * MIB
    assert document["causes"] and document["remedies"] and document["torch_version"] is None


def test_two_snapshots_are_compared(file: Path, tmp_path: Path) -> None:
    later = str(training(6, leak=3 * MIB).write(tmp_path / "after.pickle"))
    ended = snapshot(str(file), later)
    assert ended.returncode == 0
    assert "more allocated" in ended.stdout and "train.py:24" in ended.stdout
    assert "At the peak" not in ended.stdout
    assert "At the peak" in snapshot(str(file), later, "--verbose").stdout
    document = json.loads(snapshot(str(file), later, "--json").stdout)
    (difference,) = document["differences"]
    assert difference["index"] == 0 and difference["blocks"][0]["where"]["line"] == 24
    assert document["source"] == later
    rows = snapshot(str(file), later, "--format", "csv").stdout.splitlines()
    assert rows[1].startswith("0,") and "train.py,24,main" in rows[1]
    assert snapshot(later, later).stdout.startswith("GPU 0: the same amount allocated")


def test_whether_it_would_have_fitted(tmp_path: Path) -> None:
    writer = large_blocks()
    path = str(writer.write(tmp_path / "memory_snapshot.pickle"))
    ended = snapshot(path, "--gpu", "RTX 4090", "--gpu", "1GiB", width=140)
    assert ended.returncode == 0, ended.stderr
    assert "Would it have fitted" in ended.stdout
    assert "NVIDIA GeForce RTX 4090" in ended.stdout and "fits: 88.0 MiB" in ended.stdout
    document = json.loads(snapshot(path, "--gpu", "H100 SXM", "--json").stdout)
    (fit,) = document["devices"][0]["fits"]
    assert "H100" in fit["gpu"] and fit["capacity_bytes"] > 70 * 1024**3
    assert fit["as_it_was"] == {
        "fits": True,
        "needed_bytes": 88 * MIB,
        "peak_reserved_bytes": 88 * MIB,
        "retries": 0,
        "short_bytes": None,
    }
    assert fit["note"] is None and fit["half_confidence"] == "medium"


def test_what_would_have_let_a_request_pass_is_a_larger_gpu(tmp_path: Path) -> None:
    writer = large_blocks()
    writer.give_back("forward")
    writer.note("oom", 44 * MIB, 64 * MIB, "forward")
    path = str(writer.write(tmp_path / "memory_snapshot.pickle"))
    (device,) = json.loads(snapshot(path, "--json").stdout)["devices"]
    found = {change["kind"]: change for change in device["oom"]["changes"]}
    assert found["free"]["bytes"] == 20 * MIB
    assert found["gpu"]["gpu"].startswith("NVIDIA")
    assert "Any one of these would have avoided the error" in snapshot(path).stdout


def test_a_gpu_that_is_not_known(file: Path) -> None:
    ended = snapshot(str(file), "--gpu", "H1000")
    assert ended.returncode == 2 and "neither a known card nor a size" in ended.stderr
    ended = snapshot(str(file), str(file), "--gpu", "H100")
    assert ended.returncode == 2 and "--gpu takes one snapshot" in ended.stderr


def test_three_are_too_many(file: Path) -> None:
    ended = snapshot(str(file), str(file), str(file))
    assert ended.returncode == 2 and "two to compare" in ended.stderr


def test_a_large_file_is_read_with_a_line_for_each_tenth(
    capsys: pytest.CaptureFixture[str],
) -> None:
    say = say_tenths("x.pickle")
    for share in range(100):
        say(share / 100)
    lines = capsys.readouterr().err.splitlines()
    assert lines == [f"x.pickle: {tenth}0% read" for tenth in range(1, 10)]


def test_a_timeline_is_written_beside_the_page(file: Path, tmp_path: Path) -> None:
    html = tmp_path / "timeline.html"
    ended = snapshot(str(file), "--html", str(html))
    assert ended.returncode == 0 and ended.stdout == snapshot(str(file)).stdout
    assert ended.stderr == f"wrote {html}\n"
    text = html.read_text()
    assert "<title>Memory timeline of memory_snapshot.pickle</title>" in text
    quiet = snapshot(str(file), "--html", str(html), "--quiet")
    assert quiet.stderr == "" and html.read_text() == text
    printed = snapshot(str(file), "--html", "-")
    assert (printed.stdout, printed.stderr) == (text, "")
    for more in (("--json",), ("--output", str(tmp_path / "answer.json"))):
        refused = snapshot(str(file), "--html", "-", *more)
        told = refused.stdout + refused.stderr
        assert refused.returncode == 2 and "cannot both go to stdout" in told
    ended = snapshot(str(file), "--html", str(tmp_path / "none" / "timeline.html"))
    assert ended.returncode == 1 and "cannot write" in ended.stderr


@pytest.mark.slow
def test_a_picture_is_written(file: Path, tmp_path: Path) -> None:
    ended = snapshot(str(file), "--png", str(tmp_path / "timeline.png"))
    assert ended.returncode == 0, ended.stderr
    data = (tmp_path / "timeline.png").read_bytes()
    assert data.startswith(b"\x89PNG") and data.endswith(b"IEND\xaeB`\x82")


def test_a_picture_needs_matplotlib(file: Path, tmp_path: Path) -> None:
    (tmp_path / "matplotlib.py").write_text("raise ImportError")
    picture = tmp_path / "timeline.png"
    ended = subprocess.run(
        [sys.executable, "-m", "oomdoctor", "snapshot", str(file), "--png", str(picture)],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": f"{tmp_path}:{os.environ.get('PYTHONPATH', '')}"},
    )
    assert ended.returncode == 5 and ended.stdout == "" and not picture.exists()
    assert "matplotlib" in ended.stderr and "pip install matplotlib" in ended.stderr


class Evil:
    def __reduce__(self):
        return os.system, ("touch ran",)


def test_a_hostile_file_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("evil.pickle").write_bytes(pickle.dumps({"segments": [Evil()]}))
    ended = snapshot("evil.pickle")
    assert ended.returncode == 2 and ended.stdout == ""
    assert "wants to import posix.system; nothing of it was run" in ended.stderr
    assert "_dump_snapshot" in ended.stderr and not Path("ran").exists()
    document = json.loads(snapshot("evil.pickle", "--json").stdout)
    assert document["errors"][0]["code"] == "not_a_snapshot"


def test_bad_input(tmp_path: Path) -> None:
    assert snapshot(str(tmp_path / "none.pickle")).returncode == 2
    assert snapshot(str(tmp_path)).returncode == 2
    ended = snapshot()
    assert ended.returncode == 2 and "no snapshot was given" in ended.stderr


def test_torch_is_not_loaded(file: Path) -> None:
    code = (
        "import sys; from oomdoctor.cli.main import run\n"
        f"code = run(['snapshot', {str(file)!r}])\n"
        "sys.exit(code or not {'torch', 'transformers', 'rich.live'}.isdisjoint(sys.modules))"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, check=False)
    assert ended.returncode == 0, ended.stderr
