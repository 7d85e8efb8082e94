"""Rows of techniques that several programs share: FP8, and the rank of GaLore and APOLLO."""

from __future__ import annotations

import re

from oomdoctor.records.rung.keys import low_rank
from oomdoctor.stacks.names.row import LEFT_OUT, NotTakenError, Row
from oomdoctor.stacks.names.values import flag, integer
from oomdoctor.stacks.partial_config import PartialConfig

_BACKENDS = {
    "ao": "torchao",
    "torchao": "torchao",
    "te": "transformer_engine",
    "transformer_engine": "transformer_engine",
}


def backend(value: object) -> PartialConfig:
    """The library that multiplies in float8; auto leaves the choice to the program."""
    word = str(value).strip().lower()
    if word in ("auto", "none"):
        return {}
    if word not in _BACKENDS:
        raise NotTakenError(f"a rung has no FP8 by {value}")
    return {"fp8_backend": _BACKENDS[word]}


def backend_row(name: str, words: tuple[str, str]) -> Row:
    """The row of the library; `words` are for torchao and for Transformer Engine."""
    spoken = dict(zip(("torchao", "transformer_engine"), words, strict=True))
    return Row(name, ("fp8_backend",), backend, lambda config: spoken.get(config.fp8, LEFT_OUT))


def fp8_row(name: str) -> Row:
    """The switch of FP8, written only if it is on."""

    def read(value: object) -> PartialConfig:
        return {} if value is None else {"fp8_on": flag(value)}

    return Row(name, ("fp8_on",), read, lambda c: True if c.fp8 != "none" else LEFT_OUT)


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


LOW_RANK = (
    Row(
        "optim_args",
        ("optimizer_rank",),
        rank_of,
        lambda config: f"rank={config.optimizer_rank}" if low_rank(config) else LEFT_OUT,
    ),
    Row(
        "optim_target_modules",
        (),
        projected,
        lambda config: "all-linear" if low_rank(config) else LEFT_OUT,
    ),
)
# axolotl takes the arguments as a mapping.
LOW_RANK_MAPPING = (
    Row(
        "optim_args.rank",
        ("optimizer_rank",),
        lambda value: {"optimizer_rank": integer(value)},
        lambda config: config.optimizer_rank if low_rank(config) else LEFT_OUT,
    ),
    Row(
        "optim_target_modules",
        (),
        projected,
        lambda config: "all_linear" if low_rank(config) else LEFT_OUT,
    ),
)
