"""The layers that get LoRA where peft does not take all linear ones of a model.

It refuses some of Mamba's, and it adds to what only looks like a linear layer, such as a router.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from typing import TYPE_CHECKING

import torch
from torch.nn import Module

if TYPE_CHECKING:
    from transformers import PreTrainedModel


def named_targets(model: PreTrainedModel) -> tuple[str, ...]:
    """The layers to name where peft does not take `all-linear`; empty where it takes them.

    Tried on one layer of each name and class; the heads are no part of `all-linear`. A name that
    other modules end with too, as the number of a list does, goes with those before it.
    """
    paths = {
        path.removesuffix(".base_layer"): module
        for path, module in model.named_modules()
        if ".lora_" not in path  # peft may have begun to put some on it
    }
    linear = {
        path: module
        for path, module in paths.items()
        if "." in path
        if isinstance(module, torch.nn.Linear) or type(module).__name__ == "Conv1D"
    }
    others = {end for path in paths.keys() - linear.keys() for end in _ends_of(path)}
    samples = {
        (next((end for end in _ends_of(path) if end not in others), path), type(module)): module
        for path, module in linear.items()
    }
    refused = {name for (name, _), layer in samples.items() if not _takes(name, layer, model)}
    all_taken = not refused and not any("." in name for name, _ in samples)
    return () if all_taken else tuple(sorted({name for name, _ in samples} - refused))


def _ends_of(path: str) -> Iterator[str]:
    """The last word of a path, its last two, and so on to the whole."""
    words = path.split(".")
    yield from (".".join(words[start:]) for start in reversed(range(len(words))))


def _takes(name: str, layer: Module, model: PreTrainedModel) -> bool:
    """Whether peft puts LoRA on a layer of this name in such a model, and it then runs."""
    from peft import LoraConfig, inject_adapter_in_model

    name = name.rpartition(".")[2]
    alone = Module()
    alone.config = model.config
    alone.add_module(name, layer)
    with suppress(ValueError, RuntimeError, TypeError):
        inject_adapter_in_model(LoraConfig(r=1, target_modules=[name]), alone)
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
