"""Find the layers of a model that repeat, and those that get LoRA.

A stack is a list of layers. Its pattern is a prefix, a unit of a few layers that repeats, and a
tail that begins another unit. Layers are equal if their modules, shapes and settings are equal.
A list in which few long units repeat is several stacks, each of equal layers.

LoRA is put on named layers where peft does not take all linear ones of a model: it refuses some of
Mamba's, and it adds to what only looks like a linear layer, such as a router.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from itertools import groupby
from typing import TYPE_CHECKING

import torch
from torch.nn import Module, ModuleList

from oomdoctor.records.job.model import LayerStack, Task
from oomdoctor.worker.training.objectives.image_forms import vision_of
from oomdoctor.worker.training.objectives.images import is_in_tower

if TYPE_CHECKING:
    from transformers import PretrainedConfig, PreTrainedModel

UNITS = 4  # the first, two in the middle that must be equal, the last
_LONGEST_UNIT = 8
_LONGEST_PREFIX = 4
_SAVED = 0.25  # of the layers, by several stacks for a list
INDICES = (
    "cross_attention_layers",
    "deepstack_visual_indexes",
    "fullatt_block_indexes",
    "intermediate_layers_indices",
)
"""Lists of the numbers of layers that differ from the others: in what they attend to, or in that
their outputs are used."""
_HEADS = ("score", "classifier")
"""Ends of the paths that peft trains whole in sequence classification, `SEQ_CLS_HEAD_NAMES`."""
_NOT_COMPARED = ("layer_idx", "layer_id", "training", "layer_index", "gradient_checkpointing")


def stacks_of(model: Module, config: PretrainedConfig) -> tuple[LayerStack, ...]:
    """Every outermost list of two or more modules, as one stack or as several."""
    stacks: list[LayerStack] = []
    for path, layers in _lists(model):
        part, count = part_of(config, path), len(layers)
        stacks += _stacks(path, [_kind(layer, part, at, count) for at, layer in enumerate(layers)])
    return tuple(stacks)


def part_of(config: PretrainedConfig, path: str) -> PretrainedConfig:
    """The part of a model's configuration that is about the list of layers at `path`."""
    return vision_of(config) if is_in_tower(path) else config.get_text_config()


def _lists(model: Module, prefix: str = "") -> Iterator[tuple[str, ModuleList]]:
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
    for name, value in sorted(vars(config).items()):
        if name in INDICES:
            parts.append(f"{name}:{position in value}")
        elif isinstance(value, list | tuple) and len(value) == count:
            parts.append(f"{name}={value[position]}")
    return "|".join(parts)


def _stacks(path: str, kinds: list[str]) -> tuple[LayerStack, ...]:
    """One stack with the best pattern, or one for each run of equal layers if that is shorter."""
    short = {kind: str(number) for number, kind in enumerate(dict.fromkeys(kinds))}
    words = tuple(short[kind] for kind in kinds)
    whole = _pattern(path, words)
    runs, start = [], 0
    for _, equal in groupby(words):
        run = tuple(equal)
        runs.append(LayerStack(path, run, prefix=0, period=1, units=len(run), start=start))
        start += len(run)
    if sum(map(kept_layers, runs)) <= (1 - _SAVED) * kept_layers(whole):
        return tuple(runs)
    return (whole,)


def kept_layers(stack: LayerStack) -> int:
    """How many of its layers stand for all."""
    return stack.layers - (stack.units - min(stack.units, UNITS)) * stack.period


