"""Padded rows are those of TRL's collators and of tokenizers, and padding does not train."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from plain_steps import step_loss
from tiny_models import tiny_job

from oomdoctor.records.job.result import ProbeJob
from oomdoctor.worker.protocol import UnsupportedError
from oomdoctor.worker.training.batch import micro_batches
from oomdoctor.worker.training.build import build

CPU = torch.device("cpu")
LENGTH = 32


def batches_of(job: ProbeJob, setup: Any) -> list[dict[str, Any]]:
    return micro_batches(setup, job.config, count=2)


@pytest.mark.parametrize(
    ("padding", "multiple", "lengths"),
    [("longest", 1, [LENGTH, LENGTH - 1]), ("max_length", LENGTH, [LENGTH - 1] * 2)],
)
def test_batches_are_those_of_trl(padding: Any, multiple: int, lengths: list[int]) -> None:
    collators = pytest.importorskip("trl.trainer.sft_trainer", exc_type=ImportError)
    job = tiny_job(padding=padding)
    batch = batches_of(job, build(job, CPU))[1]
    rows = [row[:length] for row, length in zip(batch["input_ids"].tolist(), lengths, strict=True)]
    pad = int(batch["input_ids"][1, -1])
    collator = collators.DataCollatorForLanguageModeling(
        pad_token_id=pad, pad_to_multiple_of=multiple
    )
    theirs = collator([{"input_ids": row} for row in rows])
    assert set(batch) == set(theirs)
    for name, value in theirs.items():
        assert batch[name].dtype == value.dtype, name
        assert torch.equal(batch[name], value), name


def test_pairs_are_padded_where_trl_pads_them() -> None:
    collators = pytest.importorskip("trl.trainer.dpo_trainer", exc_type=ImportError)
    job = tiny_job(padding="longest", objective="dpo", completion_length=12)
    batch = batches_of(job, build(job, CPU))[0]
    ids = batch["input_ids"].tolist()
    kept = [ids[0], *(row[:-1] for row in ids[1:])]
    pairs = [
        {
            "prompt_ids": chosen[: LENGTH - 12],
            "chosen_ids": chosen[LENGTH - 12 :],
            "rejected_ids": rejected[LENGTH - 12 :],
        }
        for chosen, rejected in zip(kept[:2], kept[2:], strict=True)
    ]
    theirs = collators.DataCollatorForPreference(pad_token_id=ids[1][-1])(pairs)
    for name in ("attention_mask", "completion_mask"):
        assert torch.equal(batch[name], theirs[name]), name


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
def test_padding_does_not_change_the_loss(attention: Any) -> None:
    job = tiny_job(attention=attention, padding="max_length")
    setup = build(job, CPU)
    batches = batches_of(job, setup)
    cut = [{name: tensor[:, :-1] for name, tensor in batch.items()} for batch in batches]
    plain = build(tiny_job(attention=attention), CPU)
    assert step_loss(setup, batches) == pytest.approx(step_loss(plain, cut), rel=1e-5)


def test_a_row_alone_is_padded_only_to_a_length() -> None:
    for padding, zeros in (("longest", 0), ("max_length", 1)):
        job = tiny_job(padding=padding, micro_batch_size=1)  # type: ignore[arg-type]
        setup = build(job, CPU)
        (first, _) = batches_of(job, setup)
        assert int((first["attention_mask"] == 0).sum()) == zeros
        assert ["mask of all pairs" in note for note in setup.notes] == [True]


def test_images_are_not_padded() -> None:
    job = tiny_job("encoder", padding="longest")
    assert build(job, CPU)
    with pytest.raises(UnsupportedError, match="not for image-classification"):
        build(replace(tiny_job("image"), config=job.config), CPU)
