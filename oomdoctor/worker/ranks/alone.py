"""One rank of a job runs, and stands for all of them on an emulated GPU."""

from __future__ import annotations

import os
import socket
from contextlib import nullcontext

from oomdoctor.records.config import is_fsdp, uses_host
from oomdoctor.records.result import ProbeJob, Reply
from oomdoctor.worker.protocol.progress import PhaseFile
from oomdoctor.worker.ranks.agent import AnswerOne
from oomdoctor.worker.ranks.idle_host import idle_host
from oomdoctor.worker.ranks.joined import joined


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
    config = job.config
    # FSDP shards from host memory, where quantized training casts what is not quantized.
    on_host = uses_host(config) or (is_fsdp(config) and config.method == "qlora")
    with idle_host() if on_host else nullcontext():
        return joined({0: answer(job, progress)}, None)


def _free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        port: int = one.getsockname()[1]
        return port
