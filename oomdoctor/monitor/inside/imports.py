"""Calls a function once a module has been imported by somebody else."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

_ACTIONS: dict[str, Callable[[], None]] = {}


def after_import(name: str, action: Callable[[], None]) -> None:
    """Call `action` once, right after the module was imported. Its errors are ignored."""
    if name in sys.modules:
        _quietly(action)
        return
    _ACTIONS[name] = action
    if not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Finder())


class _Finder:
    """Finds modules as all others do, and asks the loaders of some to call us."""

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """The module that other finders find; None for modules that nobody waits for."""
        if name not in _ACTIONS:
            return None
        for finder in sys.meta_path:
            find = getattr(finder, "find_spec", None)
            if finder is self or find is None:
                continue
            spec: ModuleSpec | None = find(name, path, target)
            if spec is not None:
                _call_after(name, spec.loader)
                return spec
        return None


def _call_after(name: str, loader: Any) -> None:
    # The loader stays the one that torch would have, because libraries ask it for their data.
    execute = getattr(loader, "exec_module", None)
    if execute is None:
        return

    def exec_module(module: ModuleType) -> None:
        execute(module)
        action = _ACTIONS.pop(name, None)
        if action is not None:
            _quietly(action)

    try:
        loader.exec_module = exec_module
    except AttributeError:
        return


def _quietly(action: Callable[[], None]) -> None:
    try:
        action()
    except Exception:  # noqa: BLE001 - the user's program must not notice
        return
