"""Let bitsandbytes build and step on a simulated device, and let DoRA read what it quantizes.

The optimizers of bitsandbytes 0.46 call CUDA through ctypes. No dispatch mode sees such a call, and
fake tensors cannot follow it. Here those calls become operators, as in later versions: they write
to their arguments and allocate nothing.

peft tells quantized weights by their class. On a simulated device they are plain parameters with
the same attributes, so peft would take their packed bytes for the weights.
"""

from __future__ import annotations

import copy
import importlib
import inspect
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from functools import cache, wraps
from types import ModuleType, SimpleNamespace
from typing import TYPE_CHECKING, NoReturn

import torch
from torch.nn import Module

from oomdoctor.worker.protocol import UnsupportedError
from oomdoctor.worker.replacing import module_if_there, own_operator, replaced, restored
from oomdoctor.worker.training.synthetic import is_fake

if TYPE_CHECKING:
    from bitsandbytes.functional import QuantState

# Functions of bitsandbytes.functional, and the tensors among their arguments.
_UPDATES = {
    "optimizer_update_8bit_blockwise": (
        "Tensor g, Tensor(a!) p, Tensor(b!) state1, Tensor(c!)? state2, Tensor qmap1, "
        "Tensor? qmap2, Tensor(d!) absmax1, Tensor(e!)? absmax2"
    ),
    "optimizer_update_32bit": (
        "Tensor g, Tensor(a!) p, Tensor(b!) state1, Tensor(c!)? state2, Tensor(d!)? unorm_vec"
    ),
}


def replacements(*, cuda: bool) -> Iterator[AbstractContextManager[None]]:
    """Contexts that let bitsandbytes work with fake tensors; none if it is not installed."""
    functional = module_if_there("bitsandbytes.functional")
    if functional is None:
        return
    yield from _kept_tables(functional)
    for name in _UPDATES:
        if not hasattr(torch.ops.bitsandbytes, name):
            # The function calls CUDA through ctypes, which fake tensors cannot follow.
            update = _update(getattr(functional, name)) if cuda else _refuse
            yield replaced(functional, name, update)
    if not cuda:
        return
    # Its optimizers wait for a GPU, and there is no GPU.
    yield replaced(torch.cuda, "synchronize", lambda device=None: None)
    integrations = importlib.import_module("transformers.integrations")
    check = "validate_bnb_backend_availability"
    if hasattr(integrations, check):
        # transformers 4 refuses to build a quantized model without a GPU.
        yield replaced(integrations, check, lambda raise_exception=False: True)


def _kept_tables(functional: ModuleType) -> Iterator[AbstractContextManager[None]]:
    """Tables of its data types that bitsandbytes caches: a fake one must not outlive the rung."""
    yield restored(functional.name2qmap)
    utils = module_if_there("bitsandbytes.backends.utils")
    operators = module_if_there("bitsandbytes.backends.default.ops")
    if utils is None or operators is None:
        return
    if hasattr(utils, "_code_4bit_cache"):
        yield restored(utils._code_4bit_cache)
    bounds = getattr(operators, "_get_4bit_quantize_bounds", None)
    if bounds is not None:
        # Its cache would keep fake tensors, so the simulation gets a cache that ends with it.
        yield replaced(operators, bounds.__name__, cache(bounds.__wrapped__))


def _refuse(*_: object, **__: object) -> NoReturn:
    raise UnsupportedError(
        "the optimizers of this bitsandbytes version need a GPU; use adamw_torch_fused"
    )


def _update(function: Callable[..., None]) -> Callable[..., None]:
    """Turn the function into an operator without results; it computes nothing."""
    name = function.__name__
    operator = own_operator(name, f"({_UPDATES[name]}) -> ()")
    signature = inspect.signature(function)
    names = [argument.name for argument in operator._schema.arguments]

    def update(*args: object, **kwargs: object) -> None:
        given = signature.bind(*args, **kwargs).arguments
        operator(*(given.get(name) for name in names))

    return update


def dora_replacements() -> Iterator[AbstractContextManager[None]]:
    """Contexts in which DoRA dequantizes fake weights; none if peft has no DoRA."""
    dora = module_if_there("peft.tuners.lora.dora")
    dequantize = getattr(dora, "dequantize_module_weight", None)
    if dequantize is not None:
        yield replaced(dora, "dequantize_module_weight", _dequantize(dequantize))
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
        if four_bit is not None:
            return functional.dequantize_4bit(weight.data, four_bit)
        if module.state.SCB is None:
            module.state.SCB = weight.SCB
        if hasattr(functional, "int8_vectorwise_dequant"):
            return functional.int8_vectorwise_dequant(weight.data, module.state.SCB)
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
    copied = copy.copy(state)
    for name, value in vars(state).items():
        if hasattr(value, "untyped_storage"):
            setattr(copied, name, value.clone())
    if getattr(state, "state2", None) is not None:
        copied.state2 = _copied_state(state.state2)
    return copied
