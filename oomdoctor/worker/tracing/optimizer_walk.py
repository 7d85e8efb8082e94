"""Follow an optimizer from parameter to parameter, to say which layer its tensors belong to."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from oomdoctor.analysis.simulator.tape import Region, TapeBlock
from oomdoctor.worker.tracing.whereabouts import NOWHERE, Place

BlockOf = Callable[[Any], TapeBlock | None]


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

    def owners(self, args: Sequence[Any], block_of: BlockOf) -> list[Place]:
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
