"""The cheapest set of changes with which a training fits, or the proof that none does.

Sets of a cheaper tier come first. Within a tier, single changes come before several, and several
are what is left of all together after dropping every change that is not needed, the dearest first.
A judge says whether a configuration fits: the closed form, a simulation or a measurement. A change
that is not supported where the judge works rules out only the sets that have it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Literal, Protocol, get_args

from oomdoctor.analysis.changes.sets import ChangeSet, Lattice, listed
from oomdoctor.analysis.changes.table import Change, Part, Tier
from oomdoctor.records.configuration.config import TrainConfig
from oomdoctor.records.facts.choices import AUTO
from oomdoctor.records.job.measurement import Breakdown
from oomdoctor.records.job.result import ProbeResult
from oomdoctor.units import format_bytes

Outcome = Literal["fits", "borderline", "short", "unsupported"]
_AT_ONCE = 2  # recordings: as many as simulate in parallel
_PARTS: tuple[Part, ...] = get_args(Part)


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a judge says about a configuration.

    `needs_bytes` is its peak, and `tensors_bytes` what it needs whatever the allocator does.
    `parts` and `overhead_bytes` are what was on the device at the peak. None if unknown.
    """

    outcome: Outcome
    needs_bytes: int | None = None
    tensors_bytes: int | None = None
    parts: Breakdown | None = None
    overhead_bytes: int = 0
    reason: str | None = None


class Judge(Protocol):
    """Says whether configurations fit in `usable_bytes`."""

    @property
    def usable_bytes(self) -> int:
        """The memory that a configuration may use."""

    def judge(self, sets: Sequence[ChangeSet]) -> Sequence[Verdict | None]:
        """A verdict for each; None for those that it was stopped before."""

    def least_bytes(self, config: TrainConfig) -> int:
        """A certain lower bound of what a configuration needs; 0 if there is none."""

    def needs_more(self, more: TrainConfig, less: TrainConfig) -> bool:
        """Whether the first certainly needs at least as much as the second; False if unknown."""


Judged = tuple[ChangeSet, Verdict]


@dataclass(frozen=True, slots=True)
class Answer:
    """What a search found.

    `fitting` are sets that fit, the cheapest first; sets that are borderline only if no other fits.
    `judged` are all sets with a verdict, `nearest` the one that needs the least. `unsupported` are
    the changes that are not supported here, with the reason. `least_bytes` is what every set that
    a formula ruled out needs at least. Unless `complete`, the judge was stopped, and nothing
    follows from what was not found.
    """

    fitting: tuple[Judged, ...]
    judged: tuple[Judged, ...]
    nearest: Judged | None
    unsupported: Mapping[str, str]
    least_bytes: int | None
    complete: bool


def verdict_of(row: ProbeResult) -> Verdict:
    """What the row of a rung says about it."""
    measured = row.measurement
    if measured is None:
        short = row.missed_by_bytes is not None
        return Verdict("short" if short else "unsupported", reason=row.reason)
    return Verdict(
        "borderline" if row.borderline else "fits" if row.outcome == "fits" else "short",
        measured.deciding_peak_bytes(),
        measured.least_bytes(),
        row.breakdown,
        measured.overhead_bytes or 0,
        row.reason,
    )


def why_nothing_fits(answer: Answer, usable_bytes: int) -> str:
    """What the whole table comes to if no set of it fits, in words."""
    if not answer.complete:
        return "the search was interrupted"
    if answer.nearest is not None:
        nearest, verdict = answer.nearest
        needs = verdict.needs_bytes or 0
        short = format_bytes(needs - usable_bytes)
        return f"{nearest.words} needs the least, {format_bytes(needs)}, short by {short}"
    if answer.least_bytes is not None:
        short = format_bytes(answer.least_bytes - usable_bytes)
        needed = format_bytes(answer.least_bytes)
        return f"with any change it needs at least {needed}, short by {short}"
    if answer.unsupported:
        return f"not supported here: {listed(list(answer.unsupported))}"
    return "there is nothing left to change"


def _recorded(config: TrainConfig) -> TrainConfig:
    """What one model serves: micro-batch size and length are cheap to vary."""
    return replace(config, micro_batch_size=AUTO, sequence_length=1)


