"""Find the layers of a model that repeat.

A stack is a list of layers. Its pattern is a prefix, a unit of a few layers that repeats, and a
tail that begins another unit. Layers are equal if their modules, shapes and settings are equal.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from oomdoctor.records.model import LayerStack

if TYPE_CHECKING:
    from torch.nn import Module, ModuleList
    from transformers import PretrainedConfig

UNITS = 4  # the first, two in the middle that must be equal, the last
_LONGEST_UNIT = 8
_LONGEST_PREFIX = 4
_NOT_COMPARED = ("layer_idx", "layer_id", "training", "layer_index", "gradient_checkpointing")


def stacks_of(model: Module, config: PretrainedConfig) -> tuple[LayerStack, ...]:
    """Every outermost list of two or more modules, with its pattern."""
    return tuple(
        _pattern(path, [_kind(layer, config, i, len(layers)) for i, layer in enumerate(layers)])
        for path, layers in _lists(model)
    )


def _lists(model: Module, prefix: str = "") -> Iterator[tuple[str, ModuleList]]:
    import torch

    for name, child in model.named_children():
        path = f"{prefix}.{name}" if prefix else name
        if isinstance(child, torch.nn.ModuleList) and len(child) > 1:
            yield path, child
        else:
            yield from _lists(child, path)


def _kind(layer: Module, config: PretrainedConfig, position: int, count: int) -> str:
    """Everything in which layers can differ, as text."""
    parts = []
    for path, module in layer.named_modules():
        settings = {
            name: value
            for name, value in vars(module).items()
            if isinstance(value, bool | int | float | str)
            and not name.startswith("_")
            and name not in _NOT_COMPARED
        }
        shapes = [(name, tuple(p.shape)) for name, p in module._parameters.items() if p is not None]
        # The conversion to FP8 leaves out the first linear layer of all, which is the same layer.
        kind = type(module).__name__.removeprefix("Float8")
        parts.append(f"{path}:{kind}{sorted(settings.items())}{shapes}")
    text = config.get_text_config()
    for name, value in sorted(vars(text).items()):
        if isinstance(value, list | tuple) and len(value) == count:
            parts.append(f"{name}={value[position]}")
    return "|".join(parts)


def _pattern(path: str, kinds: list[str]) -> LayerStack:
    """The prefix and the unit that leave the fewest layers to simulate."""
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
