"""The tables of facts against the libraries that they describe."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tiny_models import tiny_job

from oomdoctor.records.facts.architectures import FAMILIES, LIGER_FAMILIES
from oomdoctor.records.facts.dtypes import DTYPES
from oomdoctor.records.facts.optimizers import OPTIMIZERS, RECIPE_NAMES
from oomdoctor.worker.protocol.unsupported import UnsupportedError
from oomdoctor.worker.training.build import build
from oomdoctor.worker.training.optimizers import state_tensors

CPU = torch.device("cpu")
_TINY = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 8}


def test_every_optimizer_of_transformers_has_a_row() -> None:
    from transformers.training_args import OptimizerNames

    assert {name.value for name in OptimizerNames} <= set(RECIPE_NAMES)


@pytest.mark.parametrize("name", DTYPES)
def test_size_of_each_dtype(name: str) -> None:
    assert getattr(torch, name).itemsize == DTYPES[name].size_bytes
    for spelling in DTYPES[name].spellings:
        found = getattr(torch, spelling, None)
        assert found is None or found == getattr(torch, name)


def _stepped(name: str, dtype: str) -> Any:
    """A tiny model's optimizer after one step with random gradients."""
    setup = build(tiny_job("dense", optimizer=name, weights_dtype=dtype), CPU)
    for parameter in setup.model.parameters():
        parameter.grad = torch.randn_like(parameter)
    setup.trainer.optimizer.step()
    return setup


@pytest.mark.parametrize("name", RECIPE_NAMES)
def test_each_optimizer_keeps_what_its_row_says_or_says_why_not(name: str) -> None:
    row = OPTIMIZERS[name]
    try:
        setup = _stepped(name, "bfloat16")
    except UnsupportedError as error:
        assert name in str(error)
        assert (row.library, row.recipe) != ("torch", True), "torch's own run anywhere"
        return
    least = row.device_state_bytes(2)
    held = sum(t.numel() * t.element_size() for t in state_tensors(setup.trainer.optimizer))
    trained = sum(p.numel() for p in setup.model.parameters())
    assert least is None or held >= least * trained
    if row.moments and not row.eight_bit:  # bitsandbytes keeps small 8-bit states in 32 bits
        assert least is not None
        assert held <= least * trained * 1.01


@pytest.mark.parametrize("name", [n for n in RECIPE_NAMES if OPTIMIZERS[n].kernel])
def test_each_optimizer_steps_as_its_row_says(name: str) -> None:
    try:
        optimizer = _stepped(name, "float32").trainer.optimizer
    except UnsupportedError:
        pytest.skip(f"{name} is not supported here")
    settings = getattr(optimizer, "optimizer", optimizer).defaults
    if settings.get("fused"):
        kernel = "fused"
    else:
        kernel = "foreach" if "foreach" in settings else "per-parameter"
    assert OPTIMIZERS[name].kernel == kernel


@pytest.mark.parametrize("name", FAMILIES)
def test_the_quirks_of_each_family_are_those_of_transformers(name: str) -> None:
    from transformers import AutoConfig, AutoModel

    config = AutoConfig.for_model(name)
    assert config.tie_word_embeddings == FAMILIES[name].tied
    if FAMILIES[name].positions_after_padding:
        model = AutoModel.from_config(AutoConfig.for_model(name, **_TINY))
        padding = model.get_input_embeddings().padding_idx
        positions = next(m for path, m in model.named_modules() if "position_emb" in path)
        assert positions.padding_idx == padding


def test_ligers_families_are_those_of_the_package() -> None:
    known = pytest.importorskip("liger_kernel.transformers.monkey_patch")
    for family in LIGER_FAMILIES:
        assert any(family in kind for kind in known.MODEL_TYPE_TO_APPLY_LIGER_FN), family
