"""The category of memory of a tensor that a trace sees, the same for every engine.

Weights that an engine gathers are weights. Its buckets and flat copies of gradients are temporary.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from oomdoctor.analysis.simulator.tape import Region, TapeBlock
from oomdoctor.records.facts.categories import ACTIVATIONS, LOGITS, TEMPORARY
from oomdoctor.worker.tracing.calls import OperatorCall
from oomdoctor.worker.tracing.whereabouts import NOWHERE, Place

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
