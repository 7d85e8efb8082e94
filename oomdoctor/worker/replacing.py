"""Replace a library's attribute or mapping entries for a while, then put them back.

The simulation changes what a few library functions do, because no device is there to answer them.
Every use of this module has a comment with its reason. Not thread-safe: one simulation at a time.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Mapping, MutableMapping
from contextlib import contextmanager
from types import ModuleType
from typing import TypeVar


def module_if_there(name: str) -> ModuleType | None:
    """A module of a library; None if the library or this version of it does not have the module."""
    try:
        return importlib.import_module(name)
    except ImportError:
        return None


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
