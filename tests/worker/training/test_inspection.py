"""What the inspection of a model counts, and which faults of custom code it lets through."""

from __future__ import annotations

import pytest
import torch
from tiny_models import tiny_job

from oomdoctor.worker.protocol import UnsupportedError
from oomdoctor.worker.training.inspection import count_parameters
from oomdoctor.worker.training.model_config import load_config, model_class, needed_package


def model_and_config():
    job = tiny_job("dense")
    config = load_config(job.model)
    with torch.device("meta"):
        return model_class(job.model, config).from_config(config), config


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
