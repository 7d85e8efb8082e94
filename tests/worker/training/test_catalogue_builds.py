"""Every built-in model builds on the meta device and has the count that is on record.

A type that the installed transformers does not know yet is skipped; the newest knows them all.
"""

from __future__ import annotations

import copy
from typing import Any

import pytest

from oomdoctor.records.job.model import AUTO_CLASSES
from oomdoctor.system.catalogue import CatalogueModel, models
from oomdoctor.system.models.tasks import task_of


def _config(model: CatalogueModel) -> Any:
    import transformers
    from transformers import CONFIG_MAPPING, AutoConfig

    keys = copy.deepcopy(dict(model.config))
    model_type = keys.pop("model_type")
    if model_type not in CONFIG_MAPPING:
        pytest.skip(f"this transformers has no {model_type}")
    try:
        return AutoConfig.for_model(model_type, **keys)
    except KeyError as error:  # the type of a part
        if transformers.__version__ >= "5":
            raise
        pytest.skip(f"this transformers has no {error}")


def _build(auto_class: str, config: Any) -> Any:
    """The model on the meta device, tied; initialising nothing, which is most of the time."""
    import torch
    import transformers

    try:
        from transformers.initialization import no_init_weights
    except ImportError:  # transformers 4
        from transformers.modeling_utils import no_init_weights
    with torch.device("meta"), no_init_weights():
        built = getattr(transformers, auto_class).from_config(config)
    built.tie_weights()
    return built


def _expected(model: CatalogueModel, config: Any) -> int:
    assert model.parameters is not None
    if config.model_type == "t5" and not model.config["tie_word_embeddings"]:
        # flan-t5 has a head of its own, which transformers 5 ties whatever the config says.
        return model.parameters - config.tie_word_embeddings * config.vocab_size * config.d_model
    return model.parameters


@pytest.mark.slow
@pytest.mark.parametrize("model", models(), ids=lambda model: model.id)
def test_model_builds_with_the_recorded_count(model: CatalogueModel) -> None:
    config = _config(model)
    built = _build(model.auto_class, config)
    assert sum(p.numel() for p in built.parameters()) == _expected(model, config)
    assert all(p.is_meta for p in built.parameters())


@pytest.mark.parametrize(
    "model", [m for m in models() if m.auto_class == "AutoModel"], ids=lambda model: model.id
)
def test_bare_encoder_builds_for_its_task(model: CatalogueModel) -> None:
    built = _build(AUTO_CLASSES[task_of(model.config, "auto")], _config(model))
    assert model.parameters is not None
    assert sum(p.numel() for p in built.parameters()) >= 0.99 * model.parameters


def test_the_other_classes_are_those_of_their_task() -> None:
    for model in models():
        if model.auto_class != "AutoModel":
            assert AUTO_CLASSES[task_of(model.config, "auto")] == model.auto_class, model.id


@pytest.mark.parametrize("name", ["google-t5/t5-small", "facebook/bart-base"])
def test_seq2seq_labels_can_be_shifted(name: str) -> None:
    import torch

    model = next(m for m in models() if m.id == name)
    built = _build("AutoModelForSeq2SeqLM", _config(model))
    tokens = torch.zeros(1, 8, dtype=torch.long, device="meta")
    assert built.prepare_decoder_input_ids_from_labels(tokens).shape == (1, 8)


def test_at_least_sixty_models_build_here() -> None:
    from transformers import CONFIG_MAPPING

    assert sum(model.config["model_type"] in CONFIG_MAPPING for model in models()) >= 60
