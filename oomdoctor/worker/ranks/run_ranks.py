"""Answer a job of several ranks with one reply: that of the rank that decides.

If all measured, it is the one that needs the most memory. If one failed, it is the one that failed
first: the others only say that they waited for it in vain.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from oomdoctor.records.codec import loads
from oomdoctor.records.job.measurement import Measurement, RankPeak
from oomdoctor.records.job.result import Failure, ProbeJob, Reply
from oomdoctor.worker.protocol import PhaseFile, phase_file
from oomdoctor.worker.ranks.agent import AnswerOne, Meeting, reply_file, run_on_nodes, run_ranks

_NO_REPLY = Reply(status="failed", failure=Failure("no_reply", "no rank wrote a reply"))


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
    replies = {}
    for rank in range(world):
        own = reply_file(folder, rank)
        if own.is_file():
            replies[rank] = loads(Reply, own.read_text())
        elif phase_file(own).is_file():
            phase = phase_file(own).read_text().strip() or None
            failure = Failure("no_reply", f"rank {rank} ended without a reply", last_phase=phase)
            replies[rank] = Reply(status="failed", failure=failure)
    return replies


def joined(replies: Mapping[int, Reply], first_failed: int | None, ranks_of_node: int = 1) -> Reply:
    """The reply of the whole, from those of its ranks; `first_failed` ended before the others.

    Consecutive ranks share the host memory of a node, `ranks_of_node` of them.
    """
    if first_failed is not None and first_failed in replies:
        failed = replies[first_failed]
        # An error of the engine tells less than the memory that another rank lacked just then.
        lacking = [reply for reply in replies.values() if reply.status in ("oom", "host_oom")]
        return lacking[0] if failed.status == "failed" and lacking else failed
    for reply in replies.values():
        if reply.status not in ("measured", "recorded"):
            return reply
    measured = {rank: reply.measurement for rank, reply in replies.items() if reply.measurement}
    if not measured:
        return next(iter(replies.values()), _NO_REPLY)
    worst = max(measured, key=lambda rank: (measured[rank].deciding_peak_bytes(), -rank))
    ranks = tuple(
        RankPeak(rank, own.peak_allocated_bytes, own.peak_reserved_bytes)
        for rank, own in sorted(measured.items())
    )
    host = _of_a_node(measured, ranks_of_node)
    whole = replace(measured[worst], ranks=ranks, host_peak_bytes=host)
    return replace(replies[worst], measurement=whole)


def _of_a_node(measured: Mapping[int, Measurement], ranks: int) -> int | None:
    """Host memory of the node that takes the most; None if one rank stands for others."""
    if len(measured) < 2:
        return None
    nodes: dict[int, int] = {}
    for rank, own in measured.items():
        if own.peak_rss_bytes is None:
            return None
        nodes[rank // ranks] = nodes.get(rank // ranks, 0) + own.peak_rss_bytes
    return max(nodes.values())
