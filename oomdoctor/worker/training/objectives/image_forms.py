"""The forms in which models take images, and the shapes of images in each.

Which form a model takes is read from the inputs of its forward pass, and sizes from its config.
"""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from inspect import Parameter, signature
from typing import TYPE_CHECKING, NamedTuple

import torch

from oomdoctor.records.configuration.config import TrainConfig
from oomdoctor.worker.protocol import UnsupportedError

if TYPE_CHECKING:
    from transformers import PretrainedConfig, PreTrainedModel

_USUAL = 448  # pixels a side, where a family takes any size
_USUAL_ALONE = 224  # without text, for an encoder of any size (ResNet, SegFormer)
_VISION = ("vision_config", "vision_model_config", "image_config", "vq_config", "encoder")
_FRAMES = 4  # of a video, as InstructBLIP's are trained with
_FLATTENED = 2048  # patches of an image, as Pix2Struct's image processor makes by default


class Images(NamedTuple):
    """The images of a batch: the shapes of tensors of pixels, numbers beside them by name, and
    how many tokens of its row an image is; None if it has its own place, beside the text.
    """

    pixels: Mapping[str, tuple[int, ...]]
    numbers: Mapping[str, torch.Tensor]
    tokens: int | None = None


class ImagesUnknownError(UnsupportedError):
    """How a model takes images is not known, so it can be trained here on text alone."""


def inputs_of(model: PretrainedConfig) -> Mapping[str, Parameter]:
    """The inputs of the forward pass."""
    return signature(class_of(model).forward).parameters


def class_of(model: PretrainedConfig) -> type[PreTrainedModel]:
    """The class that the config names, or that transformers maps to its type."""
    import transformers
    from transformers.models.auto.modeling_auto import MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES

    mapped = MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES.get(model.model_type, ())
    for name in (*(model.architectures or ()), *([mapped] if isinstance(mapped, str) else mapped)):
        kind: type[PreTrainedModel] | None = getattr(transformers, name, None)
        if kind is not None:
            return kind
    raise UnsupportedError(
        f"transformers {transformers.__version__} has no model of images and text for "
        f"{model.model_type}; train its language model with --task causal-lm"
    )


def vision_of(model: PretrainedConfig) -> PretrainedConfig:
    """The part of the config that is about the vision encoder; the whole one if it has none."""
    parts = {name: getattr(model, name, None) for name in _VISION}
    if not hasattr(parts["encoder"], "num_channels"):
        del parts["encoder"]  # of text
    return next((part for part in parts.values() if part is not None), model)


def images_of(rows: int, config: TrainConfig, model: PretrainedConfig) -> Images:
    """The images of `rows` rows, in the form that the forward pass takes."""
    inputs = inputs_of(model).keys()
    for marks, make in _FORMS:
        if set(marks) <= inputs:
            try:
                images = make(rows, config, model)
            except AttributeError as error:  # the config has no such key
                raise ImagesUnknownError(
                    f"config.json of {model.model_type} has no {error.name} of its images"
                ) from error
            if images.tokens is None:
                images = images._replace(tokens=getattr(model, "latent_query_num", None))
            return images
    raise ImagesUnknownError(f"the image inputs of {model.model_type} are not known")


def classified(
    rows: int, config: TrainConfig, model: PretrainedConfig, generator: torch.Generator
) -> dict[str, torch.Tensor]:
    """The inputs of a model that classifies images, by name."""
    try:
        inputs = inputs_of(model)
    except UnsupportedError:  # code of the hub
        inputs = {"pixel_values": Parameter("pixel_values", Parameter.KEYWORD_ONLY)}
    vision = vision_of(model)
    if "spatial_shapes" in inputs:
        shapes, numbers, _ = _listed(rows, replace(config, images=1), model)
        return {**numbers, "pixel_values": torch.rand(shapes["pixel_values"], generator=generator)}
    if "pixel_values" not in inputs:  # each pixel is a token
        pixels = (rows, vision.n_positions)
        return {"input_ids": torch.randint(vision.vocab_size - 1, pixels, generator=generator)}
    size = config.image_size or getattr(vision, "image_size", None) or _USUAL_ALONE
    height, width = (size, size) if isinstance(size, int) else tuple(size)
    shape = (rows, getattr(vision, "num_channels", 3), height, width)
    return {"pixel_values": torch.randn(shape, generator=generator)}


