"""Configure a model with a few of its repeating layers, which stand for all of them."""

from __future__ import annotations

import copy
import math
from dataclasses import replace
from typing import TYPE_CHECKING

from oomdoctor.analysis.simulator.tape import Region
from oomdoctor.records.model import LayerStack
from oomdoctor.worker.training.layers import UNITS, stacks_of

if TYPE_CHECKING:
    from transformers import PretrainedConfig, PreTrainedModel

_DEPTHS = {
    "encoder": ("num_layers", "encoder_layers", "num_hidden_layers"),
    "decoder": ("num_decoder_layers", "decoder_layers", "num_hidden_layers"),
    "": ("num_hidden_layers", "num_layers", "n_layer", "n_layers"),
}


class IrregularLayersError(Exception):
    """The model built with fewer layers differs in more than its number of layers."""


def shallow_config(
    config: PretrainedConfig, stacks: tuple[LayerStack, ...]
) -> PretrainedConfig | None:
    """A copy of the configuration with `UNITS` units in each stack; None if no key sets the depth.

    Lists with one entry per layer are cut in the same way.
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
    """The stack with units that are a multiple of `every` layers, so that all units are alike."""
    period = math.lcm(stack.period, every)
    return replace(stack, period=period, units=(stack.layers - stack.prefix) // period)


def after_frozen(stacks: tuple[LayerStack, ...], frozen: int) -> tuple[LayerStack, ...]:
    """The stacks with the first `frozen` layers of all in their prefixes: they have no gradients.

    `frozen` counts through all stacks, as `freeze` does.
    """
    found = []
    for stack in stacks:
        here = min(frozen, stack.layers)
        frozen -= here
        skipped = -(-max(0, here - stack.prefix) // stack.period)
        prefix = min(stack.prefix + skipped * stack.period, stack.layers)
        units = (stack.layers - prefix) // stack.period
        found.append(replace(stack, prefix=prefix, units=units))
    return tuple(found)


def is_shallow(
    model: PreTrainedModel, config: PretrainedConfig, stacks: tuple[LayerStack, ...]
) -> bool:
    """Whether a model has the layers that its `shallow_config` was meant to give it."""
    found = {stack.path: stack for stack in stacks_of(model, config)}
    for stack in stacks:
        own = found.get(stack.path)
        wanted = min(stack.units, UNITS)
        if own is None or own.layers != _kept(stack, wanted):
            return False
        if own.kinds != stack.kinds[: stack.prefix + wanted * stack.period] + _tail(stack):
            return False
    return True


def depths_of(stacks: tuple[LayerStack, ...]) -> dict[int, tuple[int, int]]:
    """(simulated, real) units of each stack, by its number."""
    return {number: (min(stack.units, UNITS), stack.units) for number, stack in enumerate(stacks)}


def units_of(stacks: tuple[LayerStack, ...]) -> dict[str, Region]:
    """The unit of each simulated layer by module path; prefixes and tails have no unit."""
    units: dict[str, Region] = {}
    for number, (simulated, _) in depths_of(stacks).items():
        stack = stacks[number]
        for position in range(simulated * stack.period):
            path = f"{stack.path}.{stack.prefix + position}"
            units[path] = (number, position // stack.period)
    return units


def _tail(stack: LayerStack) -> tuple[str, ...]:
    return stack.kinds[stack.prefix + stack.units * stack.period :]


def _kept(stack: LayerStack, units: int) -> int:
    return stack.prefix + units * stack.period + len(_tail(stack))


def _set_depth(text: PretrainedConfig, stack: LayerStack) -> bool:
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
