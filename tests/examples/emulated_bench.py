"""Run Python code on emulated devices, in a process of its own."""

from __future__ import annotations

import json
import os
import subprocess
import textwrap
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from oomdoctor.emulator.card import Card, Devices
from oomdoctor.emulator.enter import Session, entered

GIB = 1 << 30
MIB = 1 << 20
A100 = Card(
    "NVIDIA A100-SXM4-80GB", (8, 0), 84974501888, 85899345920, 490 * MIB, 108, 40 * MIB, 5120
)
H100 = Card(
    "NVIDIA H100 80GB HBM3", (9, 0), 85020639232, 85520809984, 520 * MIB, 132, 50 * MIB, 5120
)
RTX_4090 = Card(
    "NVIDIA GeForce RTX 4090", (8, 9), 25386352640, 25757220864, 450 * MIB, 128, 72 * MIB, 384
)
# backward() returns before its thread has let go of the graph. If that thread asks for the
# interpreter while this ends, torch aborts the process (pytorch/pytorch#190489), so wait for it.
_START = """
import atexit, glob, json, os, sys, time, torch
def tell(**facts):
    print("TOLD", json.dumps(facts, default=str), flush=True)
@atexit.register
def let_backward_end():
    idle = 0
    while idle < 5:
        time.sleep(0.01)
        threads = [open(path).read() for path in glob.glob("/proc/self/task/*/stat")]
        busy = any("(pt_autograd" in thread and ") S " not in thread for thread in threads)
        idle = 0 if busy else idle + 1
"""


@dataclass(frozen=True, slots=True)
class Bench:
    """An interpreter, a cache and a folder: what code on emulated devices needs."""

    python: Path
    cache: Path
    folder: Path

    def run(
        self, code: str, devices: Devices | None = None, *, check: bool = True, **variables: str
    ) -> dict[str, Any]:
        """What the code told with `tell(key=value, ...)`, beside `output` and `exit_code`."""
        folder = self.folder / f"session-{len(list(self.folder.iterdir()))}"
        folder.mkdir()
        with entered(self.python, devices or Devices(A100), folder, self.cache) as session:
            return self.run_in(session, code, check=check, **variables)

    def run_in(
        self, session: Session, code: str, *, check: bool = True, **variables: str
    ) -> dict[str, Any]:
        """As `run`, in a session that there is already."""
        script = session.folder / "script.py"
        script.write_text(_START + textwrap.dedent(code))
        done = subprocess.run(
            [self.python, script],
            env={**os.environ, "OMP_NUM_THREADS": "1", **session.variables, **variables},
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        assert not check or done.returncode == 0, done.stderr[-3000:]
        told: dict[str, Any] = {"output": done.stdout + done.stderr, "exit_code": done.returncode}
        for line in done.stdout.splitlines():
            if line.startswith("TOLD "):
                told |= json.loads(line.removeprefix("TOLD "))
        return told
