"""`check` on the emulated GPU: a baseline, growth with its line, and another revision."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from emulated_run import Watched, loop
from weekly_rows import weekly

CONFIG = """
[[check]]
name = "loop"
command = "python train.py"
gpu = "RTX 4090"
max_growth = "0%"
"""


def _check(watched: Watched, *words: str) -> tuple[int, dict[str, Any], str]:
    done = subprocess.run(
        [sys.executable, "-m", "oomdoctor", "check", "--json", *words],
        cwd=watched.folder,
        env=watched.environment,
        capture_output=True,
        text=True,
        timeout=280,
    )
    return done.returncode, json.loads(done.stdout), done.stderr


def _git(folder: Path, *words: str) -> None:
    own = ("-c", "user.name=you", "-c", "user.email=you@example.com")
    subprocess.run(["git", *own, *words], cwd=folder, check=True, capture_output=True)


def test_a_check_that_grew_names_the_line_and_is_compared_with_a_revision(watched: Watched) -> None:
    (watched.folder / "oomdoctor.toml").write_text(CONFIG)
    script = watched.folder / "train.py"
    script.write_text(loop())
    _git(watched.folder, "init", "--quiet")
    for name in ("oomdoctor.toml", "train.py"):
        _git(watched.folder, "add", name)
        _git(watched.folder, "commit", "--quiet", "-m", f"Add {name}")
    code, report, error = _check(watched, "--update")
    assert code == 0, error
    baseline = json.loads((watched.folder / "oomdoctor-baseline.json").read_text())
    (accepted,) = baseline["checks"]
    peak = accepted["peak"]
    assert sum(peak["categories"].values()) == peak["peak_allocated_bytes"]
    assert peak["versions"]["torch"]

    kept = "    kept = loss.new_zeros(8 << 20)\n"
    script.write_text(
        loop().replace("        loss.backward()\n", f"    {kept}        loss.backward()\n")
    )
    code, report, error = _check(watched, "--against", "HEAD")
    assert code == 3, error
    (result,) = report["check"]["results"]
    # The baseline that was run again is the one that was kept, to the byte.
    assert result["baseline"] == peak
    line = next(part for part in result["grown"] if part["where"] is not None)
    assert line["where"]["file"] == "train.py"
    assert script.read_text().splitlines()[line["where"]["line"] - 1].strip() == kept.strip()
    # That of the step before is still there when the next one is made.
    assert line["after_bytes"] - line["before_bytes"] == 64 << 20
    listed = subprocess.run(
        ["git", "worktree", "list"], cwd=watched.folder, capture_output=True, text=True
    )
    assert len(listed.stdout.splitlines()) == 1

    # Where the other revision has the check, but it cannot run there, it has not passed.
    code, report, error = _check(watched, "--against", "HEAD~1")
    assert code == 6, error
    assert report["check"]["results"][0]["reason"].startswith("at HEAD~1: ")


def test_what_runs_is_ended_with_it(watched: Watched) -> None:
    wait = "import os, time; open('pid', 'w').write(str(os.getpid())); time.sleep(300)"
    (watched.folder / "train.py").write_text(wait)
    (watched.folder / "oomdoctor.toml").write_text(CONFIG)
    words = [sys.executable, "-m", "oomdoctor", "check"]
    pid = watched.folder / "pid"
    with subprocess.Popen(words, cwd=watched.folder, env=watched.environment) as check:
        while not (pid.exists() and pid.read_text()):
            assert check.poll() is None
            time.sleep(0.05)
        check.terminate()
        assert check.wait(60) == 143
    running = Path("/proc", pid.read_text(), "stat")
    assert not running.exists() or running.read_text().rpartition(")")[2].split()[0] == "Z"


LOOPS = Path(__file__).parents[1] / "examples"
OTHERS = (
    *("momentum", "accumulated", "zeroed", "mixed", "checkpointed", "other_lengths"),
    *("longer_and_longer", "evaluates", "averages_weights", "logs_losses", "flushes", "ring"),
    *("masks_for_lengths", "experts", "unfreezes", "recurrent", "two_optimizers"),
    *("skips_a_batch", "images"),
)


@pytest.mark.parametrize("names", [("plain",), weekly(OTHERS, id="19 others")])
def test_the_same_code_needs_the_same_bytes_again(watched: Watched, names: tuple[str, ...]) -> None:
    code = "import random, sys; sys.path.insert(0, {folder!r}); random.seed(0)  # lengths of rows\n"
    code += "import clean_loops; clean_loops.{name}(4)"
    rows = ["[defaults]", 'gpu = "RTX 4090"', 'steps = "all"']
    for name in names:
        script = watched.folder / f"{name}.py"
        script.write_text(code.format(folder=str(LOOPS), name=name))
        for turn in ("first", "second"):
            rows += ["[[check]]", f'name = "{name} {turn}"', f'command = "python {script.name}"']
    (watched.folder / "oomdoctor.toml").write_text("\n".join(rows))
    _, report, error = _check(watched, "--jobs", "2")
    peaks = {result["name"]: result["peak"] for result in report["check"]["results"]}
    assert len(peaks) == 2 * len(names)
    for name in names:
        assert peaks[f"{name} first"] is not None, error
        assert peaks[f"{name} first"] == peaks[f"{name} second"]


@pytest.mark.parametrize("words", [("--only", "nothing"), ("--against", "nothing")])
def test_what_is_not_there_is_refused(watched: Watched, words: tuple[str, ...]) -> None:
    (watched.folder / "oomdoctor.toml").write_text(CONFIG)
    _git(watched.folder, "init", "--quiet")
    code, report, error = _check(watched, *words)
    assert code == 2 and "nothing" in error
    assert report["errors"][0]["hint"] or "git says" in error
