"""What the inspection of a model counts, and which faults of custom code it lets through."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from tiny_models import tiny_job

from oomdoctor.worker.protocol import UnsupportedError
from oomdoctor.worker.training.inspection import count_parameters, inspect_model
from oomdoctor.worker.training.model_config import load_config, model_class, needed_package


def model_and_config():
    job = tiny_job("dense")
    config = load_config(job.model)
    with torch.device("meta"):
        return model_class(job.model, config).from_config(config), config


@pytest.mark.parametrize(
    ("kind", "longest"), [("dense", None), ("gpt2", 64), ("bert", 64), ("opt", 64)]
)
def test_only_a_table_of_positions_limits_a_row(kind, longest):
    """Rotary positions are computed for rows of any length; the others have a tensor."""
    model = tiny_job("dense").model
    if kind == "dense":  # a width as large as the positions is no table of positions
        sizes = {**model.config, "max_position_embeddings": model.config["hidden_size"]}
        model = replace(model, config=sizes)
    else:
        sizes = {"hidden_size": 64, "num_attention_heads": 2, "word_embed_proj_dim": 64}
        config = {
            "model_type": kind,
            **sizes,
            "max_position_embeddings": 64,
            "num_hidden_layers": 1,
            "vocab_size": 96,
        }
        task = "masked-lm" if kind == "bert" else "causal-lm"
        model = replace(model, model_type=kind, architecture="", task=task, config=config)
    inspection = inspect_model(replace(tiny_job("dense"), model=model))
    assert inspection.positions == 64
    assert inspection.max_sequence_length == longest


def _raise(error):
    raise error


def test_embeddings_under_other_names_count_as_the_rest():
    model, config = model_and_config()
    plain = count_parameters(model, config)
    for find in (lambda: model.wte, lambda: _raise(NotImplementedError())):
        model.get_input_embeddings = find
        other = count_parameters(model, config)
        assert other.total == plain.total
        assert other.rest - plain.rest == config.vocab_size * config.hidden_size


@pytest.mark.parametrize("error", [TypeError("no"), AttributeError("no"), KeyError("no")])
def test_a_fault_of_custom_code_is_not_hidden(error):
    model, config = model_and_config()
    model.get_output_embeddings = lambda: _raise(error)
    with pytest.raises(type(error)):
        count_parameters(model, config)
    model.get_output_embeddings = lambda: None.weight
    with pytest.raises(AttributeError):
        count_parameters(model, config)


def test_a_package_whose_newer_versions_do_not_work_is_named_with_the_last_that_does():
    told = r"^needs natten: pip install 'natten<=0\.17\.1'$"
    with pytest.raises(UnsupportedError, match=told), needed_package():
        raise ImportError("DinatModel requires the natten library but it was not found")


@pytest.mark.parametrize(
    "error",
    [
        ImportError("TimmWrapperModel requires the timm library but it was not found"),
        ModuleNotFoundError("No module named 'timm'", name="timm"),
    ],
    ids=["of transformers", "of python"],
)
def test_a_package_that_the_model_needs_is_named(error):
    with pytest.raises(UnsupportedError, match=r"^needs timm: pip install timm$"), needed_package():
        raise error
    with pytest.raises(ImportError, match="circular"), needed_package():
        raise ImportError("cannot import name: a circular import")
