"""Ranks on several machines of a Slurm job: `srun` starts an agent on each, and they meet.

The folder of the run has to be on a file system that all machines share.
"""

from __future__ import annotations

import random
import re
import shutil
import socket
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

from oomdoctor.records.codec import dumps, loads
from oomdoctor.records.job.result import ProbeJob
from oomdoctor.system.environment import variable
from oomdoctor.system.slurm.records import ask
from oomdoctor.worker.protocol import UnsupportedError
from oomdoctor.worker.ranks.agent import AnswerOne, FirstFailure, Meeting, run_ranks

_PORTS = range(20_000, 60_000)
_DEADLINE_S = 60.0
# slurmstepd and srun, 21.08 and later
_KILLED = re.compile(
    r"oom-kill event|out of memory|exceeded (?:job |virtual )?memory limit", re.IGNORECASE
)


def run_on_nodes(job: ProbeJob, folder: Path) -> FirstFailure | None:
    """Run the ranks on `job.nodes` machines of the Slurm job that this process is in.

    Raises:
        UnsupportedError: there is no Slurm job, or `srun` cannot start the step.
        MemoryError: Slurm killed the step because it took more memory than was granted.
    """
    if shutil.which("srun") is None or variable("SLURM_JOB_ID") is None:
        raise UnsupportedError(
            f"{job.nodes} nodes need a Slurm job: run oomdoctor in one, with sbatch or salloc "
            f"--nodes {job.nodes}"
        )
    (folder / "ranks-job.json").write_text(dumps(job))
    endpoint = f"{_first_node()}:{random.choice(_PORTS)}"
    command = [
        *("srun", f"--nodes={job.nodes}", f"--ntasks={job.nodes}", "--ntasks-per-node=1"),
        *("--kill-on-bad-exit=1", "--overlap", "--export=ALL"),
        *(sys.executable, "-P", "-m", "oomdoctor.worker", "--node", str(folder), endpoint),
    ]
    ended = subprocess.run(
        command, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, check=False
    )
    sys.stderr.write(ended.stderr)
    if _KILLED.search(ended.stderr):
        raise MemoryError("Slurm killed the ranks at the memory limit of the job")
    failures = [loads(FirstFailure, file.read_text()) for file in folder.glob("failed-*.json")]
    if failures:
        return min(failures, key=lambda failure: failure.at_s)
    if ended.returncode != 0 and not any(folder.glob("reply-*.json")):
        raise UnsupportedError(
            f"srun ended with code {ended.returncode} before any rank ran; its message is in the "
            "log. The folder of the run must be on a file system that all nodes share: set "
            "XDG_STATE_HOME"
        )
    return None


def run_this_node(folder: Path, endpoint: str, answer: AnswerOne) -> int:
    """What `srun` starts on each machine; returns the exit code."""
    job = loads(ProbeJob, (folder / "ranks-job.json").read_text())
    first = variable("SLURM_NODEID") == "0"
    meeting = Meeting(f"oomdoctor-{folder.name}", job.nodes, endpoint, is_host=first)
    failed = run_ranks(job, folder, answer, meeting)
    if failed is None:
        return 0
    with suppress(OSError):
        (folder / f"failed-{failed.rank}.json").write_text(dumps(failed))
    return 1


def _first_node() -> str:
    """The address of the job's first node, where the agents meet.

    `salloc` may run this process on a login node, which has no agent.
    """
    nodes = variable("SLURM_JOB_NODELIST") or ""
    names = ask("scontrol", "show", "hostnames", nodes, deadline_s=_DEADLINE_S).text.split()
    if not names:
        return socket.gethostname()
    answer = ask("scontrol", "show", "node", names[0], deadline_s=_DEADLINE_S)
    found = re.search(r"\bNodeAddr=(\S+)", answer.text)
    return found[1] if found else names[0]
