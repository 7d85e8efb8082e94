"""bitsandbytes on a simulated device, where a version of it works past torch's operators.

In 0.46 its optimizers call CUDA by ctypes, which no dispatch mode sees and no fake tensor can
follow. Here they are operators, as in later versions: they write their arguments and allocate
nothing.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from functools import cache
from typing import Any, NoReturn
from unittest import mock

from oomdoctor.worker.protocol.unsupported import UnsupportedError

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


def patches(cuda: bool) -> Iterator[AbstractContextManager[Any]]:
    """What lets bitsandbytes build and step with fake tensors; nothing where it is missing."""
    import torch

    try:
        functional = importlib.import_module("bitsandbytes.functional")
    except ImportError:
        return
    yield from _tables_of_its_own()
    for name in _UPDATES:
        if not hasattr(torch.ops.bitsandbytes, name):
            update = _update(getattr(functional, name)) if cuda else _refuse
            yield mock.patch.object(functional, name, update)
    if not cuda:
        return
    # Its optimizers wait for a device that is not there.
    yield mock.patch.object(torch.cuda, "synchronize", lambda device=None: None)
    integrations = importlib.import_module("transformers.integrations")
    check = "validate_bnb_backend_availability"  # transformers 4 refuses to build without a GPU
    if hasattr(integrations, check):
        yield mock.patch.object(integrations, check, lambda raise_exception=False: True)


def _tables_of_its_own() -> Iterator[AbstractContextManager[Any]]:
    """Tables of its types, which it keeps: fake ones must not outlive a simulation."""
    functional = importlib.import_module("bitsandbytes.functional")
    yield mock.patch.dict(functional.name2qmap)
    try:
        utils = importlib.import_module("bitsandbytes.backends.utils")
        operators = importlib.import_module("bitsandbytes.backends.default.ops")
    except ImportError:
        return
    if hasattr(utils, "_code_4bit_cache"):
        yield mock.patch.dict(utils._code_4bit_cache)
    bounds = getattr(operators, "_get_4bit_quantize_bounds", None)
    if bounds is not None:
        yield mock.patch.object(operators, bounds.__name__, cache(bounds.__wrapped__))


def _refuse(*_: Any, **__: Any) -> NoReturn:
    raise UnsupportedError("the optimizers of this bitsandbytes need a GPU; use adamw_torch_fused")


def _update(function: Callable[..., None]) -> Callable[..., None]:
    """The function as an operator without results; the update itself computes nothing."""
    operator = _operator(function.__name__)
    signature = inspect.signature(function)
    names = [argument.name for argument in operator._schema.arguments]

    def update(*args: Any, **kwargs: Any) -> None:
        given = signature.bind(*args, **kwargs).arguments
        operator(*(given.get(name) for name in names))

    return update


@cache  # an operator is defined once in a process
def _operator(name: str) -> Any:
    import torch

    torch.library.define(f"oomdoctor::{name}", f"({_UPDATES[name]}) -> ()")
    torch.library.impl(f"oomdoctor::{name}", "CompositeExplicitAutograd", lambda *_: None)
    return getattr(torch.ops.oomdoctor, name).default