@dataclass(slots=True)
class Search:
    """A search of the table for sets with which `base` fits, until `wanted` are known.

    `own` is the verdict about `base` itself. Only changes that `offers` are used. `adapt` completes
    a changed configuration, such as with the defaults of the user's program. Only sets of `tiers`
    are searched. Invariant: every set of a finished tier was judged or ruled out.
    """

    base: TrainConfig
    own: Verdict | None
    judge: Judge
    offers: Callable[[Change], bool] = lambda change: True
    adapt: Callable[[TrainConfig], TrainConfig] = lambda config: config
    wanted: int = 1
    tiers: Sequence[Tier] = tuple(Tier)
    _judged: dict[TrainConfig, Judged] = field(init=False)
    _unsupported: dict[str, str] = field(default_factory=dict)
    _least: int | None = None
    _stopped: bool = False

    def __post_init__(self) -> None:
        own = {} if self.own is None else {self.base: (ChangeSet((), (), self.base), self.own)}
        self._judged = own

    def answer(self) -> Answer:
        """Search tier by tier."""
        fitting: list[Judged] = []
        for tier in self.tiers:
            fitting = self._of_tier(Lattice(self.base, tier, self.offers, self.adapt))
            if fitting or self._stopped:
                break
            if tier == Tier.SAME and tier != self.tiers[-1]:
                # If not even these fit, they rule out most sets of all tiers at once.
                last = Lattice(self.base, self.tiers[-1], self.offers, self.adapt)
                self._fronts(last)
        judged = tuple(pair for pair in self._judged.values() if pair[0].changes)
        sized = [pair for pair in judged if pair[1].needs_bytes is not None]
        nearest = min(sized, key=lambda pair: pair[1].needs_bytes or 0, default=None)
        if not fitting:
            near = (pair for pair in judged if pair[1].outcome == "borderline")
            usable = self.judge.usable_bytes
            fitting = [pair for pair in near if (pair[1].needs_bytes or 0) <= usable][:1]
        done = not self._stopped
        return Answer(tuple(fitting), judged, nearest, self._unsupported, self._least, done)

    def _of_tier(self, lattice: Lattice) -> list[Judged]:
        """Sets of the tier that fit, the cheapest first."""
        alone = self._alone(lattice)
        if alone or self._stopped or (start := self._any(lattice)) is None:
            return alone
        return [self._cheapest(lattice, start)]

    def _alone(self, lattice: Lattice) -> list[Judged]:
        """Single changes that fit, the cheapest first, until as many are known as wanted."""
        fitting: list[Judged] = []
        waiting = list(filter(None, map(self._open, lattice.singles())))
        while waiting and len(fitting) < self.wanted and not self._stopped:
            now, waiting = waiting[:_AT_ONCE], waiting[_AT_ONCE:]
            self._ask([changes for steps in now for changes in steps])
            first = (next(filter(self._fits, steps), None) for steps in now)
            fitting += [self._judged[changes.config] for changes in first if changes is not None]
        return fitting[: self.wanted]

    def _any(self, lattice: Lattice) -> ChangeSet | None:
        """A set of the tier that fits: everything together, otherwise any that is not ruled out."""
        now = self._fronts(lattice)
        everything = lattice.without(frozenset(self._unsupported)).all(self._ruled_out)
        waiting = (changes for singles in everything for changes in self._open([singles]))
        while True:
            fitting = next(filter(self._fits, now), None)
            now = [] if fitting or self._stopped else list(islice(waiting, _AT_ONCE))
            if not now:
                return fitting
            self._ask(now)

    def _fronts(self, lattice: Lattice) -> list[ChangeSet]:
        """Judge everything together for each method, without what turns out to be unsupported."""
        while not self._stopped:
            refused = frozenset(self._unsupported)
            fronts = list(lattice.without(refused).fronts())
            self._ask(self._open(fronts))
            if refused == self._unsupported.keys():
                return fronts
        return []

    def _cheapest(self, lattice: Lattice, chosen: ChangeSet) -> Judged:
        """The set without what it does not need: the dearest changes are dropped first.

        A change is as dear as the cheapest one that it can be replaced with.
        """
        for change in sorted(chosen.changes, key=lattice.cheapest_place, reverse=True):
            tries = lattice.milder(chosen, change.group)
            alike = all(_recorded(milder.config) == _recorded(chosen.config) for milder in tries)
            for batch in [tries] if alike else [[milder] for milder in tries]:
                self._ask(self._open(batch))
                if (fitting := next(filter(self._fits, batch), None)) is not None:
                    chosen = fitting
                    break
        return self._judged[chosen.config]

    def _open(self, sets: Sequence[ChangeSet]) -> list[ChangeSet]:
        """Those that were not judged and are not ruled out."""
        return [
            changes
            for changes in sets
            if changes.config not in self._judged
            and not changes.keys & self._unsupported.keys()
            and not self._ruled_out(changes)
        ]

    def _outcome(self, changes: ChangeSet) -> Outcome | None:
        judged = self._judged.get(changes.config)
        return None if judged is None else judged[1].outcome

    def _fits(self, changes: ChangeSet) -> bool:
        return self._outcome(changes) == "fits"

    def _ask(self, sets: Sequence[ChangeSet]) -> None:
        """Judge sets. If one is not supported, find the change that is to blame."""
        asked = list({changes.config: changes for changes in sets}.values())
        if not asked or self._stopped:
            return
        for changes, verdict in zip(asked, self.judge.judge(asked), strict=True):
            if verdict is None:
                self._stopped = True
            else:
                self._judged[changes.config] = changes, verdict
        for changes in asked:
            if self._outcome(changes) == "unsupported":
                self._blame(changes)

    def _blame(self, refused: ChangeSet) -> None:
        """Learn which change of a set that is not supported is the reason, if one alone is."""
        if len(refused.changes) == 1:
            (change,) = refused.changes
            self._unsupported[change.key] = self._judged[refused.config][1].reason or ""
            return
        innocent = {
            change.key
            for judged, verdict in self._judged.values()
            if verdict.outcome != "unsupported"
            for change in judged.changes
        }
        for change in refused.changes:
            if change.key in innocent or change.key in self._unsupported:
                continue
            lattice = Lattice(self.base, change.tier, self.offers, self.adapt)
            alone = [steps[-1] for steps in lattice.singles() if steps[-1].changes == (change,)]
            self._ask([changes for changes in alone if changes.config not in self._judged])

    def _ruled_out(self, changes: ChangeSet) -> bool:
        """Whether a set certainly needs more than there is."""
        usable = self.judge.usable_bytes
        least = self.judge.least_bytes(changes.config)
        if least > usable:
            self._least = least if self._least is None else min(least, self._least)
            return True
        for other, verdict in self._judged.values():
            same = changes.config.allocator == other.config.allocator
            near = verdict.outcome == "borderline" and same
            if near and self.judge.needs_more(changes.config, other.config):
                return True  # it is borderline at best
            if verdict.outcome != "short":
                continue
            alike = replace(changes.config, allocator=other.config.allocator)
            if (verdict.tensors_bytes or 0) > usable and self.judge.needs_more(alike, other.config):
                return True
            if at_least(changes, other, verdict) > usable:
                return True
        return False


