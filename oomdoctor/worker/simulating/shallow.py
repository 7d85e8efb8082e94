"""The configuration of a model with few of its repeating layers, which stand for all of them."""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from oomdoctor.analysis.simulator.tape import Region
from oomdoctor.records.model import LayerStack
from oomdoctor.worker.training.layers import UNITS, stacks_of

_DEPTHS = {
    "encoder": ("num_layers", "encoder_layers", "num_hidden_layers"),
    "decoder": ("num_decoder_layers", "decoder_layers", "num_hidden_layers"),
    "": ("num_hidden_layers", "num_layers", "n_layer", "n_layers"),
}


class IrregularLayersError(Exception):
    """A model with fewer layers is not the same model with fewer layers."""


def shallow_config(config: Any, stacks: tuple[LayerStack, ...]) -> Any | None:
    """A copy of the configuration with `UNITS` units in each stack; None where it has no such key.

    Lists with an entry for each layer are cut alike.
    """
    shallow = copy.deepcopy(config)
    text = shallow.get_text_config()
    for stack in stacks:
        if stack.units <= UNITS:
            continue
        if not _set_depth(text, stack):
            return None
    return shallow


def in_units_of(stack: LayerStack, every: int) -> LayerStack:
    """The stack in units of a multiple of `every` layers: only every n-th may be treated alike."""
    period = math.lcm(stack.period, every)
    return replace(stack, period=period, units=(stack.layers - stack.prefix) // period)


def is_shallow(model: Any, config: Any, stacks: tuple[LayerStack, ...]) -> bool:
    """Whether a model has the layers that `shallow_config` wanted it to have."""
    found = {stack.path: stack for stack in stacks_of(model, config)}
    for stack in stacks:
        own = found.get(stack.path)
        wanted = min(stack.units, UNITS)
        if own is None or own.layers != _kept(stack, wanted):
            return False
        if own.kinds != stack.kinds[: stack.prefix + wanted * stack.period] + _tail(stack):
            return False
    return True


def units_of(stacks: tuple[LayerStack, ...], simulated: Mapping[int, int]) -> dict[str, Region]:
    """The unit of each layer by module path; prefixes and tails belong to none."""
    units: dict[str, Region] = {}
    for number, stack in enumerate(stacks):
        for position in range(simulated[number] * stack.period):
            path = f"{stack.path}.{stack.prefix + position}"
            units[path] = (number, position // stack.period)
    return units


def _tail(stack: LayerStack) -> tuple[str, ...]:
    return stack.kinds[stack.prefix + stack.units * stack.period :]


def _kept(stack: LayerStack, units: int) -> int:
    return stack.prefix + units * stack.period + len(_tail(stack))


def _set_depth(text: Any, stack: LayerStack) -> bool:
    side = next((word for word in ("encoder", "decoder") if word in stack.path.split(".")), "")
    depth = _kept(stack, UNITS)
    named = [name for name in _DEPTHS[side] if getattr(text, name, None) == stack.layers]
    if not named:
        return False
    for name, value in list(vars(text).items()):
        if isinstance(value, list | tuple) and len(value) == stack.layers:
            tail = len(_tail(stack))
            setattr(text, name, [*value[: depth - tail], *value[len(value) - tail :]])
    for name in named:
        setattr(text, name, depth)
    return True
