"""What was computed from the recordings of a rung, so that it is computed once."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TypeVar, cast

from oomdoctor.analysis.simulator.recorded import Computed, Floors, Held, Played, Recorded
from oomdoctor.records.measurement import MemoryCurve

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Store:
    """What was computed, with the number of each recording."""

    computed: Computed
    numbers: dict[int, int]

    def number(self, recorded: Recorded) -> int:
        """The number of a recording, in the order in which they were made."""
        return self.numbers.setdefault(id(recorded), len(self.numbers))

    def get(self, key: str, kind: type[T], compute: Callable[[], T]) -> T:
        """What is under a key, computed if it is not there."""
        found: object = self.computed.get(key)
        if isinstance(found, kind):
            return found
        made = compute()
        self.computed[key] = cast("Floors | Played | Held | MemoryCurve | bool", made)
        return made

    def is_line(self, one: Recorded, other: Recorded, check: Callable[[], bool]) -> bool:
        """Whether all sizes between two recordings lie on the line through them."""
        return self.get(f"line {self.number(one)} {self.number(other)}", bool, check)


@contextmanager
def without_collection() -> Iterator[None]:
    """No search for cycles. At the end, those that were made within it are removed."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        gc.collect(0)
        if enabled:
            gc.enable()
