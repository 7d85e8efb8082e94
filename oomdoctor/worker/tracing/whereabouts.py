"""Say which module and which repeating unit an operator belongs to, forward and backward.

In the forward pass, hooks on the modules say it. In the backward pass, every node of the autograd
graph has the sequence number of the operator that made it, and the hooks have noted the numbers at
which each module began and ended.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping
from functools import partial, wraps
from typing import NamedTuple

import torch
from torch.nn import Module

from oomdoctor.analysis.simulator.tape import Region

_ACCUMULATES = 2**63  # AccumulateGrad has the largest number, so that it runs at once


class Place(NamedTuple):
    """A module by its path ("" outside the model), and a unit of a stack or None."""

    module: str
    region: Region | None


NOWHERE = Place("", None)


class Whereabouts:
    """Follows a running model. `module` is a path, `region` a unit of a stack or None."""

    def __init__(self) -> None:
        self.module = ""
        self.region: Region | None = None
        self._units: Mapping[str, Region] = {}
        self._last: set[str] = set()  # path of the last layer of each stack
        self._stack: list[Place] = []
        self._numbers: list[int] = []  # the sequence numbers at which `_places` begin
        self._places: list[Place] = []
        self._backward = False

    def follow(self, model: Module, units: Mapping[str, Region], prefix: str = "") -> None:
        """Hook every module of `model`; `units` has the repeating layers by path.

        Paths of another model begin with `prefix`.
        """
        self._units = {**self._units, **units}
        self._last |= set({stack: path for path, (stack, _) in units.items()}.values())
        for name, module in model.named_modules():
            path = f"{prefix}.{name}" if prefix and name else prefix or name
            is_unit = path in units
            if is_unit and not hasattr(module, "_get_fsdp_state"):
                self._follow_layer(path, module)
            else:
                # FSDP gathers a layer's weights in a hook, which belongs to the layer too.
                module.register_forward_pre_hook(partial(self._begin, path), prepend=is_unit)
                module.register_forward_hook(partial(self._end, path), always_call=True)

    def enter(self, phase: str) -> None:
        """Begin a phase, in which no module runs yet."""
        self._backward = phase == "backward"
        self.module, self.region = "", None
        self._stack.clear()
        if phase == "forward":
            self._numbers.clear()
            self._places.clear()

    def look(self) -> None:
        """Before an operator of a backward pass, ask the autograd graph for its module."""
        if not self._backward or self._stack:
            return
        node = torch._C._current_autograd_node()
        number = -1 if node is None else node._sequence_nr()
        if not 0 <= number < _ACCUMULATES:
            return
        place = bisect_right(self._numbers, number) - 1
        if place >= 0:
            self.module, self.region = self._places[place]

    def _follow_layer(self, path: str, layer: Module) -> None:
        """Wrap `layer.forward`: for some models transformers 4 calls it without the hooks."""
        forward = layer.forward

        @wraps(forward)
        def followed(*args: object, **kwargs: object) -> object:
            self._begin(path)
            try:
                return forward(*args, **kwargs)
            finally:
                self._end(path)

        layer.forward = followed

    def _begin(self, path: str, *_: object) -> None:
        self._stack.append(Place(self.module, self.region))
        self.module = path
        self.region = self._units.get(path, self.region)
        self._note()

    def _end(self, path: str, *_: object) -> None:
        if not self._stack:
            return
        self.module, self.region = self._stack.pop()
        if path in self._units and not self._backward:
            # Memory freed between two layers belongs to the first of them.
            self.region = None if path in self._last else self._units[path]
        self._note()

    def _note(self) -> None:
        if self._backward:
            return  # the backward pass never walks the graph of a recomputation
        number = torch.autograd._get_sequence_nr()
        if self._numbers and self._numbers[-1] == number:
            self._places.pop()
        else:
            self._numbers.append(number)
        self._places.append(Place(self.module, self.region))
