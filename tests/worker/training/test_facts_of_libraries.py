"""The tables of facts against the libraries that they describe."""

from __future__ import annotations

import importlib
from typing import Any

import pytest
import torch
import transformers
from tiny_models import tiny_job

from oomdoctor.records.facts.architectures import (
    FAMILIES,
    LIGER_FAMILIES,
    WITHOUT_SDPA,
    experts_stacked,
)
from oomdoctor.records.facts.dtypes import DTYPES
from oomdoctor.records.facts.optimizers import OPTIMIZERS, RECIPE_NAMES
from oomdoctor.worker.protocol import UnsupportedError
from oomdoctor.worker.training.build import build
from oomdoctor.worker.training.inspection import count_parameters
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
    if OPTIMIZERS[name].layerwise:
        pytest.skip("it steps in the backward pass; test_low_rank.py has it")
    setup = build(tiny_job("dense", optimizer=name, weights_dtype=dtype), CPU)
    for parameter in setup.model.parameters():
        parameter.grad = torch.randn_like(parameter)
    with torch.compiler.set_stance("force_eager"):  # torchao would compile for a minute
        setup.trainer.optimizer.step()
    return setup


@pytest.mark.parametrize("name", RECIPE_NAMES)
def test_each_optimizer_keeps_what_its_row_says_or_says_why_not(name: str) -> None:
    row = OPTIMIZERS[name]
    try:
        setup = _stepped(name, "bfloat16")
    except UnsupportedError as error:
        assert name in str(error) or "torch.compile" in str(error)
        assert (row.library, row.recipe) != ("torch", True), "torch's own run anywhere"
        return
    least = row.device_state_bytes(2)
    held = sum(t.numel() * t.element_size() for t in state_tensors(setup.trainer.optimizer))
    trained = sum(p.numel() for p in setup.model.parameters())
    assert least is None or held >= least * trained
    if row.moments and (row.moment_bytes or 4) > 1:  # small low-bit states are larger
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


_MIXTURE = {  # nearly all parameters are those of the experts
    **_TINY, "num_key_value_heads": 2, "vocab_size": 32, "num_experts_per_tok": 2,
    "pad_token_id": 0, "intermediate_size": 64, "moe_intermediate_size": 64,
    "num_local_experts": 16, "num_experts": 16,
}  # fmt: skip


@pytest.mark.parametrize(
    "name", ["mixtral", "qwen3_moe", *(n for n, row in FAMILIES.items() if row.stacked_experts)]
)
def test_experts_are_linear_layers_or_one_tensor_as_the_table_says(name: str) -> None:
    version = transformers.__version__
    try:
        config = transformers.AutoConfig.for_model(name, **_MIXTURE)
    except ValueError:
        pytest.skip(f"transformers {version} has no {name}")
    with torch.device("meta"):
        model = transformers.AutoModelForCausalLM.from_config(config)
    counts = count_parameters(model, config)
    experts = 16 * 3 * 8 * 64
    stacked = experts_stacked(name, version)
    assert (counts.rest >= experts) is stacked, counts
    assert (counts.linear >= experts) is not stacked, counts


@pytest.mark.parametrize(
    "name", [name for name, row in FAMILIES.items() if not row.stacked_experts]
)
def test_the_version_tells_of_other_families(name: str) -> None:
    assert experts_stacked(name, "4.57.1") is False
    assert experts_stacked(name, "5.0.0rc1") is True
    assert experts_stacked(name, None) is None


@pytest.mark.parametrize("model_type", WITHOUT_SDPA)
def test_types_said_to_have_no_sdpa_have_none(model_type: str) -> None:
    """`explain` has no transformers to ask, so it reads a list."""
    module = importlib.import_module(f"transformers.models.{model_type}.modeling_{model_type}")
    made = [kind for kind in vars(module).values() if isinstance(kind, type)]
    models = [kind for kind in made if issubclass(kind, transformers.PreTrainedModel)]
    own = [kind for kind in models if kind.__module__ == module.__name__]
    assert own and not any(kind._supports_sdpa for kind in own)
