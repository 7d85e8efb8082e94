"""Batches of images and text for vision-language models, as their processors make them.

How a model takes images is read from itself: the inputs of its forward pass and its config say
which of a few forms pixels have, and its own vision encoder how many tokens an image becomes. All
images of a batch have one size. Labels leave out the tokens of images, as TRL's collator does.
"""

from __future__ import annotations

import copy
import importlib
import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import lru_cache
from inspect import Parameter, signature
from typing import TYPE_CHECKING, NamedTuple

import torch

from oomdoctor.records.configuration.config import TrainConfig
from oomdoctor.worker.protocol import UnsupportedError
from oomdoctor.worker.tracing import real_values
from oomdoctor.worker.tracing.real_values import ShapesOnly
from oomdoctor.worker.training.setup import Setup

if TYPE_CHECKING:
    from transformers import PretrainedConfig, PreTrainedModel

TOWERS = ("visual", "vision_tower", "vision_model", "vision_encoder", "image_encoder")
"""The names of vision encoders in models."""
_USUAL = 448  # pixels a side, where a family takes any size
_SPECIAL = ("image_token_id", "image_token_index", "video_token_id", "vision_start_token_id")
_VISION = ("vision_config", "vision_model_config", "image_config", "vq_config")


class Images(NamedTuple):
    """The images of a batch: the shapes of tensors of pixels, numbers beside them by name, and
    how many tokens of its row an image is; None if it has its own place, beside the text.
    """

    pixels: Mapping[str, tuple[int, ...]]
    numbers: Mapping[str, torch.Tensor]
    tokens: int | None = None


def with_images(
    ids: torch.Tensor, config: TrainConfig, model: PretrainedConfig, generator: torch.Generator
) -> dict[str, torch.Tensor]:
    """The tensors of a whole batch with rows `ids` of (sequences, length), by name.

    Raises:
        UnsupportedError: the model's images are not known, or do not fit into a sequence.
    """
    rows, length = ids.shape
    within, numbers = _numbers_beside(rows, length, config, model)
    batch = {"input_ids": ids, "attention_mask": torch.ones_like(ids), "labels": ids.clone()}
    batch |= numbers
    if why_text_alone(config, model) is not None or not config.images:
        return batch
    batch["input_ids"] = torch.where(within, _image_token(model), ids)
    batch["labels"] = torch.where(within, -100, ids)
    pixels = _images_of(rows, config, model).pixels
    return batch | {name: torch.randn(shape, generator=generator) for name, shape in pixels.items()}


def numbers_of(
    rows: int, length: int, config: TrainConfig, model: PretrainedConfig
) -> dict[str, torch.Tensor]:
    """The tensors of whole numbers of a batch; any number stands for a token of text."""
    within, numbers = _numbers_beside(rows, length, config, model)
    text = torch.full((rows, length), 3)
    if within.any():
        text = torch.where(within, _image_token(model), text)
    return numbers | {"input_ids": text, "attention_mask": torch.ones_like(text)}


def _numbers_beside(
    rows: int, length: int, config: TrainConfig, model: PretrainedConfig
) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    """Which tokens are of images, and what a batch has beside text and pixels."""
    inputs = _inputs_of(model)
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
        numbers |= _images_of(rows, config, model).numbers
    for name in ("token_type_ids", "mm_token_type_ids"):
        if name in inputs and (config.images or name == "token_type_ids"):
            numbers[name] = within.to(torch.int64)
    return within, numbers


def _inputs_of(model: PretrainedConfig) -> Mapping[str, Parameter]:
    return signature(_class_of(model).forward).parameters


def _class_of(model: PretrainedConfig) -> type[PreTrainedModel]:
    """The class that the config names, or that transformers maps to its type."""
    import transformers
    from transformers.models.auto.modeling_auto import MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES

    mapped = MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES.get(model.model_type, ())
    for name in (*(model.architectures or ()), *([mapped] if isinstance(mapped, str) else mapped)):
        found: type[PreTrainedModel] | None = getattr(transformers, name, None)
        if found is not None:
            return found
    raise UnsupportedError(
        f"transformers {transformers.__version__} has no model of images and text for "
        f"{model.model_type}; train its language model with --task causal-lm"
    )


def _image_token(model: PretrainedConfig) -> int:
    """The token that stands for a part of an image."""
    names = [
        name for name in vars(model) if re.fullmatch(r"(image|media)\w*_token_(id|index)", name)
    ]
    for name in sorted(names, key=len):
        number = getattr(model, name)
        if isinstance(number, int) and not re.search("start|end|begin|row|newline", name):
            return number
    raise ImagesUnknownError(f"config.json of {model.model_type} names no token for images")


class ImagesUnknownError(UnsupportedError):
    """How a model takes images is not known, so it can be trained here on text alone."""


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
        _image_token(model)
    except ImagesUnknownError as error:
        inputs = _inputs_of(model)
        if "pixel_values" in inputs and inputs["pixel_values"].default is Parameter.empty:
            raise UnsupportedError(
                f"{model.model_type} needs images in each row, and {error}"
            ) from error
        return str(error)
    return None


