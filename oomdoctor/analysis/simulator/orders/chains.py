"""The runs of a tape: consecutive events of one unit, and chains of those of neighbouring units."""

from __future__ import annotations

from dataclasses import dataclass, field

from oomdoctor.analysis.simulator.tape import Region, Tape

Key = tuple[str, int, int]  # operator, size, number of such births before it in the run


@dataclass(slots=True)
class Run:
    """Consecutive events of one unit; region None for those outside the layers."""

    region: Region | None
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class Line:
    """Middle units in the order in which a chain has them: each has `births` blocks more.

    The blocks of the unit `origin` are known, and tell those of the others.
    """

    units: range
    origin: int
    births: int

    def distance(self, unit: int) -> int:
        """From a block of `origin` to the same block of another one."""
        return (unit - self.origin) * self.units.step * self.births


@dataclass(slots=True)
class Chain:
    """Runs of one stack in ascending or descending order of its units, or one run outside.

    `homes` has the new block of a (new unit, key), except for those that `line` tells.
    """

    runs: list[Run]
    homes: dict[tuple[int, Key], int] = field(default_factory=dict)
    line: Line | None = None

    def home(self, unit: int, key: Key) -> int | None:
        line = self.line
        if line is None or unit not in line.units:
            return self.homes.get((unit, key))
        source = self.homes.get((line.origin, key))
        return None if source is None else source + line.distance(unit)


def _runs(tape: Tape, breaks: set[int]) -> list[Run]:
    runs: list[Run] = []
    for position, region in enumerate(tape.regions):
        if runs and runs[-1].region == region and position not in breaks:
            runs[-1].end = position + 1
        else:
            runs.append(Run(region, position, position + 1))
    return runs


def chains_of(tape: Tape) -> list[Chain]:
    """Adjacent runs in one window whose units go up or down by one form a chain."""
    breaks = {start for start, _, _ in tape.windows}
    chains: list[Chain] = []
    for run in _runs(tape, breaks):
        if chains and run.start not in breaks and _continues(chains[-1], run):
            chains[-1].runs.append(run)
        else:
            chains.append(Chain([run]))
    return chains


def _continues(chain: Chain, run: Run) -> bool:
    last = chain.runs[-1].region
    if last is None or run.region is None or last[0] != run.region[0]:
        return False
    step = run.region[1] - last[1]
    if len(chain.runs) == 1:
        return abs(step) == 1
    before = chain.runs[-2].region
    return before is not None and step == last[1] - before[1]
