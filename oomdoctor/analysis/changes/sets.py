"""Sets of changes of a training: which there are, and what each makes of a configuration."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product

from oomdoctor.analysis.changes.table import TABLE, Change, Tier
from oomdoctor.records.configuration.config import TrainConfig
from oomdoctor.records.configuration.faults import config_faults

Option = tuple[Change, int]
"""A change, and which of its steps."""
Chosen = Mapping[str, Option]
"""By group."""


@dataclass(frozen=True, slots=True)
class ChangeSet:
    """Some changes of a training, in the order of the table, and the configuration with them.

    `steps` say how far each change goes.
    """

    changes: tuple[Change, ...]
    steps: tuple[int, ...]
    config: TrainConfig

    @property
    def words(self) -> str:
        """`micro-batch size 1, activation checkpointing and 8-bit AdamW`."""
        return listed([change.text(self.config) for change in self.changes])

    @property
    def tier(self) -> Tier:
        """That of its dearest change."""
        return max(change.tier for change in self.changes)

    @property
    def keys(self) -> frozenset[str]:
        """The keys of its changes."""
        return frozenset(change.key for change in self.changes)


def listed(words: Sequence[str]) -> str:
    """`a, b and c`."""
    return " and ".join(filter(None, [", ".join(words[:-1]), *words[-1:]]))


def sets_in_order(
    base: TrainConfig,
    offers: Callable[[Change], bool] = lambda change: True,
    adapt: Callable[[TrainConfig], TrainConfig] = lambda config: config,
) -> Iterator[ChangeSet]:
    """Sets without a judge, in the order in which to try them: each change alone, then together."""
    for tier in Tier:
        lattice = Lattice(base, tier, offers, adapt)
        yield from (steps[-1] for steps in lattice.singles())
        yield from lattice.fronts()


class Lattice:
    """The sets of one tier."""

    def __init__(
        self,
        base: TrainConfig,
        tier: Tier,
        offers: Callable[[Change], bool],
        adapt: Callable[[TrainConfig], TrainConfig],
    ) -> None:
        self.base, self.tier, self._adapt = base, tier, adapt
        self._rows = [change for change in TABLE if change.tier <= tier and offers(change)]
        self._faulty = frozenset(key for key, _ in config_faults(base))

    def without(self, keys: frozenset[str]) -> Lattice:
        """The sets without some changes."""
        kept = {row.key for row in self._rows} - keys
        return Lattice(self.base, self.tier, lambda change: change.key in kept, self._adapt)

    def singles(self) -> Iterator[list[ChangeSet]]:
        """Each change alone, with all its steps, the mildest first."""
        for change in self._rows:
            if change.tier == self.tier:
                steps = [{change.group: (change, n)} for n in range(_count(change, self.base))]
                if single := list(filter(None, map(self.made, steps))):
                    yield single

    def methods(self) -> Iterator[dict[str, Option]]:
        """The methods of the tier: as it is, and each other one."""
        others = [row for row in self._rows if row.group == "method" and _count(row, self.base)]
        if self.tier in (Tier.LORA, Tier.QLORA):
            others = [row for row in others if row.tier == self.tier]
        else:
            yield {}
        yield from ({"method": (row, 0)} for row in others)

    def groups(self, method: Chosen) -> dict[str, list[Option]]:
        """What each group can be changed to with a method, the mildest first."""
        start = self._applied(method) or self.base
        by_group: dict[str, list[Option]] = {}
        for row in self._rows:
            options = [(row, number) for number in range(_count(row, start))]
            if options and row.group != "method":
                by_group.setdefault(row.group, []).extend(options)
        return by_group

    def fronts(self) -> Iterator[ChangeSet]:
        """For each method, everything that helps, as far as it goes."""
        for method in self.methods():
            chosen = dict(method)
            for group, options in self.groups(method).items():
                for option in reversed(options):  # the last that does not contradict the others
                    if self._applied({**chosen, group: option}) is not None:
                        chosen[group] = option
                        break
            if (made := self.made(chosen)) is not None:
                yield made

    def all(
        self, is_too_large: Callable[[ChangeSet], bool] = lambda changes: False
    ) -> Iterator[ChangeSet]:
        """Every set of the tier, each change as far as it goes, the strongest sets first.

        A milder step never needs less: larger micro-batches and longer rows only add to a peak. So
        does leaving out a change: the subsets of a `is_too_large` set are left out with it.
        """
        for method in self.methods():
            named = self.groups(method)
            furthest = ({change.key: (change, n) for change, n in each} for each in named.values())
            choices = product(*(reversed(last.values()) for last in furthest))
            sets = [dict(zip(named, chosen, strict=True)) for chosen in choices]
            while sets:
                going_on: list[dict[str, Option]] = []
                for chosen in sets:
                    made = self.made({**method, **chosen})
                    if made is not None and is_too_large(made):
                        continue
                    going_on.append(chosen)
                    if made is not None:
                        yield made
                sets = self._without_one_more(going_on, method)

    def _without_one_more(
        self, sets: Sequence[dict[str, Option]], method: Chosen
    ) -> list[dict[str, Option]]:
        """The sets with one change fewer, as far as the tier is still reached, each once."""
        fewer = (
            {name: option for name, option in chosen.items() if name != group}
            for chosen in sets
            for group in chosen
        )
        reaching = [
            chosen
            for chosen in fewer
            if any(change.tier == self.tier for change, _ in (*chosen.values(), *method.values()))
        ]
        return list({frozenset(chosen.items()): chosen for chosen in reaching}.values())

    def cheapest_place(self, change: Change) -> int:
        """The place in the table of the cheapest change of the same group that applies."""
        alike = [row for row in self._rows if row.group == change.group and _count(row, self.base)]
        return min(TABLE.index(row) for row in (*alike, change))

    def milder(self, changes: ChangeSet, group: str) -> list[ChangeSet]:
        """The set without its change of a group, then with milder ones, if it stays in the tier."""
        options = zip(changes.changes, changes.steps, strict=True)
        chosen = {change.group: (change, step) for change, step in options}
        method = {name: option for name, option in chosen.items() if name == "method"}
        now = chosen.pop(group)
        offered = self.groups(method).get(group, [])
        milder = offered[: offered.index(now)] if now in offered else []
        tries = [chosen, *({**chosen, group: option} for option in milder)]
        return list(filter(None, map(self.made, tries)))

    def made(self, chosen: Chosen) -> ChangeSet | None:
        """The set of these changes; None if it is empty, contradictory or of another tier."""
        options = sorted(chosen.values(), key=lambda option: TABLE.index(option[0]))
        changes = tuple(change for change, _ in options)
        if not changes or max(change.tier for change in changes) != self.tier:
            return None
        config = self._applied(chosen)
        if config is None or config == self.base:
            return None
        return ChangeSet(changes, tuple(step for _, step in options), config)

    def _applied(self, chosen: Chosen) -> TrainConfig | None:
        """The configuration with the changes, the method first; None if it contradicts itself."""
        config = self.base
        rows = sorted(
            chosen.values(), key=lambda pair: (pair[0].group != "method", TABLE.index(pair[0]))
        )
        for change, number in rows:
            steps = list(change.steps(config))
            if number >= len(steps):
                return None
            config = self._adapt(replace(config, **steps[number]))
        faulty = {key for key, _ in config_faults(config)} if chosen else set()
        return config if faulty <= self._faulty else None


def _count(change: Change, config: TrainConfig) -> int:
    return sum(1 for _ in change.steps(config))
