"""Batches of images and text for vision-language models, as their processors make them.

How a model takes images is read from itself: the inputs of its forward pass and its config say
which of a few forms pixels have, and its own vision encoder how many tokens an image becomes. An
image whose place no token and no mask marks is beside the text. All images of a batch have one
size. Labels leave out the tokens of images, as TRL's collator does.
"""

from __future__ import annotations

import copy
import importlib
import logging
import re
from contextlib import suppress
from dataclasses import dataclass, field
from functools import lru_cache
from inspect import Parameter, signature
from pathlib import Path
from traceback import walk_tb
from typing import TYPE_CHECKING

import torch

from oomdoctor.records.configuration.config import TrainConfig
from oomdoctor.worker.protocol import UnsupportedError
from oomdoctor.worker.tracing import real_values
from oomdoctor.worker.tracing.real_values import ShapesOnly
from oomdoctor.worker.training.objectives.image_forms import (
    Images,
    ImagesUnknownError,
    class_of,
    images_of,
    inputs_of,
)
from oomdoctor.worker.training.setup import Setup

if TYPE_CHECKING:
    from transformers import PretrainedConfig, PreTrainedModel

TOWERS = ("visual", "vision_tower", "vision_model", "vision_encoder", "image_encoder")
"""The names of vision encoders in models."""
_PLACES = "image_embeds_position_mask"  # the input that says which tokens are of images
# Qwen2-Audio has no function for its encoder.
_ENCODE = ("get_image_features", "get_video_features", "get_audio_features", "audio_tower")
_SPECIAL = (
    "image_token_id",
    "image_token_index",
    "video_token_id",
    "vision_start_token_id",
    "audio_token_id",
)


def with_images(
    ids: torch.Tensor, config: TrainConfig, model: PretrainedConfig, generator: torch.Generator
) -> dict[str, torch.Tensor]:
    """The tensors of a whole batch with rows `ids` of (sequences, length), by name.

    Raises:
        UnsupportedError: the model's images are not known, or do not fit into a sequence.
    """
    rows, length = ids.shape
    within, numbers = _numbers_beside(rows, length, config, model)
    batch = _texts(ids, within, model) | numbers
    batch["labels"] = torch.where(within, -100, ids)
    if why_text_alone(config, model) is not None or not config.images:
        return batch
    pixels = images_of(rows, config, model).pixels
    return batch | {name: torch.rand(shape, generator=generator) for name, shape in pixels.items()}


def numbers_of(
    rows: int, length: int, config: TrainConfig, model: PretrainedConfig
) -> dict[str, torch.Tensor]:
    """The tensors of whole numbers of a batch; any number stands for a token of text."""
    within, numbers = _numbers_beside(rows, length, config, model)
    return _texts(torch.full((rows, length), 3), within, model) | numbers


def _texts(
    ids: torch.Tensor, within: torch.Tensor, model: PretrainedConfig
) -> dict[str, torch.Tensor]:
    """The inputs that are text; an encoder of images alone has none."""
    token, inputs = _image_token(model), inputs_of(model)
    texts = {"input_ids": ids if token is None else torch.where(within, token, ids)}
    texts["attention_mask"] = torch.ones_like(ids)
    return {name: text for name, text in texts.items() if name in inputs}


def _numbers_beside(
    rows: int, length: int, config: TrainConfig, model: PretrainedConfig
) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    """Which tokens are of images, and what a batch has beside text and pixels."""
    inputs = inputs_of(model)
    within = torch.zeros((rows, length), dtype=torch.bool)
    numbers: dict[str, torch.Tensor] = {}
    count = config.images if why_text_alone(config, model) is None else 0
    if count:
        tokens = _tokens(config, model)
        if count * (tokens + 1) > length:
            raise UnsupportedError(
                f"{count} images of {tokens:,} tokens do not fit into a sequence of {length:,}; "
                "set images, image_size or --seq-len"
            )
        # A token of text stands behind each image, or models would take two for one.
        places = torch.arange(length)
        within = (places % (tokens + 1) < tokens) & (places < count * (tokens + 1))
        within = within.expand(rows, length)
        numbers |= images_of(rows, config, model).numbers
    for name in ("token_type_ids", "mm_token_type_ids"):
        if name in inputs and (config.images or name == "token_type_ids"):
            numbers[name] = within.to(torch.int64)
    if count and _PLACES in inputs:
        numbers[_PLACES] = within.to(torch.int64)
    if "bbox" in inputs:  # where the words of a page are
        numbers["bbox"] = torch.zeros((rows, length, 4), dtype=torch.int64)
    return within, numbers


def _image_token(model: PretrainedConfig) -> int | None:
    """The token that stands for a part of an image; None if the config names none."""
    names = [
        name
        for name in vars(model)
        if re.fullmatch(r"(image|media|video)\w*_token_(id|index)", name)
    ]
    for name in sorted(names, key=lambda name: (name.startswith("video"), len(name))):
        number = getattr(model, name)
        if isinstance(number, int) and not re.search("start|end|begin|row|newline", name):
            return number
    return None


def why_text_alone(config: TrainConfig, model: PretrainedConfig) -> str | None:
    """Why batches of this model have no images; None if they have, or the rung wants none.

    Raises:
        UnsupportedError: the model takes images, but not of the size that the rung wants; or it
            cannot do without images, and how it takes them is not known.
    """
    if config.images == 0:
        return None
    try:
        _tokens(config, model)
    except ImagesUnknownError as error:
        inputs = inputs_of(model)
        if "pixel_values" in inputs and inputs["pixel_values"].default is Parameter.empty:
            raise UnsupportedError(
                f"{model.model_type} needs images in each row, and {error}"
            ) from error
        return str(error)
    return None