def _pattern(path: str, words: tuple[str, ...]) -> LayerStack:
    """The prefix and the unit that leave the fewest layers to simulate."""
    patterns = []
    for prefix in range(min(_LONGEST_PREFIX, len(words) - 1) + 1):
        rest = words[prefix:]
        for period in range(1, min(_LONGEST_UNIT, len(rest)) + 1):
            if all(rest[i] == rest[i % period] for i in range(len(rest))):
                patterns.append(LayerStack(path, words, prefix, period, len(rest) // period))
                break
    whole = LayerStack(path, words, prefix=0, period=1, units=0)
    return min(patterns, key=kept_layers, default=whole)


def named_targets(
    model: PreTrainedModel, task: Task | None = None, *, always: bool = False
) -> tuple[str, ...]:
    """The layers to name where peft does not take `all-linear`; empty where it takes them.

    `always` names them there, too.

    Tried on one layer of each name and class; the heads are no part of `all-linear`. A name that
    other modules end with too, as the number of a list does, goes with those before it. In sequence
    classification, peft refuses LoRA on a layer that it also trains whole (`pre_classifier`).
    """
    paths = {
        path.removesuffix(".base_layer"): module
        for path, module in model.named_modules()
        if ".lora_" not in path  # peft may have begun to put some on it
    }
    all_linear = {
        path: module
        for path, module in paths.items()
        if isinstance(module, torch.nn.Linear) or type(module).__name__ == "Conv1D"
    }
    whole = _HEADS if task == "sequence-classification" else ()
    head = None
    with suppress(AttributeError, NotImplementedError):
        head = model.get_output_embeddings()
    twice = [path for path in all_linear if path.endswith(whole) and path not in whole]
    linear = {
        path: module for path, module in all_linear.items() if "." in path and module is not head
    }
    others = {end for path in paths.keys() - linear.keys() for end in _ends_of(path)}
    samples = {
        (next((end for end in _ends_of(path) if end not in others), path), type(module)): module
        for path, module in linear.items()
    }
    refused = {name for (name, _), layer in samples.items() if not _takes(name, layer, model)}
    refused |= {name for name, _ in samples if name in twice}
    all_taken = not refused and not twice and not any("." in name for name, _ in samples)
    return (
        () if all_taken and not always else tuple(sorted({name for name, _ in samples} - refused))
    )


def is_of_experts(name: str, parameter: torch.Tensor) -> bool:
    """Whether a parameter has the weights of several experts, as axolotl tells them."""
    return parameter.dim() >= 3 and "expert" in name.lower()


def trains_inside(model: Module) -> bool:
    """Whether anything in the repeating layers of a model is trained."""
    lists = [f"{path}." for path, _ in _lists(model)]
    trained = (name for name, parameter in model.named_parameters() if parameter.requires_grad)
    return any(name.startswith(tuple(lists)) for name in trained)


def convolutions(model: PreTrainedModel, rank: int) -> tuple[str, ...]:
    """The names of the convolutions in repeating layers on which peft puts LoRA of this rank."""
    kinds = (torch.nn.Conv1d, torch.nn.Conv2d)
    inside = (
        (path.rpartition(".")[2], module)
        for _, layers in _lists(model)
        for path, module in layers.named_modules()
        if isinstance(module, kinds)
    )
    samples: dict[str, list[Module]] = {}
    for name, module in inside:
        samples.setdefault(name, []).append(module)
    return tuple(
        sorted(
            name
            for name, modules in samples.items()
            if all(_takes(name, module, model, rank) for module in modules)
        )
    )


def _ends_of(path: str) -> Iterator[str]:
    """The last word of a path, its last two, and so on to the whole."""
    words = path.split(".")
    yield from (".".join(words[start:]) for start in reversed(range(len(words))))


def _takes(name: str, layer: Module, model: PreTrainedModel, rank: int = 1) -> bool:
    """Whether peft puts LoRA on a layer of this name in such a model, and it then runs."""
    from peft import LoraConfig, inject_adapter_in_model

    name = name.rpartition(".")[2]
    alone = Module()
    alone.config = model.config
    alone.add_module(name, layer)
    with suppress(ValueError, RuntimeError, TypeError):
        inject_adapter_in_model(LoraConfig(r=rank, target_modules=[name]), alone)
        return not isinstance(layer, torch.nn.Linear) or _is_plain(layer)
    return False


def _is_plain(layer: torch.nn.Linear) -> bool:
    """Whether a layer, whose class may be the model's own, maps the last dimension and no more."""
    if type(layer).forward is torch.nn.Linear.forward:
        return True
    weight, refusals = layer.weight, (ValueError, RuntimeError, TypeError, LookupError)
    with suppress(*refusals, AttributeError), torch.no_grad():
        output = layer(torch.empty(2, 3, layer.in_features).to(weight.device, weight.dtype))
        return isinstance(output, torch.Tensor) and output.shape == (2, 3, layer.out_features)
    return False
