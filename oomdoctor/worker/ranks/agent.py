"""Start the ranks of one machine by torchrun's elastic agent, which ends them all if one fails.

They are forked, so they need not import torch again. Each writes its own reply.
"""

from __future__ import annotations

import os
import signal
import sys
import traceback
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from oomdoctor.records.codec import dumps
from oomdoctor.records.job.result import ProbeJob, Reply
from oomdoctor.system.environment import launched_number
from oomdoctor.system.store.record_files import whole_or_not
from oomdoctor.worker.protocol import PhaseFile, phase_file

AnswerOne = Callable[[ProbeJob, PhaseFile], Reply]


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
