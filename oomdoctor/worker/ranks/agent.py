"""Start the ranks of a machine by torchrun's elastic agent, which ends them all if one fails.

They are forked, so they need not import torch again. Each writes its own reply. On several machines
of a Slurm job, `srun` starts an agent on each, and they meet. The folder of the run has to be on a
file system that all of them share.
"""

from __future__ import annotations

import os
import random
import re
import shutil
import signal
import socket
import subprocess
import sys
import traceback
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from oomdoctor.records.codec import dumps, loads
from oomdoctor.records.job.result import ProbeJob, Reply
from oomdoctor.system.environment import launched_number, variable
from oomdoctor.system.slurm.records import ask
from oomdoctor.system.store.record_files import whole_or_not
from oomdoctor.worker.protocol import PhaseFile, UnsupportedError, phase_file

AnswerOne = Callable[[ProbeJob, PhaseFile], Reply]
_PORTS = range(20_000, 60_000)
_DEADLINE_S = 60.0
# slurmstepd and srun, 21.08 and later
_KILLED = re.compile(
    r"oom-kill event|out of memory|exceeded (?:job |virtual )?memory limit", re.IGNORECASE
)


@dataclass(frozen=True, slots=True)
class Meeting:
    """Where the agents of all machines meet: `endpoint` is HOST:PORT of the first one.

    `is_host`: whether that is this machine; None lets torch compare their names.
    """

    run_id: str
    nodes: int = 1
    endpoint: str = "127.0.0.1:0"
    is_host: bool | None = None


@dataclass(frozen=True, slots=True)
class FirstFailure:
    """The rank that failed first, and when, in seconds of the system's clock."""

    rank: int
    at_s: float


def run_ranks(
    job: ProbeJob, folder: Path, answer: AnswerOne, meeting: Meeting
) -> FirstFailure | None:
    """Run this machine's share of the ranks; their files go to `folder`."""
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    config = LaunchConfig(
        min_nodes=meeting.nodes,
        max_nodes=meeting.nodes,
        nproc_per_node=job.config.world_size // meeting.nodes,
        rdzv_backend="c10d",
        rdzv_endpoint=meeting.endpoint,
        rdzv_configs={} if meeting.is_host is None else {"is_host": meeting.is_host},
        run_id=meeting.run_id,
        max_restarts=0,
        monitor_interval=0.1,
        start_method="fork",
    )
    try:
        elastic_launch(config, _run_rank)(job, folder, answer)
    except ChildFailedError as error:
        rank, failure = error.get_first_failure()
        return FirstFailure(rank, float(failure.timestamp))
    return None


def reply_file(folder: Path, rank: int) -> Path:
    """Where a rank writes its reply."""
    return folder / f"reply-{rank}.json"


def _run_rank(job: ProbeJob, folder: Path, answer: AnswerOne) -> None:
    """What a rank does. It fails as a process if its job failed, so that the agent ends the others.

    It exits without an exception, which the agent would report at length.
    """
    # The agent's handler came along; it would not run while this rank waits for another.
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    rank = launched_number("RANK") or 0
    if job.device_type == "cpu":
        import torch

        ranks = launched_number("LOCAL_WORLD_SIZE") or 1
        torch.set_num_threads(max(1, len(os.sched_getaffinity(0)) // ranks))
    if job.recording is not None and rank > 0:  # the file that was asked for is of the first
        own_file = str(folder / f"recording-{rank}")
        job = replace(job, recording=replace(job.recording, file=own_file))
    own = reply_file(folder, rank)
    reply = answer(job, PhaseFile(phase_file(own)))
    with whole_or_not(own) as unfinished:
        unfinished.write_text(dumps(reply))
    sys.stdout.flush()
    sys.stderr.flush()
    if reply.status not in ("measured", "recorded"):
        os._exit(1)
    try:
        import torch.distributed as dist

        if dist.is_initialized():
            dist.destroy_process_group()
    except Exception:  # noqa: BLE001  (the answer is written)
        traceback.print_exc()


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
    match = re.search(r"\bNodeAddr=(\S+)", answer.text)
    return match[1] if match else names[0]
