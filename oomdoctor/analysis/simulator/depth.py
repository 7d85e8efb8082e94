"""Extend a tape of a shallow model to the order of events of the deep one.

Repeating layers do the same in each pass, so the events of a middle unit stand for those of every
unit that was left out. The tape says which events belong to which unit. The middle units must agree
event by event; if they do not, the tape cannot be extended (`IrregularError`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from oomdoctor.analysis.simulator.tape import Order, Region, Tape

Key = tuple[str, int, int]  # operator, size, number of such births before it in the run
Home = tuple[int, int, Key]  # where a block was born: chain, unit, key


class IrregularError(Exception):
    """The layers do not repeat exactly; the full depth must be simulated."""


@dataclass(slots=True)
class _Run:
    """Consecutive events of one unit; region None for those outside the layers."""

    region: Region | None
    start: int
    end: int


@dataclass(slots=True)
class _Chain:
    """Runs of one stack in ascending or descending order of its units, or one run outside."""

    runs: list[_Run]
    homes: dict[tuple[int, Key], int] = field(default_factory=dict)  # (new unit, key) -> new block


@dataclass(frozen=True, slots=True)
class _Sign:
    """One event of a unit; `at_the_edge` if it frees a block of the first or the last unit."""

    what: tuple[object, ...]
    key: Key | None = None
    at_the_edge: bool = False


@dataclass(frozen=True, slots=True)
class _Part:
    """Events to emit for a unit at full depth, each with the simulated unit it comes from."""

    region: Region | None
    events: list[tuple[int, int]]
    unit: int


def extend(tape: Tape, depths: Mapping[int, tuple[int, int]]) -> Order:
    """The order of events at full depth.

    `depths` has (simulated, wanted) units of each stack. If more are wanted than simulated, at
    least four must be simulated: the first, two in the middle that confirm each other, the last.

    Raises:
        IrregularError: the middle units differ, or one refers to a unit that is not its neighbour.
    """
    return _Extension(tape, depths).order()


class _Extension:
    def __init__(self, tape: Tape, depths: Mapping[int, tuple[int, int]]) -> None:
        self.tape, self.depths = tape, depths
        self.chains = _chains(tape)
        self.home: dict[int, Home] = {}  # block of the tape -> where it was born
        self.events: list[int] = []
        self.origin: list[int] = []
        self.outside: dict[int, int] = {}  # block of the tape born outside -> new block
        self.dead: set[int] = set()

    def order(self) -> Order:
        for number, chain in enumerate(self.chains):
            for run in chain.runs:
                self._find_homes(number, run)
        windows = list(self.tape.windows)
        placed: list[tuple[int, str, str]] = []
        for number, chain in enumerate(self.chains):
            while windows and windows[0][0] <= chain.runs[0].start:
                placed.append((len(self.events), *windows.pop(0)[1:]))
            for part in self._plan(chain):
                self._emit(number, part)
        placed += [(len(self.events), step, phase) for _, step, phase in windows]
        self._check_deaths()
        return Order(self.events, self.origin, placed)

    def _check_deaths(self) -> None:
        """Every block that dies on the tape must die in every unit that repeats it."""
        mortal = {-event - 1 for event in self.tape.events if event < 0}
        for number, source in enumerate(self.origin, 1):
            if source in mortal and number not in self.dead:
                operator = self.tape.blocks[source].operator
                raise IrregularError(f"a block of {operator} is not freed in every unit")

    def _find_homes(self, number: int, run: _Run) -> None:
        if run.region is None:
            return
        seen: dict[tuple[str, int], int] = {}
        for event in self.tape.events[run.start : run.end]:
            if event > 0:
                block = self.tape.blocks[event - 1]
                kind = (block.operator, block.size)
                self.home[event] = (number, run.region[1], (*kind, seen.get(kind, 0)))
                seen[kind] = seen.get(kind, 0) + 1

    def _plan(self, chain: _Chain) -> list[_Part]:
        """What to emit for a chain at full depth, unit by unit."""
        region = chain.runs[0].region
        if region is None:
            return [self._part(chain.runs[0], 0)]
        simulated, wanted = self.depths[region[0]]
        runs = {run.region[1]: run for run in chain.runs if run.region is not None}
        if simulated == wanted:
            return [self._part(run, unit) for unit, run in runs.items()]
        middle = [unit for unit in range(1, simulated - 1) if unit in runs]
        if len(middle) < simulated - 2:
            # Not a pass over all layers: leftover blocks die next to the first or the last unit.
            if any(e > 0 for u in middle for e in self.tape.events[runs[u].start : runs[u].end]):
                raise IrregularError(f"only some of the middle units take part: {sorted(runs)}")
            return [
                self._part(run, unit if 2 * unit < simulated else wanted - simulated + unit)
                for unit, run in runs.items()
            ]
        plan = [self._part(runs[0], 0)] if 0 in runs else []
        plan.append(self._part(runs[1], 1))
        between = self._between(runs[1], runs[simulated - 2], middle, runs)
        plan += [_Part(region, between, unit) for unit in range(2, wanted - 2)]
        plan.append(self._part(runs[simulated - 2], wanted - 2))
        plan += [self._part(runs[simulated - 1], wanted - 1)] if simulated - 1 in runs else []
        last = chain.runs[-1].region
        return plan[::-1] if last is not None and region[1] > last[1] else plan

    def _part(self, run: _Run, unit: int) -> _Part:
        source = 0 if run.region is None else run.region[1]
        events = self.tape.events[run.start : run.end]
        return _Part(run.region, [(event, source) for event in events], unit)

    def _between(
        self, first: _Run, last: _Run, middle: list[int], runs: Mapping[int, _Run]
    ) -> list[tuple[int, int]]:
        """The events of a unit that has middle units on both sides, each with its source.

        The middle units do the same, except when they free blocks of the first or the last unit,
        which may differ from the others. Such an event is taken from the middle unit farther away.
        """
        assert first.region is not None and last.region is not None
        simulated, _ = self.depths[first.region[0]]
        whole = self._signature(first, simulated)
        for unit in middle[1:]:
            other = self._signature(runs[unit], simulated)
            if len(other) != len(whole) or not all(map(_agree, whole, other)):
                raise IrregularError("the middle units differ")
        events = []
        near = self.tape.events[first.start : first.end]
        far = self.tape.events[last.start : last.end]
        for event, signed, instead in zip(near, whole, far, strict=True):
            if signed.at_the_edge:
                events.append((instead, last.region[1]))
            else:
                events.append((event, first.region[1]))
        return events

    def _signature(self, run: _Run, simulated: int) -> list[_Sign]:
        """What a run does, with blocks named by where they were born relative to it."""
        assert run.region is not None
        signature = []
        for event in self.tape.events[run.start : run.end]:
            block = self.tape.blocks[abs(event) - 1]
            if event > 0:
                signature.append(_Sign(("birth", block.operator, block.size, block.category)))
                continue
            home = self.home.get(-event)
            if home is None:
                raise IrregularError(
                    f"a middle unit frees a block of {block.operator} outside the layers"
                )
            number, unit, key = home
            place = ("death", number, run.region[1] - unit, block.size)
            signature.append(_Sign(place, key, unit in (0, simulated - 1)))
        return signature

    def _emit(self, number: int, part: _Part) -> None:
        chain = self.chains[number]
        for event, source in part.events:
            if event > 0:
                self.origin.append(event - 1)
                new = len(self.origin)
                if part.region is None:
                    self.outside[event] = new
                else:
                    chain.homes[part.unit, self.home[event][2]] = new
                self.events.append(new)
            else:
                self._free(-event, part, source)

    def _free(self, block: int, part: _Part, source: int) -> None:
        home = self.home.get(block)
        if home is None:
            new = self.outside[block]
        else:
            number, born, key = home
            at = self._unit_of(born, part, source, self.chains[number])
            found = self.chains[number].homes.get((at, key))
            if found is None:
                raise IrregularError(f"unit {part.unit} frees a block that unit {at} does not have")
            new = found
        if new in self.dead:
            raise IrregularError(f"a block of {self.tape.blocks[block - 1].operator} dies twice")
        self.dead.add(new)
        self.events.append(-new)

    def _unit_of(self, born: int, part: _Part, source: int, chain: _Chain) -> int:
        """The unit at full depth of a block born in simulated unit `born`, seen from a part."""
        stack = chain.runs[0].region
        assert stack is not None
        simulated, wanted = self.depths[stack[0]]
        if part.region is None or part.region[0] != stack[0]:
            if 0 < born < simulated - 1 and simulated != wanted:
                raise IrregularError("a block of a middle unit dies outside its stack")
            return born if born == 0 else wanted - simulated + born
        distance = source - born
        if abs(distance) <= 1 or simulated == wanted:
            return part.unit - distance
        if born == 0:
            return 0
        if born == simulated - 1:
            return wanted - 1
        raise IrregularError(f"unit {source} frees a block of unit {born}")


def _agree(one: _Sign, other: _Sign) -> bool:
    """Whether two units do the same at one event, as far as that can be known."""
    return one.what == other.what and (one.key == other.key or one.at_the_edge or other.at_the_edge)


def _runs(tape: Tape, breaks: set[int]) -> list[_Run]:
    runs: list[_Run] = []
    for position, region in enumerate(tape.regions):
        if runs and runs[-1].region == region and position not in breaks:
            runs[-1].end = position + 1
        else:
            runs.append(_Run(region, position, position + 1))
    return runs


def _chains(tape: Tape) -> list[_Chain]:
    """Adjacent runs in one window whose units go up or down by one form a chain."""
    breaks = {start for start, _, _ in tape.windows}
    chains: list[_Chain] = []
    for run in _runs(tape, breaks):
        if chains and run.start not in breaks and _continues(chains[-1], run):
            chains[-1].runs.append(run)
        else:
            chains.append(_Chain([run]))
    return chains


def _continues(chain: _Chain, run: _Run) -> bool:
    last = chain.runs[-1].region
    if last is None or run.region is None or last[0] != run.region[0]:
        return False
    step = run.region[1] - last[1]
    if len(chain.runs) == 1:
        return abs(step) == 1
    before = chain.runs[-2].region
    return before is not None and step == last[1] - before[1]
