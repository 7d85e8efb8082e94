"""Let DoRA read a quantized base on a simulated device.

peft tells quantized weights by their class. On a simulated device they are plain parameters with
the same attributes, so peft would take their packed bytes for the weights.
"""

from __future__ import annotations

import copy
import importlib
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from functools import wraps
from types import SimpleNamespace
from typing import TYPE_CHECKING

import torch
from torch.nn import Module

from oomdoctor.worker.simulating.replacing import replaced
from oomdoctor.worker.training.synthetic import is_fake

if TYPE_CHECKING:
    from bitsandbytes.functional import QuantState


def replacements() -> Iterator[AbstractContextManager[None]]:
    """Contexts in which DoRA dequantizes fake weights; none if peft has no DoRA."""
    try:
        dora = importlib.import_module("peft.tuners.lora.dora")
    except ImportError:
        return
    if hasattr(dora, "dequantize_module_weight"):
        yield replaced(dora, "dequantize_module_weight", _dequantize(dora.dequantize_module_weight))
    if hasattr(dora, "deepcopy"):
        yield replaced(dora, "deepcopy", _copied)


def _dequantize(by_peft: Callable[[Module], torch.Tensor]) -> Callable[[Module], torch.Tensor]:
    """peft's function, which does what `dequantize_bnb_weight` does with fake weights too."""

    @wraps(by_peft)
    def dequantized(module: Module) -> torch.Tensor:
        weight = module.weight
        four_bit, eight_bit = getattr(weight, "quant_state", None), getattr(weight, "CB", None)
        if not is_fake(weight) or (four_bit is None and eight_bit is None):
            return by_peft(module)
        functional = importlib.import_module("bitsandbytes.functional")
        result: torch.Tensor
        if four_bit is not None:
            result = functional.dequantize_4bit(weight.data, four_bit)
            return result
        if module.state.SCB is None:
            module.state.SCB = weight.SCB
        if hasattr(functional, "int8_vectorwise_dequant"):
            result = functional.int8_vectorwise_dequant(weight.data, module.state.SCB)
            return result
        return weight.data * module.state.SCB.view(-1, 1) * 7.874015718698502e-3  # as peft does

    return dequantized


def _copied(layer: Module) -> Module | SimpleNamespace:
    """A copy of a layer as DoRA reads it: copies of fake parameters would lose their constants."""
    weight = getattr(layer, "weight", None)
    if weight is None or not is_fake(weight) or getattr(weight, "quant_state", None) is None:
        return copy.deepcopy(layer)
    stored = torch.nn.Parameter(weight.data.clone(), requires_grad=False)
    stored.quant_state = _copied_state(weight.quant_state)
    return SimpleNamespace(weight=stored)


def _copied_state(state: QuantState) -> QuantState:
    """A copy of bitsandbytes' `QuantState`, with copies of its tensors."""
    found = copy.copy(state)
    for name, value in vars(state).items():
        if hasattr(value, "untyped_storage"):
            setattr(found, name, value.clone())
    if getattr(state, "state2", None) is not None:
        found.state2 = _copied_state(state.state2)
    return found
