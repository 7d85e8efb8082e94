"""A worker host whose jobs make the emulated device fail as their labels say.

A label such as `cudaMalloc@3=2` makes the third call of cudaMalloc return 2 in that job.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

from oomdoctor.worker.__main__ import run_job
from oomdoctor.worker.host import serve


def run_failing(job: Path, reply: Path) -> None:
    """Run a job on a device that fails; the device reads the variable at its first call."""
    label = json.loads(job.read_text())["label"]
    if "@" in label:
        os.environ["OOMDOCTOR_EMULATED_FAIL"] = label
    run_job(job, reply)


if __name__ == "__main__":
    sys.exit(serve(run_failing))
