"""What programs say about images: their size, and whether the vision encoder is trained."""

from __future__ import annotations

import math

from oomdoctor.stacks.names.row import NotTakenError
from oomdoctor.stacks.names.values import flag, integer
from oomdoctor.stacks.partial_config import PartialConfig


def side(value: object) -> PartialConfig:
    """Pixels a side; of width and height the side of the square with as many pixels."""
    if value is None:
        return {}
    if isinstance(value, list | tuple):
        if len(value) != 2:
            raise NotTakenError("a rung has images of one size")
        return {"image_size": math.isqrt(integer(value[0]) * integer(value[1]))}
    return {"image_size": integer(value)}


def side_of_pixels(value: object) -> PartialConfig:
    """The most pixels of an image: larger ones are made smaller, so this is the worst case."""
    return {} if value is None else {"image_size": math.isqrt(integer(value))}


def frozen_vision(value: object) -> PartialConfig:
    """A switch that keeps the vision encoder as it is."""
    return {} if value is None else {"vision": "frozen" if flag(value) else "trained"}


def trainable_vision(value: object) -> PartialConfig:
    """torchtune's word for its encoder: frozen, lora or full."""
    if isinstance(value, bool):
        return {"vision": "trained" if value else "frozen"}
    return {"vision": "frozen" if str(value).strip().lower() == "frozen" else "trained"}
