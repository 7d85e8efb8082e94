"""Batches of images and text for vision-language models, as their processors make them.

Each family has its own form of pixels and its own number of tokens for an image, which the config
gives (transformers 4.51 to 5.23: the image processors and processors of these models). All images
of a batch have one size. Labels leave out the tokens of images, as TRL's collator does.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from fractions import Fraction
from inspect import signature
from typing import TYPE_CHECKING, NamedTuple

import torch

from oomdoctor.records.configuration.config import TrainConfig
from oomdoctor.worker.protocol import UnsupportedError
from oomdoctor.worker.training.setup import Setup

if TYPE_CHECKING:
    from transformers import PretrainedConfig

TOWERS = ("visual", "vision_tower", "vision_model")
"""The names of vision encoders in models."""
_USUAL = 448  # pixels a side, where a family takes any size
_SPECIAL = ("image_token_id", "image_token_index", "video_token_id", "vision_start_token_id")


class Images(NamedTuple):
    """The tensors of all images of a batch by name."""

    tensors: dict[str, torch.Tensor]
    token_types: bool = False


def with_images(
    ids: torch.Tensor, config: TrainConfig, model: PretrainedConfig, generator: torch.Generator
) -> dict[str, torch.Tensor]:
    """The tensors of a whole batch with rows `ids` of (sequences, length), by name.

    Raises:
        UnsupportedError: the family is not known, or its images do not fit into a sequence.
    """
    family = _FAMILIES.get(model.model_type)
    if family is None:
        raise UnsupportedError(
            f"the image inputs of {model.model_type} are not known; known: "
            f"{', '.join(_FAMILIES)}; or train its language model with --task causal-lm"
        )
    if config.images == 0:
        return {"input_ids": ids, "attention_mask": torch.ones_like(ids), "labels": ids.clone()}
    found = family.make(len(ids), config, model, generator)
    tokens = family.tokens(config, model)
    taken = config.images * tokens
    if taken >= config.sequence_length:
        raise UnsupportedError(
            f"{config.images} images of {tokens:,} tokens do not fit into a sequence of "
            f"{config.sequence_length:,}; set images, image_size or --seq-len"
        )
    within = (torch.arange(config.sequence_length) < taken).expand_as(ids)
    text = torch.where(within, image_token(model), ids)
    batch = {
        "input_ids": text,
        "attention_mask": torch.ones_like(ids),
        "labels": torch.where(within, -100, ids),
        **found.tensors,
    }
    if found.token_types and _takes_token_types(model):
        batch["mm_token_type_ids"] = within.to(torch.int64)
    return batch


def _takes_token_types(model: PretrainedConfig) -> bool:
    """Whether the model wants to know which tokens are of images, as transformers 5 does."""
    kinds = importlib.import_module("transformers")
    made = [getattr(kinds, name, None) for name in model.architectures or ()]
    return any("mm_token_type_ids" in signature(kind.forward).parameters for kind in made if kind)


def image_token(model: PretrainedConfig) -> int:
    """The token that stands for a part of an image."""
    number = getattr(model, "image_token_id", None)
    return int(model.image_token_index if number is None else number)


def share_of_images(config: TrainConfig, model: PretrainedConfig) -> Fraction:
    """The share of the tokens of each row that stand for parts of images."""
    taken = config.images * _FAMILIES[model.model_type].tokens(config, model)
    return Fraction(taken, config.sequence_length)


def plain_tokens(model: PretrainedConfig, vocabulary: int) -> int:
    """How many of the first tokens have no meaning for images."""
    special = [getattr(model, name, None) for name in _SPECIAL]
    return min(number for number in (vocabulary, *special) if isinstance(number, int))


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


def _patches(
    sequences: int, config: TrainConfig, model: PretrainedConfig, generator: torch.Generator
) -> Images:
    """Qwen2-VL and Qwen2.5-VL: all patches of all images in one row each, of any size."""
    vision = model.vision_config
    patch = vision.patch_size
    side = _side(config, model)
    channels = getattr(vision, "in_channels", None) or getattr(vision, "in_chans", 3)
    width = channels * vision.temporal_patch_size * patch * patch
    count = sequences * config.images
    pixels = torch.randn(count * side * side, width, generator=generator)
    grid = torch.tensor([[1, side, side]]).repeat(count, 1)
    tensors = {"pixel_values": pixels, "image_grid_thw": grid}
    return Images(tensors, token_types=True)


def _patches_tokens(config: TrainConfig, model: PretrainedConfig) -> int:
    tokens: int = (_side(config, model) // model.vision_config.spatial_merge_size) ** 2
    return tokens


def grid_of(config: TrainConfig, model: PretrainedConfig) -> tuple[int, int, int] | None:
    """Frames, rows and columns of patches of each image; None if the model takes no such grid."""
    family = _FAMILIES.get(model.model_type)
    if family is None or family.make is not _patches or config.images == 0:
        return None
    side = _side(config, model)
    return 1, side, side


def _side(config: TrainConfig, model: PretrainedConfig) -> int:
    """Patches a side, of which `spatial_merge_size` become one token."""
    merge: int = model.vision_config.spatial_merge_size
    patch: int = model.vision_config.patch_size
    return max(1, round((config.image_size or _USUAL) / (patch * merge))) * merge


def _whole(
    sequences: int, config: TrainConfig, model: PretrainedConfig, generator: torch.Generator
) -> Images:
    """LLaVA: images of the encoder's size."""
    side = _fixed_size(config, model.vision_config.image_size)
    pixels = torch.randn(sequences * config.images, 3, side, side, generator=generator)
    return Images({"pixel_values": pixels})


def _whole_tokens(_: TrainConfig, model: PretrainedConfig) -> int:
    vision = model.vision_config
    own: int = (vision.image_size // vision.patch_size) ** 2
    return own if model.vision_feature_select_strategy == "default" else own + 1


def _by_row(
    sequences: int, config: TrainConfig, model: PretrainedConfig, generator: torch.Generator
) -> Images:
    """Idefics3 and SmolVLM: the images of each row, of the encoder's size and not cut."""
    side = _fixed_size(config, model.vision_config.image_size)
    shape = (sequences, config.images, 3, side, side)
    return Images({"pixel_values": torch.randn(shape, generator=generator)})


def _by_row_tokens(_: TrainConfig, model: PretrainedConfig) -> int:
    vision = model.vision_config
    tokens: int = (vision.image_size // vision.patch_size) ** 2 // model.scale_factor**2
    return tokens


def images_read(config: TrainConfig, model: PretrainedConfig) -> int:
    """What the model reads back when it counts the images of a row; 1 if it counts none."""
    family = _FAMILIES.get(model.model_type)
    return config.images if family is not None and family.make is _by_row else 1


def _fixed_size(config: TrainConfig, own: int) -> int:
    if config.image_size not in (0, own):
        raise UnsupportedError(f"this model takes images of {own} pixels a side; leave image_size")
    return own


class _Family(NamedTuple):
    """How the images of a batch are made, and the tokens of one image in the text."""

    make: Callable[[int, TrainConfig, PretrainedConfig, torch.Generator], Images]
    tokens: Callable[[TrainConfig, PretrainedConfig], int]


_FAMILIES = {
    "qwen2_vl": _Family(_patches, _patches_tokens),
    "qwen2_5_vl": _Family(_patches, _patches_tokens),
    "llava": _Family(_whole, _whole_tokens),
    "idefics3": _Family(_by_row, _by_row_tokens),
    "smolvlm": _Family(_by_row, _by_row_tokens),
}
