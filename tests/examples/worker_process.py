"""Answer a job in a worker process, as a survey does: ranks are forked from a fresh interpreter."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from oomdoctor.commands.jobs.host import WorkerHost
from oomdoctor.commands.jobs.launch import launch
from oomdoctor.records.codec import dumps, loads
from oomdoctor.records.job.result import Attempt, ProbeJob, Reply

ROOT = Path(__file__).parents[2]


def answered(job: ProbeJob, folder: Path) -> Reply:
    """The worker's reply; its files are in `folder`."""
    (folder / "job.json").write_text(dumps(job))
    reply = folder / "reply.json"
    subprocess.run(
        [sys.executable, "-m", "oomdoctor.worker", str(folder / "job.json"), str(reply)],
        env=os.environ | {"PYTHONPATH": str(ROOT), "CUDA_VISIBLE_DEVICES": ""},
        check=True,
        timeout=240,
    )
    return loads(Reply, reply.read_text())


def launched(host: WorkerHost, job: ProbeJob, folder: Path) -> tuple[Attempt, Reply | None]:
    """How a job ends in a worker host; `folder` is made for its files."""
    folder.mkdir()
    return launch(
        host,
        job,
        folder,
        usable_bytes=1 << 40,
        deadline_s=300,
        on_phase=lambda phase: None,
        stop=lambda: False,
    )
