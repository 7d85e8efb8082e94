"""Answer a job of several ranks with one reply: that of the rank that decides."""

from __future__ import annotations

import os
from pathlib import Path

from oomdoctor.records.codec import loads
from oomdoctor.records.result import Failure, ProbeJob, Reply
from oomdoctor.worker.protocol.progress import PhaseFile, phase_file
from oomdoctor.worker.ranks.agent import AnswerOne, Meeting, reply_file, run_ranks
from oomdoctor.worker.ranks.joined import joined
from oomdoctor.worker.ranks.nodes import run_on_nodes


def answer_ranks(job: ProbeJob, progress: PhaseFile, folder: Path, answer: AnswerOne) -> Reply:
    """Run all ranks of the job; their files go to `folder`.

    Raises:
        UnsupportedError: the job wants several machines, and Slurm cannot start it there.
    """
    progress.enter("init")
    if job.nodes > 1:
        failed = run_on_nodes(job, folder)
    else:
        failed = run_ranks(job, folder, answer, Meeting(f"oomdoctor-{os.getpid()}"))
    world = job.config.world_size
    return joined(_replies(folder, world), failed.rank if failed else None, world // job.nodes)


def _replies(folder: Path, world: int) -> dict[int, Reply]:
    """The replies by rank; a rank that wrote none says how far it came."""
    found = {}
    for rank in range(world):
        own = reply_file(folder, rank)
        if own.is_file():
            found[rank] = loads(Reply, own.read_text())
        elif phase_file(own).is_file():
            phase = phase_file(own).read_text().strip() or None
            failure = Failure("no_reply", f"rank {rank} ended without a reply", last_phase=phase)
            found[rank] = Reply(status="failed", failure=failure)
    return found
