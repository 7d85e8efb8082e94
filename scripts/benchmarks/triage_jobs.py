"""Time `oomdoctor triage` over many jobs: made-up accounts of sacct, and a log for each.

    python scripts/benchmarks/triage_jobs.py [--jobs 10000]

Each log has the output of a training: about 200 lines of progress, then how it ended. The way each
ends rotates: out of GPU memory in several phases, out of host memory, canceled, a Python error.
Prints the time of each form of the answer, of the whole process.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).parents[2]
TEXTS = ROOT / "tests" / "data" / "explain"
ENDS = (
    (TEXTS / "trace.txt", "FAILED", "1:0"),
    (TEXTS / "rank3.out", "FAILED", "1:0"),
    (TEXTS / "devices.txt", "FAILED", "1:0"),
    (None, "OUT_OF_MEMORY", "0:125"),
    (None, "TIMEOUT", "0:0"),
    (None, "CANCELLED by 1000", "0:15"),
    (None, "FAILED", "1:0"),
)
USERS = ("ada", "bob", "eve", "joe", "kim")


def main() -> None:
    """Make the jobs and time three forms of the answer."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=10_000)
    count = parser.parse_args().jobs
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        size = made(folder, count)
        print(
            f"{count:,} jobs, {size / 2**20:.0f} MiB of logs, {len(os.sched_getaffinity(0))} cores"
        )
        for form in (["--format", "table"], ["--format", "csv"], ["--json"]):
            for by in ([], ["--by", "user"]):
                seconds, cpu = timed(folder, [*form, *by])
                print(f"{' '.join([*form, *by]):<28} {seconds:6.1f} s, {cpu:.1f} s of CPU")


def made(folder: Path, count: int) -> int:
    """Logs, and a sacct that tells of them; the size of all logs in bytes."""
    steps = "".join(
        f"{{'loss': {3 - i / 100:.4f}, 'grad_norm': 1.2, 'learning_rate': 5e-05, 'epoch': {i}}}\n"
        for i in range(200)
    )
    rows, total = [], 0
    for number in range(count):
        text, state, code = ENDS[number % len(ENDS)]
        job, user = 1000 + number, USERS[number % len(USERS)]
        log = folder / f"slurm-{job}.out"
        log.write_text(steps + (text.read_text(encoding="utf-8") if text else ""))
        total += log.stat().st_size
        rows.append(
            f"{job}|{user}|{state}|{code}||64G|1|8|gpu01|01:12:44|1-00:00:00|{folder}"
            f"|{job}|gpu|2026-11-23T06:00:00|train|sbatch train.sh"
        )
        rows.append(
            f"{job}.batch||{state}|{code}|900000K||1|8|gpu01|01:12:44|||{job}.batch|||batch|"
        )
    (folder / "rows").write_text("\n".join(rows) + "\n")
    sacct = folder / "sacct"
    sacct.write_text(
        "#!/bin/sh\ncase \"$*\" in *expand*) echo 'Invalid field requested' >&2; exit 1;; esac\n"
        f"exec cat {folder}/rows\n"
    )
    sacct.chmod(0o755)
    return total


def timed(folder: Path, form: list[str]) -> tuple[float, float]:
    """The seconds of one run, and those of CPU in all its processes. The answer is checked."""
    start, before = time.perf_counter(), os.times()
    ended = subprocess.run(
        [sys.executable, "-m", "oomdoctor", "triage", "--since", "yesterday", "--quiet", *form],
        capture_output=True,
        text=True,
        env={**os.environ, "PATH": f"{folder}:{os.environ['PATH']}", "PYTHONPATH": str(ROOT)},
    )
    seconds = time.perf_counter() - start
    assert ended.returncode == 0, ended.stderr
    if "--json" in form:
        found = json.loads(ended.stdout)["triage"]
        assert found["oom"] * len(ENDS) >= len(found["jobs"]) * 3 - len(ENDS), found["oom"]
    after = os.times()
    used = after.children_user + after.children_system
    return seconds, used - before.children_user - before.children_system


if __name__ == "__main__":
    main()
