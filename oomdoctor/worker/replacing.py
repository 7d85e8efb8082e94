"""Replace a library's attribute, mapping entries or kernels for a while, then put them back.

The simulation changes what a few library functions do, because no device is there to answer them.
Every use of this module has a comment with its reason. Not thread-safe: one simulation at a time.
Operators of our own stay registered.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterator, Mapping, MutableMapping
from contextlib import contextmanager
from functools import cache
from types import ModuleType
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from torch._ops import OpOverload


def module_if_there(name: str) -> ModuleType | None:
    """A module of a library; None if the library or this version of it does not have the module."""
    try:
        return importlib.import_module(name)
    except ImportError:
        return None


def installed(module: str) -> bool:
    """Whether a package is there; nothing is imported."""
    return importlib.util.find_spec(module) is not None


Key = TypeVar("Key")
Value = TypeVar("Value")


@contextmanager
def replaced(owner: object, name: str, value: object) -> Iterator[None]:
    """Set `owner.name` to `value` inside the context; restore it at the end, also after an error.

    An attribute that `owner` inherits is deleted at the end, so it is inherited again.

    Raises:
        AttributeError: `owner` has no attribute with this name.
    """
    getattr(owner, name)
    is_own = name in vars(owner)
    before = vars(owner).get(name)  # not getattr, which would unwrap a static method
    setattr(owner, name, value)
    try:
        yield
    finally:
        if is_own:
            setattr(owner, name, before)
        else:
            delattr(owner, name)


@contextmanager
def restored(
    mapping: MutableMapping[Key, Value], changes: Mapping[Key, Value] | None = None
) -> Iterator[None]:
    """Apply `changes` to a mapping inside the context; restore all of its entries at the end.

    Entries that somebody else adds inside the context are removed as well.
    """
    before = dict(mapping)
    mapping.update(changes or {})
    try:
        yield
    finally:
        mapping.clear()
        mapping.update(before)


@cache  # a process can define an operator only once
def own_operator(
    name: str, schema: str, function: Callable[..., object] | None = None
) -> OpOverload:
    """An operator for every device, also for fake tensors; without a `function` it does nothing."""
    import torch

    torch.library.define(f"oomdoctor::{name}", schema)
    kernel = function or (lambda *_: None)
    torch.library.impl(f"oomdoctor::{name}", "CompositeExplicitAutograd", kernel)
    return getattr(torch.ops.oomdoctor, name).default


@contextmanager
def implemented(kernels: Mapping[str, Callable[..., object]], key: str) -> Iterator[None]:
    """Let these kernels run operators of torch at a dispatch key, in the whole process."""
    import torch

    library = torch.library.Library("aten", "IMPL")
    for name, kernel in kernels.items():
        library.impl(name, kernel, key)
    try:
        yield
    finally:
        library._destroy()
