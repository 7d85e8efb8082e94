"""The layers of a model that repeat, and a configuration with fewer of them.

A stack is a list of layers. Its pattern is a prefix, a unit of a few layers that repeats, and a
tail that begins another unit. Layers are equal when their modules, shapes and settings are.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from oomdoctor.records.model import LayerStack

UNITS = 4  # the first, two in the middle that prove each other, the last
_LONGEST_UNIT = 8
_LONGEST_PREFIX = 4
_NOT_THE_KIND = ("layer_idx", "layer_id", "training", "layer_index", "gradient_checkpointing")


def stacks_of(model: Any, config: Any) -> tuple[LayerStack, ...]:
    """Every outermost list of at least two modules, with its pattern."""
    return tuple(
        _pattern(path, [_kind(layer, config, i, len(layers)) for i, layer in enumerate(layers)])
        for path, layers in _lists(model)
    )


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
