"""Extend a tape of a shallow model to the order of events of the deep one.

Repeating layers do the same in each pass, so the events of a middle unit stand for those of every
unit that was left out. The tape says which events belong to which unit. The middle units must agree
event by event; if they do not, the tape cannot be extended (`IrregularError`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from operator import add, sub

from oomdoctor.analysis.simulator.orders.chains import Chain, Key, Line, Run, chains_of
from oomdoctor.analysis.simulator.tape import Order, Region, Tape

Home = tuple[int, int, Key]  # where a block was born: chain, unit, key


class IrregularError(Exception):
    """The layers do not repeat exactly; the full depth must be simulated."""


# One event of a unit: what it does, the chain and the key of the block that it frees, and whether
# that is one of the first or the last unit.
_Sign = tuple[tuple[object, ...], tuple[int, Key] | None, bool]


@dataclass(frozen=True, slots=True)
class _Part:
    """Events to emit for a unit at full depth, each with the simulated unit it comes from.

    All parts of a chain with `repeats` have the same events.
    """

    region: Region | None
    events: list[tuple[int, int]]
    unit: int
    repeats: bool = False


# Middle units next to others refer to those, and the third is told from the second: these are
# emitted one by one at the beginning.
_ONE_BY_ONE = 3


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
        self.chains = chains_of(tape)
        self.home: dict[int, Home] = {}  # block of the tape -> where it was born
        self.events: list[int] = []
        self.origin: list[int] = []
        self.outside: dict[int, int] = {}  # block of the tape born outside -> new block
        self.repeats: list[tuple[int, int, int]] = []

    def order(self) -> Order:
        for number, chain in enumerate(self.chains):
            for run in chain.runs:
                self._find_homes(number, run)
        windows = list(self.tape.windows)
        placed: list[tuple[int, str, str]] = []
        for number, chain in enumerate(self.chains):
            while windows and windows[0][0] <= chain.runs[0].start:
                placed.append((len(self.events), *windows.pop(0)[1:]))
            self._emit_all(number, self._plan(chain))
        placed += [(len(self.events), step, phase) for _, step, phase in windows]
        self._check_deaths()
        return Order(self.events, self.origin, placed, self.repeats)

    def _check_deaths(self) -> None:
        """Blocks die once, and those that die on the tape die in every unit that repeats them."""
        deaths = [-event for event in self.events if event < 0]
        dead = set(deaths)
        if len(dead) < len(deaths):
            again = next(block for block, times in Counter(deaths).items() if times > 1)
            operator = self.tape.blocks[self.origin[again - 1]].operator
            raise IrregularError(f"a block of {operator} dies twice")
        mortal = {-event - 1 for event in self.tape.events if event < 0}
        for number in set(range(1, len(self.origin) + 1)) - dead:
            source = self.origin[number - 1]
            if source in mortal:
                operator = self.tape.blocks[source].operator
                raise IrregularError(f"a block of {operator} is not freed in every unit")

    def _find_homes(self, number: int, run: Run) -> None:
        if run.region is None:
            return
        seen: dict[tuple[str, int], int] = {}
        for event in self.tape.events[run.start : run.end]:
            if event > 0:
                block = self.tape.blocks[event - 1]
                kind = (block.operator, block.size)
                self.home[event] = (number, run.region[1], (*kind, seen.get(kind, 0)))
                seen[kind] = seen.get(kind, 0) + 1

    def _plan(self, chain: Chain) -> list[_Part]:
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
        plan += [_Part(region, between, unit, True) for unit in range(2, wanted - 2)]
        plan.append(self._part(runs[simulated - 2], wanted - 2))
        plan += [self._part(runs[simulated - 1], wanted - 1)] if simulated - 1 in runs else []
        last = chain.runs[-1].region
        return plan[::-1] if last is not None and region[1] > last[1] else plan

    def _part(self, run: Run, unit: int) -> _Part:
        source = 0 if run.region is None else run.region[1]
        events = self.tape.events[run.start : run.end]
        return _Part(run.region, [(event, source) for event in events], unit)

    def _between(
        self, first: Run, last: Run, middle: list[int], runs: Mapping[int, Run]
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
        for event, (_, _, at_the_edge), instead in zip(near, whole, far, strict=True):
            if at_the_edge:
                events.append((instead, last.region[1]))
            else:
                events.append((event, first.region[1]))
        return events

    def _signature(self, run: Run, simulated: int) -> list[_Sign]:
        """What a run does, with blocks named by where they were born relative to it."""
        assert run.region is not None
        signature: list[_Sign] = []
        for event in self.tape.events[run.start : run.end]:
            block = self.tape.blocks[abs(event) - 1]
            if event > 0:
                birth = ("birth", block.operator, block.size, block.category)
                signature.append((birth, None, False))
                continue
            home = self.home.get(-event)
            if home is None:
                freed = f"a block of {block.operator} outside the layers"
                raise IrregularError(f"a middle unit frees {freed}")
            number, unit, key = home
            death = ("death", run.region[1] - unit, block.size)
            signature.append((death, (number, key), unit in (0, simulated - 1)))
        return signature

    def _emit_all(self, number: int, parts: list[_Part]) -> None:
        """Emit the parts of a chain; most of the middle units at once."""
        middle = [at for at, part in enumerate(parts) if part.repeats]
        if len(middle) <= _ONE_BY_ONE + 1:
            for part in parts:
                self._emit(number, part)
            return
        told = middle[_ONE_BY_ONE:-1]
        for part in parts[: told[0]]:
            self._emit(number, part)
        self._repeat(self.chains[number], [parts[at] for at in told], parts[told[0] - 1].unit)
        for part in parts[told[-1] + 1 :]:
            self._emit(number, part)

    def _repeat(self, chain: Chain, parts: list[_Part], source: int) -> None:
        """Emit middle units from the last two, which are `source` and the one before it.

        These two and the new ones only free blocks of middle units. From one to the next, the
        number of each block therefore grows by the same.
        """
        length = len(parts[0].events)
        end = len(self.events)
        before, events = self.events[end - 2 * length : end - length], self.events[end - length :]
        growth = list(map(sub, events, before))
        births = [event - 1 for event, _ in parts[0].events if event > 0]
        self.repeats.append((end - 2 * length, length, len(parts) + 2))
        step = parts[0].unit - source
        chain.line = Line(range(parts[0].unit, parts[-1].unit + step, step), source, len(births))
        for _ in parts:
            events = list(map(add, events, growth))
            self.events += events
            self.origin += births

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
            at_home = self.chains[number].home(at, key)
            if at_home is None:
                raise IrregularError(f"unit {part.unit} frees a block that unit {at} does not have")
            new = at_home
        self.events.append(-new)

    def _unit_of(self, born: int, part: _Part, source: int, chain: Chain) -> int:
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


def _agree(sign: _Sign, other: _Sign) -> bool:
    """Whether two units do the same at one event, as far as that can be known."""
    return sign[0] == other[0] and (sign[1] == other[1] or sign[2] or other[2])
