"""The answer about the rung of --from: what makes it fit, or run, or faster.

A plan simulates the changes. A probe does so too, and then measures the best.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from oomdoctor.analysis.changes.faster import to_run, to_speed_up
from oomdoctor.analysis.changes.search import Answer, Judge, search, verdict_of, why_nothing_fits
from oomdoctor.analysis.changes.sets import ChangeSet
from oomdoctor.analysis.changes.table import Change
from oomdoctor.analysis.command_line import own_rung_text
from oomdoctor.records.config import Rung, TrainConfig
from oomdoctor.records.facts.choices import AUTO
from oomdoctor.records.result import ProbeResult
from oomdoctor.records.user_training import (
    YOURS,
    AddedCode,
    ChangedLine,
    UserTraining,
    YourChange,
    YourRung,
)
from oomdoctor.runs.files.user_training import write_change
from oomdoctor.stacks.programs import table_of
from oomdoctor.stacks.writing.patch import NotPatchedError

Tried = tuple[ChangeSet, ProbeResult]
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


def changed_rung(found: ChangeSet) -> Rung:
    """The rung of --from with changes."""
    return Rung(f"{YOURS} with {found.words}", found.config)


def offered(training: UserTraining, config: TrainConfig) -> tuple[Offers, Adapt]:
    """Which changes of a rung the user's files can hold, and how their program completes them."""
    adapt = _as_the_program_does(training, config)

    def offers(change: Change) -> bool:
        steps = change.steps(config)
        return any(_can_say(training, adapt(change.applied(config, step))) for step in steps)

    return offers, adapt


def search_yours(training: UserTraining, row: ProbeResult, judge: Judge) -> Answer:
    """Search for changes with which the rung fits."""
    offers, adapt = offered(training, row.config)
    own = verdict_of(row)
    return search(row.config, own, judge, offers=offers, adapt=adapt, wanted=MOST_SHOWN)


def other_changes(training: UserTraining, row: ProbeResult) -> tuple[ChangeSet, ...]:
    """What may make a rung faster that fits, or run if a package is missing."""
    found = to_speed_up(row.config) if row.surely_fits else to_run(row.config)
    return tuple(
        one
        for one in found
        if one.config.micro_batch_size == AUTO or _can_say(training, one.config)
    )


def simulate_faster(
    changes: Sequence[ChangeSet], simulate: Simulate, own: float | None
) -> tuple[list[Tried], tuple[str, ...]]:
    """The changes that are simulated to be faster than `own` tokens/s, and all simulated ones."""
    better = [pair for pair in simulate(changes) if is_faster(pair[1], own)]
    return fastest_first(better), tuple(one.words for one in changes)


def fastest_first(tried: Sequence[Tried]) -> list[Tried]:
    """Those with a speed, the fastest first, then the others."""
    return sorted(tried, key=lambda pair: -(pair[1].tokens_per_s or 0.0))


def is_faster(row: ProbeResult, own: float | None) -> bool:
    """Whether a changed rung fits and is faster than `own` tokens/s by more than the error."""
    if not row.surely_fits or own is None:
        return False
    return (row.tokens_per_s or 0.0) >= own * _LEAST_SPEEDUP


def answer_fits(
    training: UserTraining,
    row: ProbeResult,
    answer: Answer,
    row_of: Callable[[ChangeSet], ProbeResult],
    usable_bytes: int,
    card_for: Callable[[ProbeResult], str | None],
) -> YourRung:
    """The answer about a rung that does not fit, from a search by simulation.

    `row_of` gives the simulated row of a set, and `card_for` names a card for a row.
    """
    tried = tuple(one.words for one, _ in answer.judged)
    found = [(one, row_of(one)) for one, _ in answer.fitting]
    reason = None if found else too_large(row, answer, row_of, usable_bytes, card_for)
    return YourRung(row.key, YOURS, "fits", shown(training, row, found), tried, reason)


def answer_runs(training: UserTraining, row: ProbeResult, tried: Sequence[Tried]) -> YourRung:
    """The answer about a rung that does not run here; nothing if no change of it does."""
    words = tuple(one.words for one, _ in tried)
    fitting = [pair for pair in tried if pair[1].surely_fits]
    changes = shown(training, row, fastest_first(fitting))
    return YourRung(row.key, YOURS, "fits" if fitting else None, changes, words, None)


def answer_faster(
    training: UserTraining,
    row: ProbeResult,
    found: Sequence[Tried],
    tried: tuple[str, ...],
    nothing: str,
) -> YourRung:
    """The answer about a rung that fits; `nothing` is the reason if none is found."""
    changes = shown(training, row, found)
    return YourRung(row.key, YOURS, "faster", changes, tried, None if changes else nothing)


def too_large(
    row: ProbeResult,
    answer: Answer,
    row_of: Callable[[ChangeSet], ProbeResult],
    usable_bytes: int,
    card_for: Callable[[ProbeResult], str | None],
) -> str:
    """What the changed rung that needs the least memory needs, and the cards that would do."""
    text = why_nothing_fits(answer, usable_bytes)
    small = card_for(row_of(answer.nearest[0])) if answer.nearest is not None else None
    own = card_for(row)
    cards = [f"{small} with it"] if small is not None else []
    cards += [f"{own} as it is"] if own is not None else []
    return f"{text}; smallest card: {', '.join(cards)}" if cards else text


def shown(
    training: UserTraining, base: ProbeResult, found: Sequence[Tried]
) -> tuple[YourChange, ...]:
    """The first changes that help, for the report."""
    return tuple(_change(training, base, *pair) for pair in found[:MOST_SHOWN])


def _as_the_program_does(training: UserTraining, own: TrainConfig) -> Adapt:
    """Completes a change to QLoRA with the program's own defaults, which need no line in a file."""
    defaults: dict[str, Any] = {}
    for file in training.files:
        table = table_of(file.path, file.format)
        defaults |= table.defaults if table is not None else {}
    taken = {name: defaults[name] for name in _QLORA_DEFAULTS if name in defaults}

    def adapt(config: TrainConfig) -> TrainConfig:
        quantized = config.method == "qlora" and own.method != "qlora"
        return replace(config, **taken) if quantized else config

    return adapt


def _said(
    training: UserTraining, config: TrainConfig
) -> tuple[tuple[ChangedLine, ...], tuple[AddedCode, ...]]:
    """What to change in the files so that they say a configuration; empty if they cannot."""
    try:
        found = write_change(training, config)
    except NotPatchedError:
        return (), ()
    return found.lines, found.code


def _can_say(training: UserTraining, config: TrainConfig) -> bool:
    """Whether the user's files can hold a change."""
    return any(_said(training, config))


def _change(
    training: UserTraining, base: ProbeResult, one: ChangeSet, row: ProbeResult
) -> YourChange:
    config, words = one.config, one.words
    if config.micro_batch_size == AUTO and row.micro_batch_size is not None:
        config = config.with_micro_batch(row.micro_batch_size)
        words = f"micro-batch size {row.micro_batch_size}"
    lines, code = _said(training, config)
    speeds = (base.tokens_per_s, row.tokens_per_s)
    measured = row.measurement
    return YourChange(
        change=words,
        rung=own_rung_text(config, training.config),
        lines=lines,
        code=code,
        micro_batch_size=row.micro_batch_size,
        gradient_accumulation_steps=row.gradient_accumulation_steps,
        peak_device_bytes=measured.deciding_peak_bytes() if measured else row.peak_device_bytes,
        tokens_per_s=row.tokens_per_s,
        speedup=speeds[1] / speeds[0] if speeds[0] and speeds[1] else None,
        evidence=row.evidence,
    )
