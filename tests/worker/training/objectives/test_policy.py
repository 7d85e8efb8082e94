"""The step of GRPO as verl, OpenRLHF and NeMo-RL compute it."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from compared_steps import CPU, differences, simulated
from tiny_models import tiny_job

from oomdoctor.worker.training.batch import micro_batches
from oomdoctor.worker.training.build import build

GRPO = {"objective": "grpo", "num_generations": 2, "sequence_length": 64}
PROGRAMS = {
    "verl": {"packing": "padding_free", "weights_dtype": "bfloat16"},
    "openrlhf": {"weights_dtype": "bfloat16"},
    "nemo-rl": {},
}


@pytest.mark.parametrize("program", PROGRAMS)
def test_simulated_is_measured_to_the_byte(program: str) -> None:
    job = tiny_job("dense", rl_program=program, **GRPO, **PROGRAMS[program])
    assert differences(job) == {}


def test_all_programs_have_one_loss() -> None:
    losses = []
    for program in PROGRAMS:
        setup = build(tiny_job("dense", rl_program=program, reference="kl", **GRPO), CPU)
        (batch,) = micro_batches(setup, setup.config, count=1)
        losses.append(setup.trainer.compute_loss(setup.model, batch).item())
        assert losses[-1] == pytest.approx(losses[0], rel=1e-4)
    assert losses[0] != 0


def test_log_probabilities_are_those_of_the_next_tokens() -> None:
    setup = build(tiny_job("dense", rl_program="nemo-rl", **GRPO), CPU)
    (batch,) = micro_batches(setup, setup.config, count=1)
    ids = batch["input_ids"]
    with torch.no_grad():
        logits = setup.model(ids).logits
        right = logits.log_softmax(-1)[:, :-1].gather(-1, ids[:, 1:, None]).squeeze(-1)[:, -32:]
        batch["old_log_probs"] = right
        loss = setup.trainer.compute_loss(setup.model, batch)
    assert loss.item() == pytest.approx(-1.0)  # a ratio of 1 times advantages of 1


def test_the_kernel_of_flash_attention_needs_no_copy_of_logits() -> None:
    job = tiny_job("dense", rl_program="verl", **GRPO, **PROGRAMS["verl"])
    peaks = []
    for attention in ("sdpa", "flash_attention_2"):
        asked = replace(job, config=replace(job.config, attention=attention))
        phases = simulated(asked, cuda=True).sizes[0].phases
        peaks.append(max(p.peak_allocated_bytes for p in phases if p.phase == "forward"))
    assert peaks[1] < peaks[0]
