"""The layers of a model that repeat, and a configuration with fewer of them.

A stack is a list of layers. Its pattern is a prefix, a unit of a few layers that repeats, and a
tail that begins another unit. Layers are equal when their modules, shapes and settings are.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from oomdoctor.analysis.tape import Region
from oomdoctor.records.model import LayerStack

UNITS = 4  # the first, two in the middle that prove each other, the last
_LONGEST_UNIT = 8
_LONGEST_PREFIX = 4
_NOT_THE_KIND = ("layer_idx", "layer_id", "training", "layer_index", "gradient_checkpointing")
_DEPTHS = {
    "encoder": ("num_layers", "encoder_layers", "num_hidden_layers"),
    "decoder": ("num_decoder_layers", "decoder_layers", "num_hidden_layers"),
    "": ("num_hidden_layers", "num_layers", "n_layer", "n_layers"),
}


class IrregularLayersError(Exception):
    """A model with fewer layers is not the same model with fewer layers."""


def stacks_of(model: Any, config: Any) -> tuple[LayerStack, ...]:
    """Every outermost list of at least two modules, with its pattern."""
    return tuple(
        _pattern(path, [_kind(layer, config, i, len(layers)) for i, layer in enumerate(layers)])
        for path, layers in _lists(model)
    )


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


def _lists(model: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    import torch

    for name, child in model.named_children():
        path = f"{prefix}.{name}" if prefix else name
        if isinstance(child, torch.nn.ModuleList) and len(child) > 1:
            yield path, child
        else:
            yield from _lists(child, path)


def _kind(layer: Any, config: Any, position: int, count: int) -> str:
    """Everything that tells one layer from another, in words."""
    parts = []
    for path, module in layer.named_modules():
        settings = {
            name: value
            for name, value in vars(module).items()
            if isinstance(value, bool | int | float | str)
            and not name.startswith("_")
            and name not in _NOT_THE_KIND
        }
        shapes = [(name, tuple(p.shape)) for name, p in module._parameters.items() if p is not None]
        parts.append(f"{path}:{type(module).__name__}{sorted(settings.items())}{shapes}")
    text = config.get_text_config()
    for name, value in sorted(vars(text).items()):
        if isinstance(value, list | tuple) and len(value) == count:
            parts.append(f"{name}={value[position]}")
    return "|".join(parts)


def _pattern(path: str, kinds: list[str]) -> LayerStack:
    """The prefix and unit with the fewest layers to simulate."""
    short = {kind: str(number) for number, kind in enumerate(dict.fromkeys(kinds))}
    words = tuple(short[kind] for kind in kinds)
    best = LayerStack(path, words, prefix=0, period=1, units=0)
    fewest = len(words) + 1
    for prefix in range(min(_LONGEST_PREFIX, len(words) - 1) + 1):
        rest = words[prefix:]
        for period in range(1, min(_LONGEST_UNIT, len(rest)) + 1):
            if any(rest[i] != rest[i % period] for i in range(len(rest))):
                continue
            units = len(rest) // period
            kept = prefix + min(units, UNITS) * period + len(rest) % period
            if kept < fewest:
                fewest, best = kept, LayerStack(path, words, prefix, period, units)
            break
    return best