def at_least(changes: ChangeSet, other: ChangeSet, verdict: Verdict) -> int:
    """What a set needs at least, if another one with some of its changes needs what was judged.

    Nothing but the parts that the other changes free can be smaller; temporaries, and what the
    allocator holds beyond tensors, may be gone. 0 if the other one has more changes, or if vLLM has
    less of the card than there.
    """
    parts = verdict.parts
    if parts is None or not other.keys <= changes.keys:
        return 0
    if any(change.of_engine and change.key not in other.keys for change in changes.changes):
        return 0
    left: dict[str, int] = {name: getattr(parts, f"{name}_bytes") for name in _PARTS}
    grows = 1.0
    for change in changes.changes:
        if change.group == "batch" and change.tier == Tier.SAME:
            now, before = changes.config.micro_batch_size, other.config.micro_batch_size
            are_sizes = isinstance(now, int) and isinstance(before, int)
            grows *= min(1.0, int(now) / int(before)) if are_sizes else 0.0
        elif change.group == "length":
            shorter = changes.config.sequence_length / other.config.sequence_length
            grows *= min(1.0, shorter * shorter)
        elif change.key not in other.keys:
            left |= dict.fromkeys(change.frees, 0)
            if "logits" in change.frees and not parts.logits_bytes:
                left["activations"] = 0  # some engines count logits there
    if changes.config.accumulation_steps() == 1 and other.config.accumulation_steps() > 1:
        left["gradients"] = 0  # none are held while it computes activations
    left |= {name: int(left[name] * grows) for name in ("activations", "logits")}
    return sum(left.values()) + verdict.overhead_bytes
