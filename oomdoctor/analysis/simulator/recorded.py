"""What recording a training step gives: tapes, costs, what is the same at every size.

Also what was computed from recordings, so that it is computed once.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import NamedTuple, TypeVar, cast

from oomdoctor.analysis.allocator.records import OutOfMemory
from oomdoctor.analysis.memory.zero.setting import Parameter
from oomdoctor.analysis.simulator.card import Card
from oomdoctor.analysis.simulator.tape import Region, Tape
from oomdoctor.records.job.costs import OpCost
from oomdoctor.records.job.measurement import MemoryCurve, PhaseMemory


class Cost(NamedTuple):
    """The cost of an operator, with its unit and its phase."""

    region: Region | None
    window: int  # index into the tape's windows
    cost: OpCost


@dataclass
class Recorded:
    """The load and one step with one micro-step, at one micro-batch `size`.

    `taken` maps the block of each gradient to the event before which it became its parameter's
    gradient. `adding` is the cost of adding the gradients of another micro-step. The recording
    holds for the cards in `alike`, except for the size of the cuBLAS workspaces.
    `attention_operators` are those that ran. `managed_bytes` is the unified memory of paged states
    at full depth. `accumulated` is a step with two micro-steps, where the second differs from the
    first: on several GPUs, only the last one reduces gradients.
    """

    size: int
    tape: Tape
    taken: dict[int, int]
    alike: set[Card]
    attention_operators: set[str]
    managed_bytes: int
    costs: list[Cost] = field(default_factory=list)
    adding: list[Cost] = field(default_factory=list)
    accumulated: Tape | None = None

    @property
    def windows(self) -> list[tuple[int, str, str]]:
        """The windows of the tape."""
        return self.tape.windows


@dataclass(frozen=True, slots=True)
class ParameterGroup:
    """The parameters of a unit, in the order of its modules, `times` times in a row.

    Each has its `elements`, and whether it is `trained`.
    """

    times: int
    elements: tuple[int, ...]
    trained: tuple[bool, ...]


@dataclass(frozen=True, slots=True)
class RungFacts:
    """What is the same in all recordings of a rung.

    `units` are (simulated, real) units of each stack. `least_bytes` are weights and gradients at
    full depth. `attention` is the implementation that the model runs. `torch_release` and
    `workspace_setting` (CUBLAS_WORKSPACE_CONFIG) decide the cuBLAS workspaces; without `as_cuda`
    there are none. `groups` are the parameters at full depth, in their order.
    """

    units: tuple[tuple[int, int], ...]
    least_bytes: int
    trainable_parameters: int
    parameters: int
    simulated_layers: int
    layers: int
    attention: str
    notes: tuple[str, ...]
    versions: Mapping[str, str | None]
    torch_release: tuple[int, int]
    workspace_setting: str
    as_cuda: bool
    groups: tuple[ParameterGroup, ...] = ()

    @property
    def depths(self) -> dict[int, tuple[int, int]]:
        """The units by the number of their stack."""
        return dict(enumerate(self.units))


def parameters_of(facts: RungFacts) -> tuple[Parameter, ...]:
    """The parameters of a rung at full depth, in the order of its modules."""
    return tuple(
        parameter
        for group in facts.groups
        for parameter in [*map(Parameter, group.elements, group.trained)] * group.times
        if parameter.elements
    )


OfSteps = Mapping[str, Mapping[str, PhaseMemory]]  # by step and by phase


@dataclass(frozen=True, slots=True)
class Played:
    """The peaks of a replay on a device without a limit; `steps` has those of each phase.

    `resting` is what is left after its last step, once the cache is emptied. `moments` are the
    allocated bytes of the moments of its curve.
    """

    peak_allocated_bytes: int
    peak_reserved_bytes: int
    retries: int
    steps: OfSteps
    resting: PhaseMemory
    moments: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Floors:
    """The highest sums of living blocks, rounded as the allocator does, of each phase in `steps`.

    `floor` is the highest of them, and `parts` are the bytes by category at that time.
    """

    floor: int
    steps: OfSteps
    parts: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Held:
    """A replay on a device with a limit: what failed if it did not fit, and in which phase."""

    fits: bool
    peak_reserved_bytes: int
    out_of_memory: OutOfMemory | None
    last_phase: str


# What was computed from recordings, by their numbers and what else it depends on. It saves time and
# holds nothing that the recordings do not say.
Computed = dict[str, bool | Floors | Played | Held | MemoryCurve]


def times(region: Region | None, depths: Mapping[int, tuple[int, int]]) -> int:
    """How often something that happens in a simulated unit happens at full depth."""
    if region is None or region[0] not in depths:
        return 1
    simulated, real = depths[region[0]]
    return 1 + real - simulated if region[1] == 1 else 1  # the second stands for the others


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
        value: object = self.computed.get(key)
        if isinstance(value, kind):
            return value
        made = compute()
        self.computed[key] = cast("bool | Floors | Played | Held | MemoryCurve", made)
        return made


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
