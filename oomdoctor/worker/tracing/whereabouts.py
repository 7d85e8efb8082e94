"""Say which module and repeating unit an operator belongs to, and the category of what it makes.

In the forward pass, hooks on the modules say it. In the backward pass, every node of the autograd
graph has the sequence number of the operator that made it, and the hooks have noted the numbers at
which each module began and ended. In the optimizer's step, its first tensors say it.

Categories are the same for every engine: weights that an engine gathers are weights, and its
buckets and flat copies of gradients are temporary.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from functools import partial, wraps
from typing import NamedTuple

import torch
from torch.nn import Module

from oomdoctor.analysis.simulator.tape import Region, TapeBlock
from oomdoctor.records.facts.categories import ACTIVATIONS, LOGITS, TEMPORARY
from oomdoctor.worker.tracing.calls import OperatorCall

_ACCUMULATES = 2**63  # AccumulateGrad has the largest number, so that it runs at once
_GATHERS = frozenset(
    (
        "c10d::allgather_",
        "c10d::_allgather_base_",
        "c10d::allgather_coalesced_",
        "c10d::allgather_into_tensor_coalesced_",
    )
)
_SPLITS_GATHERED = "fsdp::split_with_sizes_copy"  # into the weights of a unit
BlockOf = Callable[[object], TapeBlock | None]


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


def gathered(operator: str, call: OperatorCall) -> object:
    """The tensors that an operator fills with what all ranks have; empty for all other operators.

    In a forward or backward pass that is the weights.
    """
    if operator == _SPLITS_GATHERED:
        return call.kwargs.get("out", ())
    return call.args[0] if operator in _GATHERS else ()


def category_of(tensor: torch.Tensor, phase: str, vocabulary: int, tokens: int) -> str:
    """The category of a new tensor, from its shape and the phase of the step.

    A tensor with a score per word of the `vocabulary` for at least `tokens` tokens is logits.
    """
    shape = tensor.shape
    scores = vocabulary and len(shape) >= 2 and shape[-1] == vocabulary
    if scores and tensor.numel() >= tokens * vocabulary:
        return LOGITS
    if phase in ("forward", "eval"):
        return ACTIVATIONS
    # The backward pass runs without grad mode. With it, checkpointing recomputes a forward pass.
    if phase == "backward" and torch.is_grad_enabled():
        return ACTIVATIONS
    return TEMPORARY


class OptimizerWalk:
    """Knows the parameter that the optimizer updated last, and whether it takes them in lists."""

    def __init__(self) -> None:
        self._updating = False
        self._last = NOWHERE
        self._one_by_one = False

    def step_begins(self, begins: bool) -> None:
        """The optimizer begins to update its parameters, or has finished."""
        self._updating = begins
        self._last, self._one_by_one = NOWHERE, False

    def owners(self, args: Sequence[object], block_of: BlockOf) -> list[Place]:
        """The places of an operator's first tensors, one for each result.

        A result without a tensor to follow belongs to the parameter that was updated last.
        """
        first = next((arg for arg in args if isinstance(arg, list | tuple) and arg), None)
        owners = []
        for tensor in first if first is not None else args:
            followed = block_of(tensor)
            if followed is not None:
                owners.append(Place(followed.module, followed.region))
                self._last = owners[-1]
                self._one_by_one = first is None and self._updating
            elif first is not None:
                owners.append(self._last)
        return owners or [self._last]

    def came_to(self, owner: Region | None) -> Region | None:
        """The unit that the loop over parameters has reached, if it is `owner` or next to it.

        A tensor that the loop makes for one parameter dies when it makes the same for the next.
        """
        now = self._last.region if self._one_by_one else None
        if owner is None or now is None or owner[0] != now[0]:
            return None
        return now if abs(now[1] - owner[1]) <= 1 else None
