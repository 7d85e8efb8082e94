"""Rows of several documents are those of TRL's collator, and documents do not see each other."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from plain_steps import step_loss
from tiny_models import tiny_job

from oomdoctor.records.job.result import ProbeJob
from oomdoctor.worker.protocol import UnsupportedError
from oomdoctor.worker.training.batch import micro_batches, tensors_of
from oomdoctor.worker.training.build import build

CPU = torch.device("cpu")


def batches_of(job: ProbeJob, setup: Any) -> list[dict[str, Any]]:
    return micro_batches(setup, job.config, count=2)


@pytest.mark.parametrize("packing", ["packed", "padding_free"])
def test_batches_are_those_of_trl(packing: Any) -> None:
    collators = pytest.importorskip("trl.trainer.sft_trainer", exc_type=ImportError)
    job = tiny_job(packing=packing, document_length=12)
    batch = batches_of(job, build(job, CPU))[1]
    rows = batch["input_ids"].view(2, 32).tolist()
    lengths = [12, 12, 8] if packing == "packed" else [32]
    collator = collators.DataCollatorForLanguageModeling(pad_token_id=0, padding_free=True)
    theirs = collator([{"input_ids": row, "seq_lengths": lengths} for row in rows])
    assert set(batch) == set(theirs)
    for name, value in theirs.items():
        mine = batch[name]
        if isinstance(value, int):
            assert mine == value
        else:
            assert mine.dtype == value.dtype, name
            assert torch.equal(mine, value), name


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
def test_joined_rows_train_like_rows_of_their_own(attention: Any) -> None:
    def losses(**rung: Any) -> list[float]:
        job = tiny_job(attention=attention, **rung)
        setup = build(job, CPU)
        return [step_loss(setup, batches_of(job, setup)) for _ in range(2)]

    plain = losses()
    assert losses(packing="padding_free") == pytest.approx(plain, rel=1e-4)
    assert losses(packing="packed", document_length=32) == pytest.approx(plain, rel=1e-4)
    assert losses(packing="packed", document_length=8) != pytest.approx(plain, rel=1e-4)


def test_only_causal_models_with_positions_are_packed() -> None:
    with pytest.raises(UnsupportedError, match="masked-lm"):
        build(tiny_job("encoder", packing="packed"), CPU)
    job = tiny_job(packing="packed")
    bloom = {"model_type": "bloom", "hidden_size": 64, "n_layer": 2, "n_head": 4, "vocab_size": 512}
    spec = replace(job.model, model_type="bloom", config=bloom, architecture="BloomForCausalLM")
    with pytest.raises(UnsupportedError, match="position_ids"):
        build(replace(job, model=spec), CPU)


def test_a_mask_of_all_pairs_is_noted() -> None:
    assert any("mask" in note for note in build(tiny_job(packing="packed"), CPU).notes)
    assert build(tiny_job(), CPU).notes == []


def test_numbers_of_a_batch_are_no_tensors() -> None:
    job = tiny_job(packing="packed")
    batches = batches_of(job, build(job, CPU))
    assert all(isinstance(tensor, torch.Tensor) for tensor in tensors_of(batches))
    assert len(list(tensors_of(batches))) == 2 * 6
