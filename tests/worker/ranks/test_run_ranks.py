"""Ranks on this machine, started by torchrun's elastic agent: gloo on the CPU."""

from __future__ import annotations

import os
import time
from dataclasses import replace
from pathlib import Path

import pytest
from library_ends import needs_fsdp_on_cpu
from tiny_models import tiny_job
from worker_process import answered

from oomdoctor.records.job.measurement import OomEvent
from oomdoctor.records.job.result import ProbeJob, Reply
from oomdoctor.worker.answer import answer
from oomdoctor.worker.protocol import PhaseFile
from oomdoctor.worker.ranks.run_ranks import answer_ranks

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


def job(sharding: str, world: int) -> ProbeJob:
    plain = tiny_job("dense", micro_batch_size=1, effective_batch_size=2 * world)
    config = replace(plain.config, sharding=sharding, world_size=world)  # type: ignore[arg-type]
    return replace(plain, config=config, timed=False)


@pytest.mark.parametrize("sharding", ["ddp", pytest.param("fsdp", marks=needs_fsdp_on_cpu)])
def test_two_ranks_train_together(sharding: str, tmp_path: Path) -> None:
    reply = answered(job(sharding, 2), tmp_path)
    assert reply.status == "measured", reply
    found = reply.measurement
    assert found is not None
    assert [rank.rank for rank in found.ranks] == [0, 1]
    assert all(loss == loss for loss in found.losses)  # not NaN
    assert found.host_peak_bytes is not None


def test_ranks_take_the_same_number_of_timed_steps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rank 0 finds its steps steady at once, rank 1 never does."""
    from oomdoctor.worker.measuring import timing

    monkeypatch.setattr(timing, "relative_spread", lambda _: float(os.environ["RANK"]))
    settings = replace(job("ddp", 2), timed=True, min_timed_steps=2, max_timed_steps=6)
    reply = answer(replace(settings, timing_limit_s=60.0), PhaseFile(None), tmp_path)
    assert reply.status == "measured", reply
    assert reply.measurement is not None and reply.measurement.timing is not None
    assert reply.measurement.timing.timed_steps == 2


def _first_fails(job: ProbeJob, progress: PhaseFile) -> Reply:
    """Rank 1 runs out of memory; the others wait for it in a collective."""
    if os.environ["RANK"] == "1":
        time.sleep(0.5)
        return Reply(status="oom", oom=OomEvent("it ran out", "cpu_allocator", "forward"))
    import torch
    import torch.distributed as dist

    dist.init_process_group("gloo")
    dist.all_reduce(torch.ones(1))
    return Reply(status="failed")


def test_a_rank_that_fails_ends_the_others_and_gives_the_reason(tmp_path: Path) -> None:
    before = time.monotonic()
    reply = answer_ranks(job("ddp", 3), PhaseFile(None), tmp_path, _first_fails)
    assert reply.status == "oom"
    assert reply.oom is not None and reply.oom.message == "it ran out"
    assert time.monotonic() - before < 120  # not gloo's own patience of 30 minutes


def _killed(job: ProbeJob, progress: PhaseFile) -> Reply:
    progress.enter("backward")
    if os.environ["RANK"] == "0":
        os.kill(os.getpid(), 9)
    time.sleep(300)
    return Reply(status="failed")


def test_a_rank_that_is_killed_says_where(tmp_path: Path) -> None:
    reply = answer_ranks(job("ddp", 2), PhaseFile(None), tmp_path, _killed)
    assert reply.failure is not None
    assert (reply.failure.code, reply.failure.last_phase) == ("no_reply", "backward")
    assert "rank 0" in reply.failure.message