def plain_tokens(model: PretrainedConfig, vocabulary: int) -> int:
    """How many of the first tokens have no meaning for images."""
    special = [getattr(model, name, None) for name in _SPECIAL]
    return min(one for one in (vocabulary, *special) if isinstance(one, int) and one > 1)


def vision_of(model: PretrainedConfig) -> PretrainedConfig:
    """The part of the config that is about the vision encoder; the whole one if it has none."""
    parts = (getattr(model, name, None) for name in _VISION)
    return next((part for part in parts if part is not None), model)


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


def _images_of(rows: int, config: TrainConfig, model: PretrainedConfig) -> Images:
    """The images of `rows` rows, in the form that the forward pass takes."""
    inputs = _inputs_of(model).keys()
    for marks, make in _FORMS:
        if {"pixel_values", *marks} <= inputs:
            try:
                return make(rows, config, model)
            except AttributeError as error:  # the config has no such key
                raise ImagesUnknownError(
                    f"the images of {model.model_type} have a size that is not known ({error})"
                ) from error
    raise ImagesUnknownError(f"the image inputs of {model.model_type} are not known")


def _tokens(config: TrainConfig, model: PretrainedConfig) -> int:
    """How many tokens of its row an image is: the rows of features that the encoder makes of it."""
    asked = _Asked(_class_of(model), model.to_json_string(), config.image_size, model)
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
            with real_values.computing(), torch.no_grad():
                images = _images_of(1, config, model)
                stated = images.tokens
                with ShapesOnly(), real_values.lists_known():
                    whole = _class_of(model)._from_config(copy.deepcopy(built))
                    return _rows_in(_encoded(whole, images))
        except ImagesUnknownError as error:
            return error
        except Exception as error:
            if type(error) is UnsupportedError:
                raise
            reason = _short(error)
    if stated is not None and not _has_encoder(model):
        return stated
    return ImagesUnknownError(
        f"how many tokens an image of {model.model_type} takes is not known ({reason})"
    )


def _has_encoder(model: PretrainedConfig) -> bool:
    """Whether the class, or the model inside it, can be asked for features of images."""
    whole = _class_of(model)
    module = importlib.import_module(whole.__module__)
    inside = getattr(module, whole.__name__.replace("ForConditionalGeneration", "Model"), whole)
    return any(hasattr(kind, "get_image_features") for kind in (whole, inside))


def _encoded(model: PreTrainedModel, images: Images) -> object:
    """What the vision encoder of a fake model makes of images."""
    dtype = next(model.parameters()).dtype
    inputs = {name: torch.empty(shape, dtype=dtype) for name, shape in images.pixels.items()}
    for name, values in images.numbers.items():
        inputs[name] = torch.empty(values.shape, dtype=values.dtype)
        real_values.know(inputs[name], values)
    name = "get_image_features"
    encode: Callable[..., object] = getattr(model if hasattr(model, name) else model.model, name)
    takes = signature(encode).parameters
    settings = ("vision_feature_layer", "vision_feature_select_strategy")
    given = {name: getattr(model.config, name) for name in settings if hasattr(model.config, name)}
    given |= inputs
    return encode(**{name: value for name, value in given.items() if name in takes})


def _rows_in(features: object) -> int:
    """The rows of a tensor, of several, or of the output of a model that has them."""
    if isinstance(features, torch.Tensor):
        rows: int = features.numel() // features.shape[-1]
        return rows
    if isinstance(features, list | tuple):
        return sum(map(_rows_in, features))
    pooled = getattr(features, "pooler_output", None)
    return _rows_in(features.last_hidden_state if pooled is None else pooled)  # type: ignore[attr-defined]


def _short(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0][:120]}" if lines else type(error).__name__


