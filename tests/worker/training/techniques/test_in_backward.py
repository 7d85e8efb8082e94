"""Steps in the backward pass: the same training, without gradients that wait for the optimizer."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from compared_steps import CPU, deeper, differences, phase_bytes, simulated, trained
from tiny_models import tiny_job

from oomdoctor.records.job.result import ProbeJob
from oomdoctor.worker.protocol import UnsupportedError
from oomdoctor.worker.training.batch import micro_batches
from oomdoctor.worker.training.build import build
from oomdoctor.worker.training.step import training_step

LORA = {"method": "lora", "lora_rank": 4}
IN_BACKWARD = {"optimizer_in_backward": True}
PLAIN = {"micro_batch_size": 2, "effective_batch_size": 2, "sequence_length": 64}


def one_batch(**changes: Any) -> ProbeJob:
    return tiny_job("dense", **{**PLAIN, **changes})


@pytest.mark.parametrize("rung", [{}, LORA, {"optimizer": "adamw_bnb_8bit"}], ids=str)
def test_the_training_is_that_of_a_step_without_clipping(
    rung: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    losses, weights = trained(one_batch(**IN_BACKWARD, **rung), each=1)
    monkeypatch.setattr("torch.nn.utils.clip_grad_norm_", lambda *_, **__: torch.zeros(()))
    expected_losses, expected_weights = trained(one_batch(**rung), each=1)
    assert losses == pytest.approx(expected_losses, rel=1e-6)
    assert losses[-1] < losses[0]
    for weight, expected in zip(weights, expected_weights, strict=True):
        torch.testing.assert_close(weight, expected, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(
    "rung",
    [
        {},
        {"optimizer": "adafactor"},
        {"optimizer": "adamw_bnb_8bit"},
        {"activation_checkpointing": "full"},
        LORA,
        {"frozen_layers": 1},
    ],
    ids=str,
)
def test_simulated_is_measured_to_the_byte(rung: dict[str, Any]) -> None:
    found = differences(one_batch(**IN_BACKWARD, **rung))
    assert all(abs(size) <= 4 for size in found.values()), found  # a loss is kept for the report


def test_embeddings_keep_32_bit_states_and_the_rest_8_bit() -> None:
    from bitsandbytes.optim import GlobalOptimManager

    GlobalOptimManager.get_instance().initialize()
    job = one_batch(**IN_BACKWARD, optimizer="adamw_bnb_8bit")
    setup = build(job, CPU)
    batches = micro_batches(setup, job.config, count=1)
    for _ in range(2):  # the second would see what the first left behind
        setup.trainer.optimizer.optimizer.state.clear()
        training_step(setup, batches, lambda phase: None)
    states = setup.trainer.optimizer.optimizer.state
    kept = {name: states[p]["state1"].dtype for name, p in setup.model.named_parameters()}
    assert kept["model.embed_tokens.weight"] == torch.float32
    assert kept["lm_head.weight"] == kept["model.layers.0.mlp.up_proj.weight"] == torch.uint8


@pytest.mark.parametrize("rung", [{}, {"optimizer": "adamw_bnb_8bit"}], ids=str)
def test_a_few_layers_stand_for_all(rung: dict[str, Any]) -> None:
    job = deeper(one_batch(**IN_BACKWARD, **rung), num_hidden_layers=9)
    deep, shallow = simulated(job, cuda=True), simulated(job, cuda=True, shallow=True)
    assert 0 < shallow.simulated_layers < shallow.layers
    assert phase_bytes(shallow) == pytest.approx(phase_bytes(deep), rel=2e-5)


def test_it_saves_the_gradients_of_all_parameters_but_the_largest() -> None:
    """After the backward pass a plain step holds all gradients; here none is left."""
    sizes = [p.numel() * p.element_size() for p in build(one_batch(), CPU).model.parameters()]
    plain = phase_bytes(simulated(one_batch()))["steady", "optimizer"]
    freed = phase_bytes(simulated(one_batch(**IN_BACKWARD)))["steady", "optimizer"]
    assert plain - freed == pytest.approx(sum(sizes), rel=0.01)


def test_a_note_names_what_the_trainer_lacks() -> None:
    assert any("optimizer_in_bwd" in note for note in build(one_batch(**IN_BACKWARD), CPU).notes)


def test_accumulation_is_unsupported() -> None:
    with pytest.raises(UnsupportedError, match="cannot accumulate"):
        build(one_batch(**IN_BACKWARD, effective_batch_size=4), CPU)
