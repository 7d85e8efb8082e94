"""Batches of recordings, as a model's own feature extractor makes them of sound.

It is the one in the model's folder, or that of the type with the sizes that the config names, and
runs on seconds of noise: all recordings of a batch have one length. A class without one takes the
samples themselves. Where a decoder continues a text, each row begins with a recording, and the
model's own encoder says how many tokens it is; they have no labels.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from inspect import Parameter, signature
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from oomdoctor.records.configuration.config import TrainConfig, is_cast_by_peft
from oomdoctor.records.facts.choices import Dtype
from oomdoctor.system.models.tasks import OWN_SCRIPT
from oomdoctor.worker.protocol import UnsupportedError
from oomdoctor.worker.tracing import real_values
from oomdoctor.worker.training.model_config import model_class, needed_package
from oomdoctor.worker.training.objectives.image_forms import Images
from oomdoctor.worker.training.objectives.images import tokens_of, where_it_fails
from oomdoctor.worker.training.setup import Setup

if TYPE_CHECKING:
    from transformers import FeatureExtractionMixin, PretrainedConfig, PreTrainedModel

_SECONDS, _RATE = 10, 16_000  # of a recording and its samples, where the extractor has none
_SPOKEN = 10  # labels of a second, in CTC
_BINS = ("num_mel_bins", "input_feat_per_channel")
# The masks of recordings, which extractors call `attention_mask`.
_MASKS = ("input_features_mask", "feature_attention_mask", "padding_mask")
_PARTS = ("encoder_config", "encoder", "audio_config")
# Extractors of published checkpoints, where transformers maps the type to another one.
_PUBLISHED = {"wav2vec2-bert": "SeamlessM4TFeatureExtractor"}


def with_recordings(
    ids: torch.Tensor, config: TrainConfig, setup: Setup, generator: torch.Generator
) -> dict[str, torch.Tensor]:
    """The tensors of a whole batch with rows `ids` of (recordings, length) to write, by name.

    Raises:
        UnsupportedError: a recording does not fit into a row.
    """
    asked, model, length = _asked(setup), setup.model_config, ids.shape[1]
    if "input_ids" not in asked.inputs():
        return recordings(len(ids), config, setup, generator) | {"labels": ids}
    batch = {"input_ids": ids, "attention_mask": torch.ones_like(ids), "labels": ids.clone()}
    tokens = _tokens(asked, config.audio_seconds)
    if asked.inputs().keys().isdisjoint(("input_features", "input_values")):
        raise _unknown_sound(model)  # as codes
    if isinstance(tokens, str):
        return batch
    if not hasattr(model, "audio_token_id"):  # each token hears its part
        if tokens != length:
            raise UnsupportedError(
                f"a row of {model.model_type} is as long as its recording; set "
                f"sequence_length={tokens}, or other audio_seconds"
            )
    elif tokens >= length:
        raise UnsupportedError(
            f"a recording of {tokens:,} tokens does not fit into a sequence of {length:,}; "
            "set audio_seconds or --seq-len"
        )
    else:
        within = (torch.arange(length) < tokens).expand_as(ids)
        batch["input_ids"] = torch.where(within, model.audio_token_id, ids)
        batch["labels"] = torch.where(within, -100, ids)
    return recordings(len(ids), config, setup, generator) | batch  # its mask is that of text


def why_without_sound(config: TrainConfig, setup: Setup) -> str | None:
    """Why rows of text have no recordings; None if they have, or if rows are recordings."""
    asked = _asked(setup)
    tokens = _tokens(asked, config.audio_seconds) if "input_ids" in asked.inputs() else 0
    return tokens if isinstance(tokens, str) else None


def recordings(
    rows: int, config: TrainConfig, setup: Setup, generator: torch.Generator
) -> dict[str, torch.Tensor]:
    """The inputs of `rows` recordings, by name.

    Raises:
        UnsupportedError: the feature extractor needs a package, or makes other inputs.
    """
    takes = getattr(torch, _dtype(config))
    return {
        name: torch.randn((rows, *shape), generator=generator).to(takes)
        if dtype.is_floating_point
        else torch.ones((rows, *shape), dtype=dtype)
        for name, shape, dtype in _extracted(_asked(setup), config.audio_seconds)
    }


def _dtype(config: TrainConfig) -> Dtype:
    """The type of features: without autocast, a collator casts them to that of the weights."""
    upcast = is_cast_by_peft(config)
    return "float32" if upcast or config.autocast_dtype != "none" else config.weights_dtype


def spoken(config: TrainConfig, setup: Setup) -> int:
    """How many labels a recording has, if a rung does not say it."""
    return _SPOKEN * _seconds(
        _extractor(setup.job.model.path, setup.model_config), config.audio_seconds
    )


@dataclass(frozen=True, slots=True)
class _Asked:
    """A model by what decides its features; `kind` is None for code of the hub."""

    kind: type[PreTrainedModel] | None
    path: str | None
    settings: str
    model: PretrainedConfig = field(compare=False)

    def inputs(self) -> Mapping[str, Parameter]:
        """The inputs of the forward pass."""
        return {} if self.kind is None else signature(self.kind.forward).parameters


def _asked(setup: Setup) -> _Asked:
    model = setup.model_config
    auto = model_class(setup.job.model, model)
    kind = getattr(auto, "kind", None)
    if kind is None:
        kind = auto._model_mapping.get(type(model), None)  # type: ignore[attr-defined]
    return _Asked(kind, setup.job.model.path, model.model_type + model.to_json_string(), model)


@lru_cache(maxsize=32)
def _extracted(asked: _Asked, seconds: int) -> tuple[tuple[str, torch.Size, torch.dtype], ...]:
    """The names, shapes and types of the inputs that are made of one recording.

    Raises:
        UnsupportedError: the feature extractor needs a package, or makes other inputs.
    """
    import numpy

    inputs = asked.inputs()
    mask = next((name for name in _MASKS if name in inputs), "attention_mask")
    with real_values.computing():
        extractor = _extractor(asked.path, asked.model)
        rate = getattr(extractor, "sampling_rate", _RATE)
        samples = numpy.random.default_rng(0).standard_normal(_seconds(extractor, seconds) * rate)
        noise = samples.astype("float32")
        if extractor is None:
            features: Mapping[str, object] = {"input_values": torch.from_numpy(noise)[None]}
        else:
            settings = {"sampling_rate": rate, "return_tensors": "pt"}
            if mask != "attention_mask" or _masks(asked.model):
                settings["return_attention_mask"] = True
            takes = signature(extractor.__call__).parameters
            features = extractor(noise, **{key: settings[key] for key in settings if key in takes})
    renamed = {mask if key == "attention_mask" else key: value for key, value in features.items()}
    features_of_class = tuple(
        (name, value[0].shape, value.dtype)
        for name, value in renamed.items()
        if name in inputs and isinstance(value, torch.Tensor)  # Cohere's says more beside tensors
    )
    if not any(dtype.is_floating_point for _, _, dtype in features_of_class):
        raise _unknown_sound(asked.model)
    return features_of_class


def _unknown_sound(model: PretrainedConfig) -> UnsupportedError:
    return UnsupportedError(f"how {model.model_type} takes sound is not known; {OWN_SCRIPT}")


def _masks(model: PretrainedConfig) -> bool:
    """Whether the processor of a type asks its feature extractor for masks (LASR, Parakeet).

    False where the processor needs a package that is missing.
    """
    import transformers
    from transformers.models.auto.processing_auto import PROCESSOR_MAPPING_NAMES

    name = PROCESSOR_MAPPING_NAMES.get(model.model_type)
    processor = getattr(transformers, name, None) if name else None
    try:
        before = getattr(getattr(processor, "valid_processor_kwargs", None), "_defaults", {})
        settings = getattr(processor, "audio_kwargs", before.get("audio_kwargs", {}))  # since 5.24
    except ImportError:
        return False
    return bool(settings.get("return_attention_mask"))


@lru_cache(maxsize=32)
def _tokens(asked: _Asked, seconds: int) -> int | str:
    """How many tokens of its row a recording is; why that is not known."""
    model, shallow = asked.model, copy.deepcopy(asked.model)
    assert asked.kind is not None
    if getattr(model, "audio_token_id", 0) is None:
        return f"config.json of {model.model_type} names no token for sound"
    shallow.get_text_config().num_hidden_layers = 1
    try:
        features, masks = {}, {}
        for name, shape, dtype in _extracted(asked, seconds):
            if dtype.is_floating_point:
                features[name] = (1, *shape)
            else:
                with real_values.computing():
                    masks[name] = torch.ones((1, *shape), dtype=dtype)
        return tokens_of(Images(features, masks), asked.kind, shallow)
    except UnsupportedError as error:
        return str(error)
    except Exception as error:  # noqa: BLE001  (the class may fail in any way)
        reason = where_it_fails(error, "recordings")
        return f"how many tokens a recording of {model.model_type} takes is not known: {reason}"


def _seconds(extractor: FeatureExtractionMixin | None, asked: int) -> int:
    return asked or getattr(extractor, "chunk_length", None) or _SECONDS


def _extractor(path: str | None, model: PretrainedConfig) -> FeatureExtractionMixin | None:
    """What makes features of sound for a model; None if transformers has nothing for it."""
    import transformers
    from transformers.models.auto.feature_extraction_auto import FEATURE_EXTRACTOR_MAPPING_NAMES

    if path is not None and (Path(path) / "preprocessor_config.json").exists():
        return transformers.AutoFeatureExtractor.from_pretrained(path)
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
