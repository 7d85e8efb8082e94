"""What several programs share: FP8, the rank of GaLore and APOLLO, and images."""

from __future__ import annotations

import math
import re

from oomdoctor.records.configuration.keys import low_rank
from oomdoctor.stacks.names.row import LEFT_OUT, NotTakenError, Row, Write
from oomdoctor.stacks.names.values import among, flag, given, integer, on_if, switched
from oomdoctor.stacks.partial_config import PartialConfig


def backend_row(name: str, words: tuple[str, str]) -> Row:
    """The row of the library; `words` are for torchao and for Transformer Engine."""
    spoken = dict(zip(("torchao", "transformer_engine"), words, strict=True))
    read = among("fp8 backend", "a rung has no FP8 by {}")
    return Row(name, ("fp8_backend",), read, lambda config: spoken.get(config.fp8, LEFT_OUT))


def fp8_row(name: str) -> Row:
    """The switch of FP8, written only if it is on."""
    return Row(name, ("fp8_on",), switched("fp8_on"), on_if(lambda c: c.fp8 != "none"))


def rank_of(value: object) -> PartialConfig:
    """The rank in `optim_args`, which is text such as `rank=64, update_proj_gap=200`."""
    found = re.search(r"\brank\s*[=:]\s*(\d+)", str(value or ""))
    if found is None:
        raise NotTakenError("the optimizer has its usual arguments")
    return {"optimizer_rank": int(found[1])}


def projected(value: object) -> PartialConfig:
    """The modules whose gradients are projected."""
    if value is None or str(value).strip().lower().replace("_", "-") in ("all-linear", "[]"):
        return {}
    raise NotTakenError("a rung projects the gradients of all linear layers")


def _where_projected(write: Write) -> Write:
    return lambda config: write(config) if low_rank(config) else LEFT_OUT


LOW_RANK = (
    Row(
        "optim_args",
        ("optimizer_rank",),
        rank_of,
        _where_projected(lambda config: f"rank={config.optimizer_rank}"),
    ),
    Row("optim_target_modules", (), projected, _where_projected(lambda _: "all-linear")),
)
# axolotl takes the arguments as a mapping.
LOW_RANK_MAPPING = (
    Row(
        "optim_args.rank",
        ("optimizer_rank",),
        lambda value: {"optimizer_rank": integer(value)},
        _where_projected(lambda config: config.optimizer_rank),
    ),
    Row("optim_target_modules", (), projected, _where_projected(lambda _: "all_linear")),
)


def side(value: object) -> PartialConfig:
    """Pixels a side; of width and height the side of the square with as many pixels."""
    if value is None:
        return {}
    if isinstance(value, list | tuple):
        if len(value) != 2:
            raise NotTakenError("a rung has images of one size")
        return {"image_size": math.isqrt(integer(value[0]) * integer(value[1]))}
    return {"image_size": integer(value)}


# The most pixels of an image: larger ones are made smaller, so this is the worst case.
side_of_pixels = given("image_size", lambda value: math.isqrt(integer(value)))
# A switch that keeps the vision encoder as it is.
frozen_vision = given("vision", lambda value: "frozen" if flag(value) else "trained")


def trainable_vision(value: object) -> PartialConfig:
    """torchtune's word for its encoder: frozen, lora or full."""
    if isinstance(value, bool):
        return {"vision": "trained" if value else "frozen"}
    return {"vision": "frozen" if str(value).strip().lower() == "frozen" else "trained"}
