"""Batches of recordings, as a model's own feature extractor makes them of sound.

It is the one in the model's folder, or that of the type with the sizes that the config names, and
runs on seconds of noise: all recordings of a batch have one length. A class without one takes the
samples themselves.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from inspect import Parameter, signature
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from oomdoctor.records.configuration.config import TrainConfig
from oomdoctor.records.facts.choices import Dtype
from oomdoctor.worker.protocol import UnsupportedError
from oomdoctor.worker.tracing import real_values
from oomdoctor.worker.training.model_config import model_class, needed_package
from oomdoctor.worker.training.setup import Setup

if TYPE_CHECKING:
    from transformers import FeatureExtractionMixin, PretrainedConfig

_SECONDS, _RATE = 10, 16_000  # of a recording and its samples, where the extractor has none
_SPOKEN = 10  # labels of a second, in CTC
_BINS = ("num_mel_bins", "input_feat_per_channel")
_PARTS = ("encoder_config", "encoder", "audio_config")
# Extractors of published checkpoints, where transformers maps the type to another one.
_PUBLISHED = {"wav2vec2-bert": "SeamlessM4TFeatureExtractor"}


def writes_beside_text(setup: Setup) -> bool:
    """Whether the model continues a text in which recordings stand, so it has one decoder."""
    return "input_ids" in _inputs_of(setup)


def recordings(
    rows: int, config: TrainConfig, setup: Setup, generator: torch.Generator
) -> dict[str, torch.Tensor]:
    """The inputs of `rows` recordings, by name.

    Raises:
        UnsupportedError: the feature extractor needs a package, or makes other inputs.
    """
    model, inputs = setup.model_config, _inputs_of(setup)
    asked = _Asked(setup.job.model.path, model.model_type, model.to_json_string(), model)
    made = {
        name: (shape, dtype)
        for name, shape, dtype in _extracted(asked, config.audio_seconds)
        if name in inputs
    }
    if not any(dtype.is_floating_point for _, dtype in made.values()):
        raise UnsupportedError(f"how {model.model_type} takes sound is not known")
    takes = getattr(torch, _dtype(config))
    return {
        name: torch.randn((rows, *shape), generator=generator).to(takes)
        if dtype.is_floating_point
        else torch.ones((rows, *shape), dtype=dtype)
        for name, (shape, dtype) in made.items()
    }


def _dtype(config: TrainConfig) -> Dtype:
    """The type of features: without autocast, a collator casts them to that of the weights."""
    upcast = config.quantization != "none" and config.kbit_prepare == "peft"
    return "float32" if upcast or config.autocast_dtype != "none" else config.weights_dtype


def spoken(config: TrainConfig, setup: Setup) -> int:
    """How many labels a recording has, if a rung does not say it."""
    return _SPOKEN * _seconds(
        _extractor(setup.job.model.path, setup.model_config), config.audio_seconds
    )


def _inputs_of(setup: Setup) -> Mapping[str, Parameter]:
    """The inputs of the forward pass."""
    made = model_class(setup.job.model, setup.model_config)
    kind = getattr(made, "kind", None)
    if kind is None:
        kind = made._model_mapping.get(type(setup.model_config), None)  # type: ignore[attr-defined]
    return {} if kind is None else signature(kind.forward).parameters  # code of the hub


@dataclass(frozen=True, slots=True)
class _Asked:
    """A model by what decides its features."""

    path: str | None
    kind: str
    settings: str
    model: PretrainedConfig = field(compare=False)


@lru_cache(maxsize=32)
def _extracted(asked: _Asked, seconds: int) -> tuple[tuple[str, torch.Size, torch.dtype], ...]:
    """The names, shapes and types of the inputs that are made of one recording."""
    import numpy

    with real_values.computing():
        extractor = _extractor(asked.path, asked.model)
        rate = getattr(extractor, "sampling_rate", _RATE)
        samples = numpy.random.default_rng(0).standard_normal(_seconds(extractor, seconds) * rate)
        noise = samples.astype("float32")
        if extractor is None:
            return (("input_values", torch.Size([len(noise)]), torch.float32),)
        made = extractor(noise, sampling_rate=rate, return_tensors="pt")
        return tuple(
            (name, value[0].shape, value.dtype)
            for name, value in made.items()
            if isinstance(value, torch.Tensor)  # Cohere also says which chunk is of which recording
        )


def _seconds(extractor: FeatureExtractionMixin | None, asked: int) -> int:
    return asked or getattr(extractor, "chunk_length", None) or _SECONDS


def _extractor(path: str | None, model: PretrainedConfig) -> FeatureExtractionMixin | None:
    """What makes features of sound for a model; None if transformers has nothing for it."""
    import transformers
    from transformers.models.auto.feature_extraction_auto import FEATURE_EXTRACTOR_MAPPING_NAMES

    if path is not None and (Path(path) / "preprocessor_config.json").exists():
        published: FeatureExtractionMixin = transformers.AutoFeatureExtractor.from_pretrained(path)
        return published
    parts = [model, *(getattr(model, name, None) for name in _PARTS)]
    types = [kind for part in parts if (kind := getattr(part, "model_type", None))]
    names = {**FEATURE_EXTRACTOR_MAPPING_NAMES, **_PUBLISHED}
    name = next((names[kind] for kind in types if names.get(kind)), None)
    if name is None:
        return None
    kind = getattr(transformers, name)
    bins = next((n for part in parts for key in _BINS if (n := getattr(part, key, None))), None)
    longest = getattr(model, "max_length", None)
    sizes = {"feature_size": bins, "num_mel_bins": bins, "max_length": longest}
    takes = signature(kind.__init__).parameters
    with needed_package():
        return kind(**{name: size for name, size in sizes.items() if size and name in takes})
