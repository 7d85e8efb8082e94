"""Answers from memory are the same whoever computes them."""

from __future__ import annotations

import os
import signal
from dataclasses import replace

import pytest

from oomdoctor.commands.jobs import simulators as module
from oomdoctor.commands.jobs.remembered import Known, Memory
from oomdoctor.commands.jobs.simulators import answers
from oomdoctor.records.configuration.config import TrainConfig
from oomdoctor.records.job.model import ModelSpec
from oomdoctor.records.job.result import ProbeJob, Reply
from oomdoctor.records.job.simulation import SimulationRequest

HERE = os.getpid()


class Remembers(Memory):
    """Knows every other job, and says in its answer which process gave it."""

    def __init__(self, dies_at: str = "") -> None:
        super().__init__("python", {})
        self.dies_at = dies_at

    def keeps(self, job: ProbeJob) -> bool:
        return True

    def answer(self, job: ProbeJob) -> Known | None:
        if job.label == self.dies_at and os.getpid() != HERE:
            os.kill(os.getpid(), signal.SIGKILL)
        if int(job.label) % 2:
            return None
        return Known(Reply(status="predicted", reason=f"{job.label} by {os.getpid()}"), "now")


@pytest.fixture
def jobs() -> list[ProbeJob]:
    spec = ModelSpec("m", "local", "M", "m", "causal-lm", {})
    job = ProbeJob("simulate", "", spec, TrainConfig(), "cuda")
    return [replace(job, label=str(number)) for number in range(12)]


def said(memory: Memory, jobs: list[ProbeJob]) -> tuple[list[str | None], set[int]]:
    """The label that each answer is for, None without one, and the processes that answered."""
    messages = [a and a.reply and a.reply.reason for a in answers(memory, jobs)]
    labels = [message and message.split()[0] for message in messages]
    return labels, {int(message.split()[2]) for message in messages if message}


EXPECTED = [str(number) if number % 2 == 0 else None for number in range(12)]


def test_processes_share_the_work_and_answers_keep_their_order(
    jobs: list[ProbeJob], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1})
    labels, processes = said(Remembers(), jobs)
    assert labels == EXPECTED
    assert HERE not in processes


def test_one_core_answers_in_this_process(
    jobs: list[ProbeJob], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0})
    assert said(Remembers(), jobs) == (EXPECTED, {HERE})


def test_few_jobs_start_no_process(jobs: list[ProbeJob], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1})
    assert said(Remembers(), jobs[: module._FEWEST_JOBS - 1])[1] == {HERE}


def test_what_a_killed_process_did_not_answer_is_answered_here(
    jobs: list[ProbeJob], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1})
    labels, processes = said(Remembers(dies_at="6"), jobs)
    assert labels == EXPECTED
    assert HERE in processes


def test_what_else_a_grpo_job_has_on_the_card_does_not_change_its_step(
    jobs: list[ProbeJob],
) -> None:
    """So --solve vllm-share simulates one step for all shares."""
    memory = Memory("python", {})
    memory.__dict__["_libraries"] = {"trl": "1.16.0"}
    grpo = TrainConfig(objective="grpo", vllm_gpu_memory_utilization=0.3)
    asked = SimulationRequest((1,), ())
    job = replace(jobs[0], config=grpo, simulation=asked)
    for more in (
        {"vllm_gpu_memory_utilization": 0.8},
        {"critic": "card"},
        {"reward_model": "card"},
    ):
        assert memory.key(job) == memory.key(replace(job, config=replace(grpo, **more)))
    assert memory.key(job) != memory.key(replace(job, config=replace(grpo, lora_rank=8)))


def test_an_inspection_without_lora_is_not_reused_for_lora(jobs: list[ProbeJob]) -> None:
    """Only one with LoRA says on which layers peft puts it."""
    memory = Memory("python", {})
    memory.__dict__["_libraries"] = {"peft": "0.21.2"}
    full = replace(jobs[0], mode="inspect", device_type="cpu")
    lora = replace(full, config=TrainConfig(method="lora"))
    assert memory.key(full) is not None
    assert memory.key(full) != memory.key(lora)
    assert memory.key(full) == memory.key(replace(full, config=TrainConfig(sequence_length=8)))
