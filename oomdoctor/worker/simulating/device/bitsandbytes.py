"""Let bitsandbytes build and step on a simulated device.

The optimizers of bitsandbytes 0.46 call CUDA through ctypes. No dispatch mode sees such a call, and
fake tensors cannot follow it. Here those calls become operators, as in later versions: they write
to their arguments and allocate nothing.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from functools import cache
from typing import NoReturn

import torch
from torch._ops import OpOverload

from oomdoctor.worker.protocol.unsupported import UnsupportedError
from oomdoctor.worker.simulating.replacing import replaced, restored

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
    try:
        functional = importlib.import_module("bitsandbytes.functional")
    except ImportError:
        return
    yield from _kept_tables()
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


def _kept_tables() -> Iterator[AbstractContextManager[None]]:
    """Tables of its data types that bitsandbytes caches: a fake one must not outlive the rung."""
    functional = importlib.import_module("bitsandbytes.functional")
    yield restored(functional.name2qmap)
    try:
        utils = importlib.import_module("bitsandbytes.backends.utils")
        operators = importlib.import_module("bitsandbytes.backends.default.ops")
    except ImportError:
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
    operator = _operator(function.__name__)
    signature = inspect.signature(function)
    names = [argument.name for argument in operator._schema.arguments]

    def update(*args: object, **kwargs: object) -> None:
        given = signature.bind(*args, **kwargs).arguments
        operator(*(given.get(name) for name in names))

    return update


@cache  # a process can define an operator only once
def _operator(name: str) -> OpOverload:
    torch.library.define(f"oomdoctor::{name}", f"({_UPDATES[name]}) -> ()")
    torch.library.impl(f"oomdoctor::{name}", "CompositeExplicitAutograd", lambda *_: None)
    return getattr(torch.ops.oomdoctor, name).default
