"""Simulated steps of embedding models and rerankers against measured ones."""

from __future__ import annotations

from dataclasses import replace
from importlib.metadata import version
from typing import Any

import pytest
from simulated_steps import differences, quick
from tiny_models import tiny_job

from oomdoctor.records.configuration.config import TrainConfig
from oomdoctor.records.job.simulation import SimulationRequest, Target
from oomdoctor.worker.host import clean_slate
from oomdoctor.worker.measuring.measure import measure
from oomdoctor.worker.protocol import PhaseFile, UnsupportedError
from oomdoctor.worker.simulating.simulate import simulate
from oomdoctor.worker.training.batch import micro_batches
from oomdoctor.worker.training.build import build
from oomdoctor.worker.training.model_config import load_config


@pytest.fixture(scope="module", autouse=True)
def _warm() -> None:
    """Libraries make a few tables at their first use, which later measurements do not see."""
    measure(quick(tiny_job("dense")), PhaseFile(None))


@pytest.mark.parametrize(
    ("kind", "pooling", "rung"),
    [
        ("embedding", None, {}),
        ("embedding", "cls", {"method": "lora"}),
        ("embedding", "mean", {"padding": "longest"}),
        ("embedding", "max", {"weights_dtype": "bfloat16"}),
        ("embedding-decoder", "lasttoken", {}),
        ("embedding-decoder", "lasttoken", {"activation_checkpointing": "full"}),
        ("embedding-half", "mean", {}),
        # torch leaves room for the losses of all rows in that of the batch.
        ("reranker", None, {"micro_batch_size": 1}),
    ],
)
def test_pairs_need_what_was_measured(kind: str, pooling: str | None, rung: dict[str, Any]) -> None:
    job = tiny_job(kind, **rung)
    job = replace(job, model=replace(job.model, pooling=pooling))
    found = differences(job)
    assert set(found.values()) == {0}, found


def test_an_encoder_alone_has_no_decoder() -> None:
    config = load_config(tiny_job("embedding-half").model)  # T5Gemma's class asks for it
    assert not config.is_encoder_decoder


_SIZES = {"hidden_size": 256, "num_hidden_layers": 4, "num_attention_heads": 4, "vocab_size": 8192}
_SIZES |= {"max_position_embeddings": 512}


@pytest.mark.skipif(
    (version("torch").partition("+")[0], version("transformers")) != ("2.13.0", "5.24.0"),
    reason="the peaks are those of other versions",
)
@pytest.mark.parametrize(
    ("kind", "config", "rung", "peaks"),
    [
        (
            "embedding",
            {**_SIZES, "model_type": "bert", "intermediate_size": 1024},
            {"micro_batch_size": 16},
            (290_798_080, 318_767_104),
        ),
        (
            "embedding",
            {**_SIZES, "model_type": "bert", "intermediate_size": 1024},
            {"micro_batch_size": 13, "sequence_length": 100, "method": "lora"},
            (168_700_928, 174_063_616),
        ),
    ],
)
def test_peaks_of_sentence_transformers(
    kind: str, config: dict[str, Any], rung: dict[str, Any], peaks: tuple[int, int]
) -> None:
    """Peaks of sentence-transformers 6.2.0 on the emulated GPU: MultipleNegativesRankingLoss, bf16
    autocast, fused AdamW; with LoRA the weights have 16 bits.
    """
    settings = {"sequence_length": 128, "autocast_dtype": "bfloat16"} | rung
    settings["weights_dtype"] = "bfloat16" if rung.get("method") else "float32"
    size: int = rung["micro_batch_size"]
    job = tiny_job(kind)
    job = replace(
        job,
        model=replace(job.model, config=config),
        config=TrainConfig(**settings, effective_batch_size=size),
        mode="simulate",
        simulation=SimulationRequest((size,), (Target("card", 1 << 40, 1 << 40, 0, None),)),
    )
    with clean_slate():
        measurement = simulate(job, PhaseFile(None))[0].sizes[0].measurement
    assert (measurement.peak_allocated_bytes, measurement.peak_reserved_bytes) == peaks


def test_the_loss_is_that_of_in_batch_negatives() -> None:
    """With equal texts all scores are equal, so the loss is the logarithm of their number."""
    import torch

    job = tiny_job("embedding", micro_batch_size=4, effective_batch_size=4)
    setup = build(job, torch.device("cpu"))
    setup.model.eval()
    (batch,) = micro_batches(setup, job.config, count=1)
    first = {name: tensor[:1].expand(4, -1) for name, tensor in batch.items()}  # type: ignore[union-attr]
    loss = setup.trainer.compute_loss(setup.model, first)
    assert loss.item() == pytest.approx(torch.log(torch.tensor(4.0)).item(), abs=1e-5)
    same = {**batch, "positive_input_ids": batch["anchor_input_ids"]}
    assert setup.trainer.compute_loss(setup.model, same) < loss


def test_an_unknown_pooling_is_refused() -> None:
    job = tiny_job("embedding")
    with pytest.raises(UnsupportedError, match="pooled by weightedmean"):
        measure(
            quick(replace(job, model=replace(job.model, pooling="weightedmean"))), PhaseFile(None)
        )
