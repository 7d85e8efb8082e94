"""Images beside text: as many tokens as the encoder gives features, and what is frozen."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest
import torch
from plain_steps import step_loss
from tiny_image_configs import WITH_IMAGES
from tiny_models import tiny_job

from oomdoctor.records.configuration.config import TrainConfig
from oomdoctor.worker.protocol import UnsupportedError
from oomdoctor.worker.training.batch import micro_batches
from oomdoctor.worker.training.build import build
from oomdoctor.worker.training.objectives.images import TOWERS, why_text_alone
from oomdoctor.worker.training.setup import Setup

CPU = torch.device("cpu")


def stepped(kind: str, **rung: Any) -> tuple[Setup, list[dict[str, Any]], float]:
    job = tiny_job(kind, image_size=32 if kind == "qwen2_5_vl" else 0, **rung)
    setup = build(job, CPU)
    batches = micro_batches(setup, job.config, count=2)
    loss = step_loss(setup, batches)
    return setup, batches, loss


@pytest.mark.parametrize("kind", WITH_IMAGES)
def test_the_model_finds_its_images_in_the_text(kind: str) -> None:
    """transformers counts the tokens of images and compares them with the features."""
    _, batches, loss = stepped(kind)
    assert 0 < loss < 20
    marked = batches[0]["input_ids"] == 511
    assert marked.sum(1).tolist() == [marked[0].sum()] * 2 and marked.any()
    assert (batches[0]["labels"][marked] == -100).all()
    assert not marked[:, -1].any()


def _tower(setup: Setup) -> list[tuple[str, torch.nn.Parameter]]:
    return [
        (name, parameter)
        for name, parameter in setup.model.named_parameters()
        if not set(TOWERS).isdisjoint(name.split("."))
    ]


@pytest.mark.parametrize("kind", WITH_IMAGES)
@pytest.mark.parametrize("method", ["full", "lora"])
def test_a_frozen_encoder_is_not_trained(kind: str, method: Any) -> None:
    trained, frozen = (
        _tower(stepped(kind, method=method, vision=vision)[0]) for vision in ("trained", "frozen")
    )
    assert any(parameter.requires_grad for _, parameter in trained)
    assert frozen and not any(parameter.requires_grad for _, parameter in frozen)
    assert not any("lora" in name for name, _ in frozen)


def test_text_alone_has_no_images() -> None:
    _, batches, _ = stepped("llava", images=0)
    assert set(batches[0]) == {"input_ids", "attention_mask", "labels"}


def test_what_cannot_be_is_said() -> None:
    with pytest.raises(UnsupportedError, match="do not fit into a sequence of 32"):
        stepped("llava", images=3)
    with pytest.raises(UnsupportedError, match="images of 16 pixels"):
        job = tiny_job("llava", image_size=20)
        setup = build(job, CPU)
        micro_batches(setup, job.config, count=1)
    with pytest.raises(UnsupportedError, match="no vision encoder"):
        build(tiny_job("dense", vision="frozen"), CPU)


def test_a_class_that_fails_on_images_is_named_by_its_line() -> None:
    """Not by what torch says of it, such as "tuple index out of range"."""
    job = tiny_job("llava")
    setup = build(job, CPU)
    setup.model_config.vision_feature_layer = -9
    reason = why_text_alone(job.config, setup.model_config)
    assert re.fullmatch(r".* fails on images of this form \(modeling_llava.py, line \d+\)", reason)


def test_a_key_that_config_json_lacks_is_named() -> None:
    kind = pytest.importorskip("transformers.models.gemma4_unified").Gemma4UnifiedConfig
    model = kind(architectures=["Gemma4UnifiedForConditionalGeneration"])
    reason = why_text_alone(TrainConfig(), model)
    assert reason == "config.json of gemma4_unified has no patch_size of its images"


def test_a_model_whose_images_are_not_known_is_trained_on_text() -> None:
    job = tiny_job("dense")
    setup = build(job, CPU)
    assert "of llama are not known" in str(why_text_alone(job.config, setup.model_config))
    setup.job = replace(job, model=replace(job.model, task="image-text-to-text"))
    (batch,) = micro_batches(setup, job.config, count=1)
    assert set(batch) == {"input_ids", "attention_mask", "labels"}
