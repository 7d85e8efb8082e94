"""Answer a job of several ranks with one reply: that of the rank that decides.

torchrun's elastic agent starts the ranks and ends them all if one fails. They are forked, so they
need not import torch again. Each writes its own reply.
"""

from __future__ import annotations

import os
import signal
import socket
import sys
import traceback
from collections.abc import Callable
from pathlib import Path

from oomdoctor.records.codec import dumps, loads
from oomdoctor.records.result import Failure, ProbeJob, Reply
from oomdoctor.worker.protocol.progress import PhaseFile, phase_file
from oomdoctor.worker.ranks.joined import joined

AnswerOne = Callable[[ProbeJob, PhaseFile], Reply]


def answer_ranks(job: ProbeJob, progress: PhaseFile, folder: Path, answer: AnswerOne) -> Reply:
    """Run all ranks of the job on this machine; their files go to `folder`."""
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    world = job.config.world_size
    progress.enter("init")
    first_failed: int | None = None
    config = LaunchConfig(
        min_nodes=1,
        max_nodes=1,
        nproc_per_node=world,
        rdzv_backend="c10d",
        rdzv_endpoint="127.0.0.1:0",
        run_id=f"oomdoctor-{os.getpid()}",
        max_restarts=0,
        monitor_interval=0.1,
        start_method="fork",
    )
    try:
        elastic_launch(config, _run_rank)(job, folder, answer)
    except ChildFailedError as error:
        first_failed, _ = error.get_first_failure()
    return joined(_replies(folder, world), first_failed)


def answer_alone(job: ProbeJob, progress: PhaseFile, answer: AnswerOne) -> Reply:
    """Run the first rank; the emulated GPU and `emulator.alone` stand in for the others."""
    import torch.distributed.checkpoint.default_planner
    import torch.distributed.fsdp._optim_utils
    import torch.distributed.rendezvous  # noqa: F401

    from oomdoctor.emulator.alone import ranks

    ranks.answer_rendezvous()
    ranks.answer_collectives()
    ranks.answer_checkpoints()
    ranks.answer_optimizer_states()
    nodes = max(1, job.config.world_size // job.config.gpus_per_node)
    os.environ |= {
        "RANK": "0",
        "LOCAL_RANK": "0",
        "WORLD_SIZE": str(job.config.world_size),
        "LOCAL_WORLD_SIZE": str(job.config.world_size // nodes),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(_free_port()),
    }
    return joined({0: answer(job, progress)}, None)


def _run_rank(job: ProbeJob, folder: Path, answer: AnswerOne) -> None:
    """What a rank does. It fails as a process if its job failed, so that the agent ends the others.

    It exits without an exception, which the agent would report at length.
    """
    # The agent's handler came along; it would not run while this rank waits for another.
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    rank = int(os.environ["RANK"])
    if job.device_type == "cpu":
        _share_cores(job.config.world_size)
    own = _reply_file(folder, rank)
    reply = answer(job, PhaseFile(phase_file(own)))
    unfinished = own.with_suffix(".tmp")
    unfinished.write_text(dumps(reply))
    unfinished.replace(own)
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


def _share_cores(ranks: int) -> None:
    import torch

    torch.set_num_threads(max(1, len(os.sched_getaffinity(0)) // ranks))


def _reply_file(folder: Path, rank: int) -> Path:
    return folder / f"reply-{rank}.json"


def _replies(folder: Path, world: int) -> dict[int, Reply]:
    """The replies by rank; a rank that wrote none says how far it came."""
    found = {}
    for rank in range(world):
        own = _reply_file(folder, rank)
        if own.is_file():
            found[rank] = loads(Reply, own.read_text())
        elif phase_file(own).is_file():
            phase = phase_file(own).read_text().strip() or None
            failure = Failure("no_reply", f"rank {rank} ended without a reply", last_phase=phase)
            found[rank] = Reply(status="failed", failure=failure)
    return found


def _free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        port: int = one.getsockname()[1]
        return port
