"""Counts from config.json alone never exceed the real ones, and are not far below."""

from __future__ import annotations

import pytest

from oomdoctor.analysis.memory.closed_form import lower_bound
from oomdoctor.analysis.memory.shape import attended_positions, least_counts
from oomdoctor.records.configuration.config import TrainConfig
from oomdoctor.records.configuration.keys import label_of
from oomdoctor.records.job.model import ParameterCounts
from oomdoctor.system.catalogue import CatalogueModel, models

MODELS = [model for model in models() if model.parameters is not None]


@pytest.mark.parametrize("model", MODELS, ids=lambda model: model.id)
def test_never_more_than_there_are(model: CatalogueModel):
    counts = least_counts(model.config, None, plain=True)
    assert counts is None or counts.total <= model.parameters
    exact = least_counts(model.config, model.parameters, plain=False)
    assert exact is not None
    assert exact.total == model.parameters == exact.linear + exact.embedding


@pytest.mark.parametrize(
    "name",
    [
        "meta-llama/Llama-3.1-8B",
        "Qwen/Qwen2.5-7B",
        "mistralai/Mistral-7B-v0.1",
        "google/gemma-2-9b",
    ],
)
def test_most_of_a_dense_decoder_is_counted(name):
    model = next(model for model in MODELS if model.id == name)
    counts = least_counts(model.config, None, plain=True)
    assert counts is not None
    assert counts.total > 0.6 * model.parameters


def test_an_unknown_architecture_is_not_guessed():
    config = {"model_type": "x", "num_hidden_layers": 2, "hidden_size": 8, "vocab_size": 10}
    assert least_counts(config, None, plain=False) is None
    assert least_counts({"model_type": "x"}, None, plain=True) is None


@pytest.mark.parametrize(
    "config",
    [
        TrainConfig(),
        TrainConfig(weights_dtype="float32"),
        TrainConfig(method="lora"),
        TrainConfig(method="qlora", quantization="nf4"),
        TrainConfig(method="qlora", quantization="int8", kbit_prepare="norms"),
        TrainConfig(optimizer="adamw_bnb_8bit"),
    ],
    ids=lambda config: label_of(config),
)
@pytest.mark.parametrize(
    "real",
    [
        ParameterCounts(8_030_261_248, 6_979_321_856, 1_050_673_152, 266_240, 0),
        # Experts are one tensor here, so most of the model is "rest".
        ParameterCounts(46_702_792_704, 1_343_225_856, 262_144_000, 45_097_422_848, 0,
                        45_097_156_608, 8, 2),
    ],
    ids=["dense", "experts"],
)  # fmt: skip
def test_a_bound_is_never_above_that_of_the_real_counts(config, real):
    name = "Llama-3.1-8B" if not real.experts else "Mixtral-8x7B"
    model = next(model for model in MODELS if name in model.id)
    assert model.parameters == real.total
    least = least_counts(model.config, model.parameters, plain=False)
    assert least is not None
    bound = lower_bound(config, least).size_bytes
    assert 0 < bound <= lower_bound(config, real).size_bytes


def test_a_layer_of_nemotron_has_one_part():
    nemotron = next(m for m in MODELS if m.id == "nvidia/NVIDIA-Nemotron-Nano-9B-v2")
    assert attended_positions(nemotron.config, 100) == 4 * 100
    counts = least_counts(nemotron.config, None, plain=True)
    assert counts is not None
    assert counts.total > 0.4 * nemotron.parameters  # without the Mamba layers