def plain_tokens(model: PretrainedConfig, vocabulary: int) -> int:
    """How many of the first tokens have no meaning for images."""
    special = [getattr(model, name, None) for name in _SPECIAL]
    return min(token for token in (vocabulary, *special) if isinstance(token, int) and token > 1)


def is_in_tower(path: str) -> bool:
    """Whether the module at this path is a vision encoder, or a part of one."""
    return not set(TOWERS).isdisjoint(path.split("."))


def freeze_vision(setup: Setup) -> None:
    """Freeze the vision encoder; what projects its output is trained.

    Raises:
        UnsupportedError: the model has none.
    """
    model = setup.model
    towers = [module for name, module in model.named_modules() if name.rsplit(".", 1)[-1] in TOWERS]
    if not towers:
        raise UnsupportedError(f"{type(model).__name__} has no vision encoder; leave out vision")
    for tower in towers:
        tower.requires_grad_(False)


def _tokens(config: TrainConfig, model: PretrainedConfig) -> int:
    """How many tokens of its row an image is: the rows of features that the encoder makes of it.

    0 if no token and no mask says where it would be.
    """
    if _image_token(model) is None and _PLACES not in inputs_of(model):
        if hasattr(class_of(model), "get_image_features"):
            raise ImagesUnknownError(f"config.json of {model.model_type} names no token for images")
        images_of(1, config, model)
        return 0
    asked = _Asked(class_of(model), model.to_json_string(), config.image_size, model)
    counted = _counted(asked)
    if isinstance(counted, ImagesUnknownError):
        raise counted
    return counted


@dataclass(frozen=True, slots=True)
class _Asked:
    """A model and a size of images, by what decides the answer."""

    kind: type
    settings: str
    image_size: int
    model: PretrainedConfig = field(compare=False)


@lru_cache(maxsize=32)
def _counted(asked: _Asked) -> int | ImagesUnknownError:
    model, config = asked.model, TrainConfig(image_size=asked.image_size)
    shallow = copy.deepcopy(model)
    with suppress(AttributeError):
        shallow.get_text_config().num_hidden_layers = 1
    stated: int | None = None
    reason = ""
    for built in (shallow, model):  # not every family can be built with a single layer
        try:
            with real_values.computing():
                images = images_of(1, config, model)
            stated = images.tokens
            return tokens_of(images, class_of(model), built)
        except ImagesUnknownError as error:
            return error
        except Exception as error:
            if type(error) is UnsupportedError:
                raise
            reason = where_it_fails(error, "images")
    if stated is not None and not _has_encoder(model):
        return stated
    return ImagesUnknownError(
        f"how many tokens an image of {model.model_type} takes is not known: {reason}"
    )


def _has_encoder(model: PretrainedConfig) -> bool:
    """Whether the class, or the model inside it, can be asked for features of images."""
    whole = class_of(model)
    module = importlib.import_module(whole.__module__)
    inside = getattr(module, whole.__name__.replace("ForConditionalGeneration", "Model"), whole)
    return any(hasattr(kind, "get_image_features") for kind in (whole, inside))


def tokens_of(inputs: Images, kind: type[PreTrainedModel], model: PretrainedConfig) -> int:
    """The rows of features that the encoder of a fake model makes of images, or of sound."""
    with real_values.computing(), torch.no_grad(), ShapesOnly(), real_values.lists_known():
        return _rows_in(_encoded(kind._from_config(copy.deepcopy(model)), inputs))


def _encoded(model: PreTrainedModel, images: Images) -> object:
    dtype = next(model.parameters()).dtype
    inputs = {name: torch.empty(shape, dtype=dtype) for name, shape in images.pixels.items()}
    for name, values in images.numbers.items():
        inputs[name] = torch.empty(values.shape, dtype=values.dtype)
        real_values.know(inputs[name], values)
    settings = ("vision_feature_layer", "vision_feature_select_strategy")
    given = {name: getattr(model.config, name) for name in settings if hasattr(model.config, name)}
    given |= inputs
    parts = (model, getattr(model, "model", None))
    encoders = (getattr(part, name) for name in _ENCODE for part in parts if hasattr(part, name))
    for encode in encoders:
        takes = signature(getattr(encode, "forward", encode)).parameters
        if not inputs.keys().isdisjoint(takes):
            return encode(**{name: value for name, value in given.items() if name in takes})
    raise AttributeError(f"{type(model).__name__} has no get_image_features")


def _rows_in(features: object) -> int:
    """The rows of a tensor, of several, or of the output of a model that has them."""
    if isinstance(features, torch.Tensor):
        rows: int = features.numel() // features.shape[-1]
        return rows
    if isinstance(features, list | tuple):
        return sum(map(_rows_in, features))
    pooled = getattr(features, "pooler_output", None)
    return _rows_in(features.last_hidden_state if pooled is None else pooled)  # type: ignore[attr-defined]


def where_it_fails(error: Exception, images_or_sound: str) -> str:
    """That the code of a class fails on such an input, and where; the log has the error itself."""
    logging.getLogger(__name__).debug("%s: not counted", images_or_sound, exc_info=error)
    frames = ((Path(f.f_code.co_filename), line) for f, line in walk_tb(error.__traceback__))
    lines = [f"{file.name}, line {line}" for file, line in frames if "models" in file.parts]
    place = f" ({lines[-1]})" if lines else ""
    return f"its own code fails on {images_or_sound} of this form{place}"