def _patches(rows: int, config: TrainConfig, model: PretrainedConfig) -> Images:
    """Qwen2-VL and its relatives: all patches of all images in one row each, of any size."""
    vision = vision_of(model)
    patch, merge, count = vision.patch_size, _merge(vision), rows * config.images
    side = _side(config, patch, merge)
    channels = next((n for name in _CHANNELS if (n := getattr(vision, name, None))), 3)
    width = channels * getattr(vision, "temporal_patch_size", 1) * patch * patch
    grid = torch.tensor([[1, side, side]]).repeat(count, 1)
    tokens = (side // merge) ** 2
    return Images({"pixel_values": (count * side * side, width)}, {"image_grid_thw": grid}, tokens)


_CHANNELS = ("in_channels", "in_chans", "num_channels")


def _merge(vision: PretrainedConfig) -> int:
    """How many patches a side become one token."""
    sizes = (getattr(vision, name, None) for name in ("spatial_merge_size", "merge_size"))
    return next((size for size in sizes if isinstance(size, int)), 2)


def _side(config: TrainConfig, patch: int, merge: int) -> int:
    """Patches a side, of which `merge` become one token, if images have any size."""
    return max(1, round((config.image_size or _USUAL) / (patch * merge))) * merge


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
    patch, merge = vision.patch_size, getattr(model, "spatial_merge_size", 1)
    side, count = _side(config, patch, merge) * patch, rows * config.images
    sizes = torch.tensor([[side, side]]).repeat(count, 1)
    return Images({"pixel_values": (count, 3, side, side)}, {"image_sizes": sizes})


def _tiles(rows: int, config: TrainConfig, model: PretrainedConfig) -> Images:
    """LLaVA-NeXT: the whole image, and tiles of it, each of the encoder's size."""
    own = vision_of(model).image_size
    side = config.image_size or own
    module = importlib.import_module(class_of(model).__module__)
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
    side = _side(config, vision.patch_size, pool)
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


def _with_mask(rows: int, config: TrainConfig, model: PretrainedConfig) -> Images:
    """Idefics: the images of each row, which cross-attention sees beside the text."""
    side, each = _own_size(config, model), (rows, config.images)
    mask = torch.ones((rows, config.sequence_length, config.images), dtype=torch.int64)
    return Images({"pixel_values": (*each, 3, side, side)}, {"image_attention_mask": mask}, 0)


def _flattened(rows: int, config: TrainConfig, model: PretrainedConfig) -> Images:
    """Pix2Struct, Kosmos-2.5: patches of each image, each with its row and column."""
    vision, count = vision_of(model), rows * config.images
    patches = getattr(vision, "max_num_patches", _FLATTENED)
    if config.image_size:
        patches = (config.image_size // vision.patch_size) ** 2
    numbers = {}
    if model.is_encoder_decoder:
        numbers["attention_mask"] = torch.ones((count, patches), dtype=torch.int64)
    shape = (count, patches, vision.patch_embed_hidden_size + 2)
    return Images({"flattened_patches": shape}, numbers)


def _listed(rows: int, config: TrainConfig, model: PretrainedConfig) -> Images:
    """SigLIP 2, LFM2-VL: patches of each image in a list, with how many there are a side."""
    vision, count = vision_of(model), rows * config.images
    factor = getattr(model, "downsample_factor", 1)
    side = math.isqrt(vision.num_patches)
    if factor > 1 or config.image_size:
        side = _side(config, vision.patch_size, factor)
    numbers = {
        "spatial_shapes": torch.tensor([[side, side]]).repeat(count, 1),
        "pixel_attention_mask": torch.ones((count, side * side), dtype=torch.int64),
    }
    shape = (count, side * side, 3 * vision.patch_size**2)
    return Images({"pixel_values": shape}, numbers)


def _asked(rows: int, config: TrainConfig, model: PretrainedConfig) -> Images:
    """InstructBLIP: images or videos, and the text again, for the encoder that reads both."""
    count, images = rows * config.images, _whole(rows, config, model)
    if not hasattr(class_of(model), "get_image_features"):
        shape = images.pixels["pixel_values"]
        images = images._replace(pixels={"pixel_values": (count, _FRAMES, *shape[1:])})
    length = min(config.sequence_length, model.qformer_config.max_position_embeddings)
    text = torch.full((count, length), 3)
    return images._replace(numbers={"qformer_input_ids": text})


_Make = Callable[[int, TrainConfig, "PretrainedConfig"], Images]
# By the inputs that only models of a form take; the first that fits counts.
_FORMS: tuple[tuple[tuple[str, ...], _Make], ...] = (
    (("flattened_patches",), _flattened),
    (("pixel_values", "image_grid_thw"), _patches),
    (("pixel_values", "image_position_ids"), _placed),
    (("pixel_values", "aspect_ratio_ids"), _tiled_beside),
    (("pixel_values", "image_attention_mask"), _with_mask),
    (("pixel_values", "spatial_shapes"), _listed),
    (("pixel_values", "qformer_input_ids"), _asked),
    (("pixel_values", "pixel_attention_mask"), _by_row),
    (("pixel_values", "image_sizes"), _sized),
    (("pixel_values",), _whole),
)
