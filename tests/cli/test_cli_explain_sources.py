"""What `explain` can be pointed at: files good and bad, pipes, Slurm jobs, names with escapes."""

from __future__ import annotations

import gzip
import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from slurm_text import tools_without_slurm

from oomdoctor.cli import explain_sources as sources
from oomdoctor.cli.explain_sources import lines_of
from oomdoctor.explain.reading.lines.clean import Line
from oomdoctor.system.slurm.jobs import LogSource

ROOT = Path(__file__).parents[2]
TEXTS = ROOT / "tests" / "data" / "explain"
TRACE = (TEXTS / "trace.txt").read_text()
EVIL = "\x1b]52;c;aGk=\x07\x1b[2J\x9b1A[red]x"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A current folder with one good log; no command of Slurm in sight."""
    (tmp_path / "bin").mkdir()
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{tools_without_slurm(tmp_path / 'tools')}")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "good.out").write_text(TRACE)
    return tmp_path


def sacct(folder: Path, job: str, state: str, code: str = "0:125") -> None:
    script = folder / "bin" / "sacct"
    row = f"{job}|me|{state}|{code}|66900000K|64G|1|8|gpu01|00:12:44|1-00:00:00|{folder}"
    script.write_text(f"#!/bin/sh\necho '{row}'\n")
    script.chmod(0o755)


def test_a_job_with_an_empty_log_is_answered(cli: Callable[..., Any], folder: Path) -> None:
    sacct(folder, "4711", "OUT_OF_MEMORY")
    (folder / "slurm-4711.out").write_text("")
    ended = cli("explain", "4711")
    assert ended.code == 0
    assert ended.out.startswith("Out of host memory.\nDo this first: ")
    assert "host memory (high confidence)" in ended.out
    assert "Slurm\n  job 4711 of me on gpu01: OUT_OF_MEMORY" in ended.out
    assert "63.8 GiB in the highest sample of a task, 64.0 GiB requested" in ended.out
    assert ended.err == "asking Slurm about job 4711\n"
    assert "oomdoctor explain 4711 --verbose" in ended.out


@pytest.mark.parametrize(
    ("state", "words"),
    [("TIMEOUT", "time limit"), ("PREEMPTED", "the scheduler preempted the job"),
     ("CANCELLED by 1000", "a person or a script canceled the job"),
     ("NODE_FAIL", "the node failed")],
)  # fmt: skip
def test_a_job_that_slurm_ended(
    cli: Callable[..., Any], folder: Path, state: str, words: str
) -> None:
    sacct(folder, "4711", state, "0:0")
    ended = cli("explain", "4711", "--quiet")
    assert (ended.code, ended.err) == (3, "")
    assert words in ended.out.splitlines()[0]
    assert f"job 4711 of me on gpu01: {state}" in ended.out


def test_the_log_of_a_job_comes_before_what_slurm_says(
    cli: Callable[..., Any], folder: Path
) -> None:
    sacct(folder, "4711", "FAILED", "1:0")
    (folder / "slurm-4711.out").write_text(TRACE)
    ended = cli("explain", "4711", "--json")
    (found,) = json.loads(ended.out)["diagnoses"]
    assert (found["source"], found["resource"], found["phase"]) == ("4711", "gpu", "loss")
    assert [w["code"] for w in json.loads(ended.out)["warnings"]] == ["slurm"]


def test_a_file_with_the_name_of_a_job_is_a_file(cli: Callable[..., Any], folder: Path) -> None:
    (folder / "4711").write_text(TRACE)
    ended = cli("explain", "4711")
    assert (ended.code, ended.err) == (0, "")
    assert ended.out.startswith("Out of GPU memory")


def test_no_such_job(cli: Callable[..., Any], folder: Path) -> None:
    ended = cli("explain", "4711")
    assert (ended.code, ended.out) == (2, "")
    assert "4711: no such file" in ended.err
    assert "oomdoctor explain slurm-4711.out" in ended.err


def test_what_cannot_be_read_costs_only_itself(cli: Callable[..., Any], folder: Path) -> None:
    (folder / "old").mkdir()
    broken = folder / "broken.gz"
    broken.write_bytes(gzip.compress(TRACE.encode())[:40] + b"\xff" * 99)
    ended = cli("explain", "good.out", "old", "broken.gz", "4711", "--quiet")
    assert ended.code == 0
    assert ended.out.startswith("Out of GPU memory")
    for words in ("skipped: old is a folder", "broken.gz is damaged", "skipped: 4711"):
        assert words in ended.out
    alone = cli("explain", "old", "broken.gz")
    assert (alone.code, alone.out) == (2, "")
    assert "old is a folder" in alone.err and "oomdoctor explain old/*.out" in alone.err


def test_a_missing_file_stops_all(cli: Callable[..., Any], folder: Path) -> None:
    ended = cli("explain", "good.out", "nowhere.out", "")
    assert (ended.code, ended.out) == (2, "")
    assert "nowhere.out: no such file" in ended.err and "''" in ended.err


def test_a_text_that_breaks_off_gives_what_it_has(cli: Callable[..., Any], folder: Path) -> None:
    packed = gzip.compress((TRACE + os.urandom(200_000).hex()).encode())
    (folder / "cut.gz").write_bytes(packed[:-50_000])
    ended = cli("explain", "cut.gz")
    assert ended.code == 0
    assert ended.out.startswith("Out of GPU memory")
    assert "cut.gz is damaged: it ends too early; only the part before that was read" in ended.out


def test_a_binary_file_is_told(cli: Callable[..., Any], folder: Path) -> None:
    (folder / "snapshot.pickle").write_bytes(bytes(range(256)) * 99)
    ended = cli("explain", "snapshot.pickle")
    assert ended.code == 3
    assert "snapshot.pickle looks like a binary file" in ended.out
    (folder / "utf16.txt").write_text(TRACE, encoding="utf-16")
    assert "binary" not in cli("explain", "utf16.txt").out


def test_a_named_pipe(cli: Callable[..., Any], folder: Path) -> None:
    os.mkfifo(folder / "pipe")
    writer = threading.Thread(target=(folder / "pipe").write_text, args=(TRACE,))
    writer.start()
    ended = cli("explain", "pipe")
    writer.join()
    assert ended.code == 0
    assert ended.err == "reading the pipe pipe until its writer closes it\n"


def test_a_closed_standard_input() -> None:
    done = subprocess.run(
        f"{sys.executable} -m oomdoctor explain <&-",
        shell=True, capture_output=True, text=True, timeout=60, check=False, cwd=ROOT,
    )  # fmt: skip
    assert done.returncode == 2
    assert done.stderr.startswith("error: standard input is closed")


@pytest.mark.parametrize("options", [[], ["--verbose"], ["--format", "markdown"], ["--json"]])
def test_a_name_with_escapes_stays_a_name(
    cli: Callable[..., Any], folder: Path, options: list[str]
) -> None:
    (folder / f"{EVIL}.out").write_text(TRACE)
    (folder / f"{EVIL}.d").mkdir()
    for names in ([f"{EVIL}.out"], [f"{EVIL}.out", "good.out", f"{EVIL}.d"], [f"{EVIL}.missing"]):
        ended = cli("explain", *names, *options)
        assert not set("\x1b\x9b\x07") & set(ended.out + ended.err)
        assert "x" in ended.out + ended.err


def test_lines_are_numbered_through_all_texts(folder: Path) -> None:
    (folder / "a").write_text("1\n2\n")
    (folder / "b").write_text("3\n4")
    source = LogSource("job", (Path("a"), Path("b")), ("sacct",))
    assert list(lines_of(source, [], quiet=True)) == [
        Line(1, "1"), Line(2, "2"), Line(3, "3"), Line(4, "4"), Line(5, "sacct"),
    ]  # fmt: skip


def test_a_large_file_is_announced(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sources, "_LARGE", 3)
    for quiet, said in ((False, "reading good.out\n"), (True, "")):
        assert list(lines_of(LogSource("x", (Path("good.out"),)), [], quiet=quiet))
        assert capsys.readouterr().err == said


@pytest.mark.parametrize(
    ("name", "code", "first"),
    [
        (
            "rank3.out",
            0,
            "Out of GPU memory in the optimizer step on rank 3: tried to allocate 112 MiB",
        ),
        ("slurm-4711.out", 0, "Out of host memory"),
        ("devices.txt", 3, "Not a memory failure: tensors are on different devices."),
    ],
)
def test_shapes_of_texts(cli: Callable[..., Any], name: str, code: int, first: str) -> None:
    ended = cli("explain", str(TEXTS / name))
    assert ended.code == code
    assert ended.out.startswith(first)
