"""The answer about the rung of --from: what makes it fit, or run, or faster.

A plan simulates the changes. A probe does so too, and then measures the best.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from oomdoctor.analysis.changes.faster import to_run, to_speed_up
from oomdoctor.analysis.changes.search import (
    Answer,
    Judge,
    Search,
    Verdict,
    verdict_of,
    why_nothing_fits,
)
from oomdoctor.analysis.changes.sets import ChangeSet
from oomdoctor.analysis.changes.table import Change
from oomdoctor.analysis.command_line import settings_beyond
from oomdoctor.analysis.ranking import ordered
from oomdoctor.analysis.search.dominance import needs_more
from oomdoctor.analysis.search.ladder import Context, attempts_of, bound_of, fixed_size
from oomdoctor.analysis.simulator.predicted_attempts import sizes_to_predict
from oomdoctor.analysis.verdict import conclude
from oomdoctor.commands.user_training import write_change
from oomdoctor.records.configuration.config import Rung, TrainConfig, adapts_all_linear
from oomdoctor.records.facts.choices import AUTO
from oomdoctor.records.job.result import Attempt, ProbeResult, refused
from oomdoctor.records.report.report import SurveyRequest
from oomdoctor.records.report.user_training import (
    YOURS,
    AddedCode,
    ChangedLine,
    UserTraining,
    YourChange,
    YourRung,
)
from oomdoctor.stacks.programs import table_of
from oomdoctor.stacks.writing.patch import NotPatchedError

Tried = tuple[ChangeSet, ProbeResult]
Sized = tuple[Rung, tuple[int, ...]]  # a rung, and its micro-batch sizes
Simulate = Callable[[Sequence[ChangeSet]], list[Tried]]
Offers = Callable[[Change], bool]
Adapt = Callable[[TrainConfig], TrainConfig]

MOST_SHOWN = 3
_LEAST_SPEEDUP = 1.02  # less is within the error of any estimate
_QLORA_DEFAULTS = ("quant_storage", "kbit_prepare")
_ANSWERED = ("fits", "oom", "skipped", "unsupported")


def no_answer(row: ProbeResult) -> str | None:
    """Why no change of the rung is tried; None if some can be."""
    if row.outcome not in _ANSWERED or (row.failure and row.failure.code == "not_reached"):
        return row.reason or "it did not run"
    if row.config.micro_batch_size == AUTO:
        return "the files do not say the micro-batch size"
    return None


def unanswered(key: str, reason: str) -> YourRung:
    """The answer without a change, and why there is none."""
    return YourRung(key, YOURS, None, (), (), reason)


@dataclass(frozen=True, slots=True)
class Simulation:
    """A judge that simulates on one device.

    `run` simulates rungs at some micro-batch sizes each, and gives an attempt for each size. Rungs
    are called after `label`. Once `is_over()`, nothing more is simulated.
    """

    context: Context
    request: SurveyRequest
    run: Callable[[Sequence[Sized]], Iterable[tuple[Attempt, ...]]]
    label: str = YOURS
    is_over: Callable[[], bool] = lambda: False
    _attempts: dict[str, tuple[Attempt, ...]] = field(default_factory=dict)  # by rung_key()

    @property
    def usable_bytes(self) -> int:
        """What a rung may use."""
        return self.context.usable_bytes

    def judge(self, sets: Sequence[ChangeSet]) -> list[Verdict | None]:
        """Simulate each configuration; one recording serves all its micro-batch sizes."""
        if self.is_over():
            return [None] * len(sets)
        return [verdict_of(row) for _, row in self.rows(sets)]

    def least_bytes(self, config: TrainConfig) -> int:
        """Weights, gradients and states, by formula."""
        return bound_of(config, self.context).size_bytes

    def needs_more(self, more: TrainConfig, less: TrainConfig) -> bool:
        """Whether the rules of dominance say so."""
        return needs_more(more, less, self.context) is not None

    def rows(self, changes: Sequence[ChangeSet]) -> list[Tried]:
        """The simulated row of each change, at its best micro-batch size if it has none."""
        if self.is_over():
            return []
        for attempts in self.run(self._open(changes)):
            for attempt in attempts:
                key = attempt.config.rung_key()
                self._attempts[key] = (*self._attempts.get(key, ()), attempt)
        return [(changed, self.row(changed)) for changed in changes]

    def row(self, changed: ChangeSet) -> ProbeResult:
        """The row of a change that was simulated."""
        rung = changed_rung(changed, self.label)
        tried = attempts_of(rung, self._attempts)
        return conclude(rung, tried, None, self.context, self.request, "predicted")

    def _open(self, changes: Sequence[ChangeSet]) -> list[Sized]:
        """The rungs to simulate, without their micro-batch sizes; what cannot run is refused."""
        by_key: dict[str, Sized] = {}
        for changed in changes:
            size = fixed_size(changed.config, self.context)
            earlier = self._attempts.get(key := changed.config.rung_key(), ())
            reason = self.context.refuses(changed.config.with_micro_batch(size or 1))
            if reason is not None:
                self._attempts[key] = (*earlier, refused(changed.config, reason))
                continue
            alike = replace(changed, config=changed.config.with_micro_batch(AUTO))
            rung, sizes = by_key.get(key, (changed_rung(alike, self.label), ()))
            tried = {attempt.config.micro_batch_size for attempt in earlier}
            wanted = {*sizes, *sizes_to_predict(changed.config, size)} - tried
            if wanted:
                by_key[key] = rung, tuple(sorted(wanted))
        return list(by_key.values())


def changed_rung(changed: ChangeSet, label: str = YOURS) -> Rung:
    """The rung of --from, or another one, with changes."""
    return Rung(f"{label} with {changed.words}", changed.config)


def offered(
    training: UserTraining, config: TrainConfig, targets: tuple[str, ...] = ()
) -> tuple[Offers, Adapt]:
    """Which changes of a rung the user's files can hold, and how their program completes them.

    `targets` are the layers to name for LoRA; empty where `all-linear` does.
    """
    adapt = as_the_program_does(training, config, targets)

    def offers(change: Change) -> bool:
        steps = () if change.of_experts else change.steps(config)
        return any(_can_say(training, adapt(replace(config, **step))) for step in steps)

    return offers, adapt


def search_yours(
    training: UserTraining, row: ProbeResult, judge: Judge, targets: tuple[str, ...] = ()
) -> Answer:
    """Search for changes with which the rung fits; for `targets` see `offered`."""
    offers, adapt = offered(training, row.config, targets)
    own = verdict_of(row)
    return Search(row.config, own, judge, offers=offers, adapt=adapt, wanted=MOST_SHOWN).answer()


def other_changes(training: UserTraining, row: ProbeResult) -> tuple[ChangeSet, ...]:
    """What may make a rung faster that fits, or run if a package is missing."""
    changes = to_speed_up(row.config) if row.surely_fits else to_run(row.config)
    return tuple(
        changed
        for changed in changes
        if changed.config.micro_batch_size == AUTO or _can_say(training, changed.config)
    )


def simulate_faster(
    changes: Sequence[ChangeSet], simulate: Simulate, own: float | None
) -> tuple[list[Tried], tuple[str, ...]]:
    """The changes that are simulated to be faster than `own` tokens/s, and all simulated ones."""
    better = [pair for pair in simulate(changes) if is_faster(pair[1], own)]
    return fastest_first(better), tuple(changed.words for changed in changes)


def fastest_first(tried: Sequence[Tried]) -> list[Tried]:
    """Those with a speed, the fastest first, then the others; ties as in a ranking."""
    rows = ordered([row for _, row in tried], "throughput")
    places = {id(row): place for place, row in enumerate(rows)}
    return sorted(tried, key=lambda pair: places[id(pair[1])])


def is_faster(row: ProbeResult, own: float | None) -> bool:
    """Whether a changed rung fits and is faster than `own` tokens/s by more than the error."""
    if not row.surely_fits or own is None:
        return False
    return (row.tokens_per_s or 0.0) >= own * _LEAST_SPEEDUP


def at_chosen_size(changed: ChangeSet, row: ProbeResult) -> tuple[TrainConfig, str]:
    """A changed rung at the micro-batch size of its row, and the change in words."""
    if changed.config.micro_batch_size != AUTO or row.micro_batch_size is None:
        return changed.config, changed.words
    words = f"micro-batch size {row.micro_batch_size}"
    return changed.config.with_micro_batch(row.micro_batch_size), words


def too_large(
    row: ProbeResult,
    answer: Answer,
    simulation: Simulation,
    card_for: Callable[[ProbeResult], str | None],
) -> str:
    """What the changed rung that needs the least memory needs, and the cards that would do."""
    text = why_nothing_fits(answer, simulation.usable_bytes)
    small = card_for(simulation.row(answer.nearest[0])) if answer.nearest is not None else None
    own = card_for(row)
    cards = [f"{small} with it"] if small is not None else []
    cards += [f"{own} as it is"] if own is not None else []
    return f"{text}; smallest card: {', '.join(cards)}" if cards else text


def shown(
    training: UserTraining, base: ProbeResult, helpful: Sequence[Tried]
) -> tuple[YourChange, ...]:
    """The first changes that help, for the report."""
    return tuple(_change(training, base, *pair) for pair in helpful[:MOST_SHOWN])


def as_the_program_does(
    training: UserTraining, own: TrainConfig, targets: tuple[str, ...] = ()
) -> Adapt:
    """Completes a change to LoRA or QLoRA.

    QLoRA has the program's own defaults, which need no line in a file, and LoRA the `targets`.
    """
    defaults: dict[str, Any] = {}
    for file in training.files:
        table = table_of(file.path, file.format)
        defaults |= table.defaults if table is not None else {}
    taken = {name: defaults[name] for name in _QLORA_DEFAULTS if name in defaults}

    def adapt(config: TrainConfig) -> TrainConfig:
        if config.method == "qlora" and own.method != "qlora":
            config = replace(config, **taken)
        if targets and own.method == "full" and adapts_all_linear(config):
            config = replace(config, lora_targets=targets)
        return config

    return adapt


def _said(
    training: UserTraining, config: TrainConfig
) -> tuple[tuple[ChangedLine, ...], tuple[AddedCode, ...]]:
    """What to change in the files so that they say a configuration; empty if they cannot."""
    try:
        written = write_change(training, config)
    except NotPatchedError:
        return (), ()
    return written.lines, written.code


def _can_say(training: UserTraining, config: TrainConfig) -> bool:
    """Whether the user's files can hold a change."""
    return any(_said(training, config))


def _change(
    training: UserTraining, base: ProbeResult, changed: ChangeSet, row: ProbeResult
) -> YourChange:
    config, words = at_chosen_size(changed, row)
    lines, code = _said(training, config)
    speeds = (base.tokens_per_s, row.tokens_per_s)
    measured = row.measurement
    return YourChange(
        change=words,
        rung=",".join([YOURS, *settings_beyond(training.config, config)]),
        lines=lines,
        code=code,
        micro_batch_size=row.micro_batch_size,
        gradient_accumulation_steps=row.gradient_accumulation_steps,
        peak_device_bytes=measured.deciding_peak_bytes() if measured else row.peak_device_bytes,
        tokens_per_s=row.tokens_per_s,
        speedup=speeds[1] / speeds[0] if speeds[0] and speeds[1] else None,
        evidence=row.evidence,
    )
