"""The Slurm of tests, by its commands."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
# A job that keeps what it is given in memory.
HOG = "python3 -c 'import time; x = bytearray({} << 20); print(len(x), flush=True); time.sleep(60)'"
_ENDED = ("COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "OUT_OF_MEMORY", "NODE_FAIL", "PREEMPTED")


@dataclass(frozen=True, slots=True)
class Cluster:
    """A running Slurm: its folder, and the folder that jobs are submitted from."""

    folder: Path
    work: Path

    def ask(self, *command: str) -> str:
        """What one of Slurm's commands prints."""
        ended = subprocess.run(command, capture_output=True, text=True, timeout=60, cwd=self.work)
        assert ended.returncode == 0, (command, ended.stderr)
        return ended.stdout.strip()

    def submit(self, script: str, *options: str) -> str:
        """Submit a job with 100 MB, unless the options say otherwise; its id."""
        return self.ask("sbatch", "--parsable", "--mem=100", *options, "--wrap", script)

    def states(self, job: str) -> list[str]:
        """The state of each run of a job and each task of an array, as sacct tells it."""
        asked = ("sacct", "-j", job, "-X", "-D", "--noheader", "--parsable2", "-o", "State")
        return self.ask(*asked).splitlines()

    def until(self, job: str, *states: str, seconds: float = 120, tasks: int = 1) -> None:
        """Wait until each of so many tasks has one of these states; without any, has ended."""
        wanted = states or _ENDED
        deadline = time.monotonic() + seconds
        while True:
            found = self.states(job)
            if len(found) >= tasks and all(state.startswith(wanted) for state in found[-tasks:]):
                return
            assert time.monotonic() < deadline, (job, found)
            time.sleep(0.2)

    def known(self, job: str) -> None:
        """Wait until sacct knows what a job requested."""
        deadline = time.monotonic() + 30
        asked = ("sacct", "-j", job, "-X", "--noheader", "--parsable2", "-o", "ReqMem,Timelimit")
        while "||" in f"|{self.ask(*asked)}|":
            assert time.monotonic() < deadline, job
            time.sleep(0.2)


def doctor(*arguments: str | Path, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run oomdoctor as a user of the cluster does."""
    return subprocess.run(
        [sys.executable, "-m", "oomdoctor", *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=120,
        env={**os.environ, "PYTHONPATH": str(ROOT), **variables},
    )


def explained(job: str) -> dict[str, Any]:
    """The first diagnosis of `explain JOB`, with the exit code and what Slurm said."""
    ended = doctor("explain", job, "--json", "--quiet")
    report = json.loads(ended.stdout)
    slurm = [warning["message"] for warning in report["warnings"] if warning["code"] == "slurm"]
    return {**report["diagnoses"][0], "exit_code": ended.returncode, "slurm": slurm}