def _patches(rows: int, config: TrainConfig, model: PretrainedConfig) -> Images:
    """Qwen2-VL and its relatives: all patches of all images in one row each, of any size."""
    vision = vision_of(model)
    side, patch, count = _side(config, model), vision.patch_size, rows * config.images
    channels = next((n for name in _CHANNELS if (n := getattr(vision, name, None))), 3)
    width = channels * getattr(vision, "temporal_patch_size", 1) * patch * patch
    grid = torch.tensor([[1, side, side]]).repeat(count, 1)
    tokens = (side // _merge(vision)) ** 2
    return Images({"pixel_values": (count * side * side, width)}, {"image_grid_thw": grid}, tokens)


_CHANNELS = ("in_channels", "in_chans", "num_channels")


def _merge(vision: PretrainedConfig) -> int:
    """How many patches a side become one token."""
    sizes = (getattr(vision, name, None) for name in ("spatial_merge_size", "merge_size"))
    return next((size for size in sizes if isinstance(size, int)), 2)


def _side(config: TrainConfig, model: PretrainedConfig) -> int:
    """Patches a side, of which `_merge` become one token."""
    vision = vision_of(model)
    merge = _merge(vision)
    return _steps(config, vision.patch_size * merge) * merge


def _steps(config: TrainConfig, pixels: int) -> int:
    """How many steps of so many pixels a side has, if images have any size."""
    return max(1, round((config.image_size or _USUAL) / pixels))


def _own_size(config: TrainConfig, model: PretrainedConfig) -> int:
    """Pixels a side of the images that an encoder of one size takes."""
    own = getattr(vision_of(model), "image_size", None)
    if isinstance(own, list | tuple):
        own = own[0]
    if not isinstance(own, int):
        return config.image_size or _USUAL
    if config.image_size not in (0, own):
        raise UnsupportedError(f"this model takes images of {own} pixels a side; leave image_size")
    return own


def _whole(rows: int, config: TrainConfig, model: PretrainedConfig) -> Images:
    """LLaVA, Gemma 3, InternVL: images of the encoder's size."""
    side = _own_size(config, model)
    vision, tokens = vision_of(model), None
    if hasattr(model, "vision_feature_select_strategy") and "downsample_ratio" not in vars(model):
        own = (vision.image_size // vision.patch_size) ** 2
        tokens = own if model.vision_feature_select_strategy == "default" else own + 1
    return Images({"pixel_values": (rows * config.images, 3, side, side)}, {}, tokens)


def _sized(rows: int, config: TrainConfig, model: PretrainedConfig) -> Images:
    """Pixtral's encoder: images of any size, with their heights and widths."""
    vision = vision_of(model)
    if hasattr(model, "image_grid_pinpoints"):
        return _tiles(rows, config, model)
    if vision.model_type != "pixtral":
        return _whole(rows, config, model)
    step = vision.patch_size * getattr(model, "spatial_merge_size", 1)
    side, count = _steps(config, step) * step, rows * config.images
    sizes = torch.tensor([[side, side]]).repeat(count, 1)
    return Images({"pixel_values": (count, 3, side, side)}, {"image_sizes": sizes})


def _tiles(rows: int, config: TrainConfig, model: PretrainedConfig) -> Images:
    """LLaVA-NeXT: the whole image, and tiles of it, each of the encoder's size."""
    own = vision_of(model).image_size
    side = config.image_size or own
    module = importlib.import_module(_class_of(model).__module__)
    tiles = module.image_size_to_num_patches([side, side], model.image_grid_pinpoints, own)
    count = rows * config.images
    sizes = torch.tensor([[side, side]]).repeat(count, 1)
    return Images({"pixel_values": (count, tiles, 3, own, own)}, {"image_sizes": sizes})


def _by_row(rows: int, config: TrainConfig, model: PretrainedConfig) -> Images:
    """Idefics3 and SmolVLM: the images of each row, of the encoder's size and not cut."""
    side = _own_size(config, model)
    vision, tokens = vision_of(model), None
    if hasattr(model, "scale_factor"):
        tokens = (vision.image_size // vision.patch_size) ** 2 // model.scale_factor**2
    return Images({"pixel_values": (rows, config.images, 3, side, side)}, {}, tokens)


def _placed(rows: int, config: TrainConfig, model: PretrainedConfig) -> Images:
    """Gemma 4: patches of each image in rows, with where they are."""
    vision = vision_of(model)
    pool = getattr(vision, "pooling_kernel_size", 1)
    side = _steps(config, vision.patch_size * pool) * pool
    count = rows * config.images
    places = torch.cartesian_prod(torch.arange(side), torch.arange(side)).flip(1)
    shape = (count, side * side, 3 * vision.patch_size**2)
    numbers = {"image_position_ids": places.expand(count, -1, -1).contiguous()}
    return Images({"pixel_values": shape}, numbers, (side // pool) ** 2)


def _tiled_beside(rows: int, config: TrainConfig, model: PretrainedConfig) -> Images:
    """Llama 3.2 Vision: tiles of each image, for layers with cross-attention."""
    vision = vision_of(model)
    side, tiles = vision.image_size, vision.max_num_tiles
    each = (rows, config.images)
    numbers = {
        "aspect_ratio_ids": torch.ones(each, dtype=torch.int64),
        "aspect_ratio_mask": torch.ones((*each, tiles), dtype=torch.int64),
        "cross_attention_mask": torch.ones(
            (rows, config.sequence_length, config.images, tiles), dtype=torch.int64
        ),
    }
    return Images({"pixel_values": (*each, tiles, 3, side, side)}, numbers, 1)


_Make = Callable[[int, TrainConfig, "PretrainedConfig"], Images]
# By the inputs beside pixels that only models of a form take; the first that fits counts.
_FORMS: tuple[tuple[tuple[str, ...], _Make], ...] = (
    (("image_grid_thw",), _patches),
    (("image_position_ids",), _placed),
    (("aspect_ratio_ids",), _tiled_beside),
    (("pixel_attention_mask",), _by_row),
    (("image_sizes",), _sized),
    ((), _whole),
)
