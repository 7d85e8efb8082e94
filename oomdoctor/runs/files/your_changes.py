"""Changes of the rung of --from: those worth a try, in which order, and the answer of the tried.

A plan simulates them. A probe does so too, and then measures the best.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from oomdoctor.analysis.command_line import own_rung_text
from oomdoctor.analysis.search.changes import why_nothing_fits
from oomdoctor.analysis.search.own_rung import OneChange, to_fit, to_run, to_speed_up
from oomdoctor.records.config import Rung
from oomdoctor.records.report import SurveyRequest
from oomdoctor.records.result import ProbeResult
from oomdoctor.records.rung.choices import AUTO
from oomdoctor.records.user_training import YOURS, UserTraining, YourChange, YourRung
from oomdoctor.runs.files.user_training import write_change
from oomdoctor.stacks.programs import table_of
from oomdoctor.stacks.writing.patch import NotPatchedError
from oomdoctor.units import format_bytes

Tried = tuple[OneChange, ProbeResult]
Simulate = Callable[[Sequence[OneChange]], list[Tried]]

_MOST_SIMULATIONS = 20
_MOST_SHOWN = 3
_LEAST_SPEEDUP = 1.02  # less is within the error of any estimate
_KEPT_RESULT = 4  # the highest cost of a change that computes the same
_QLORA_DEFAULTS = ("quant_storage", "kbit_prepare")
_ANSWERED = ("fits", "oom", "skipped", "unsupported")


def no_answer(row: ProbeResult) -> str | None:
    """Why no change of the rung is tried; None if some can be."""
    if row.outcome not in _ANSWERED or (row.failure and row.failure.code == "not_reached"):
        return row.reason or "it did not run"
    if row.config.micro_batch_size == AUTO:
        return "the files do not say the micro-batch size"
    return None


def rung_with(one: OneChange) -> Rung:
    """The rung of --from with a change."""
    return Rung(f"{YOURS} with {one.words}", one.config)


def changes_to_try(
    training: UserTraining, row: ProbeResult, usable_bytes: int
) -> tuple[OneChange, ...]:
    """What may make the rung fit, or run, or faster if it fits; only what the files can hold."""
    if row.outcome == "fits":
        found = to_speed_up(row)
    elif row.outcome == "unsupported":
        found = to_run(row)
    else:
        found = to_fit(row, usable_bytes)
    usual = [_as_the_program_does(training, row, one) for one in found]
    return tuple(one for one in usual if _can_say(training, one))


@dataclass(frozen=True, slots=True)
class Simulated:
    """The changes that are simulated to fit, the best first, and all that were simulated.

    If none fits, `least` is the one that needs the least memory.
    """

    fitting: tuple[Tried, ...]
    tried: tuple[str, ...]
    least: Tried | None = None


def simulate_fitting(changes: Sequence[OneChange], simulate: Simulate) -> Simulated:
    """Simulate changes until some fit: first all that keep the result, then two at a time."""
    left, tried = list(changes), list[Tried]()
    while left and len(tried) < _MOST_SIMULATIONS:
        # All that keep the result together; others only if none of these is enough.
        batch = [one for one in left if one.cost <= _KEPT_RESULT] or left[:2]
        batch = batch[: _MOST_SIMULATIONS - len(tried)]
        left = [one for one in left if one not in batch]
        tried += simulate(batch)
        fitting = [pair for pair in tried if pair[1].surely_fits]
        if fitting:
            return Simulated(tuple(best_first(fitting)), _words(tried))
    known = [pair for pair in tried if pair[1].peak_device_bytes is not None]
    least = min(known, key=lambda pair: pair[1].peak_device_bytes or 0, default=None)
    return Simulated((), _words(tried), least)


def _words(tried: Sequence[Tried]) -> tuple[str, ...]:
    return tuple(one.words for one, _ in tried)


def simulate_faster(
    changes: Sequence[OneChange], simulate: Simulate, own: float | None
) -> tuple[list[Tried], tuple[str, ...]]:
    """The changes that are simulated to be faster than `own` tokens/s, and all simulated ones."""
    asked = changes[:_MOST_SIMULATIONS]
    better = [pair for pair in simulate(asked) if is_faster(pair[1], own)]
    better.sort(key=lambda pair: -(pair[1].tokens_per_s or 0.0))
    return better, tuple(one.words for one in asked)


def best_first(tried: Sequence[Tried]) -> list[Tried]:
    """Those that keep the result before others, those with shorter rows last; the fastest first."""
    return sorted(
        tried,
        key=lambda pair: (
            pair[0].shortens,
            pair[0].cost > _KEPT_RESULT,
            -(pair[1].tokens_per_s or 0.0),
        ),
    )


def is_faster(row: ProbeResult, own: float | None) -> bool:
    """Whether a changed rung fits and is faster than `own` tokens/s by more than the error."""
    if not row.surely_fits or own is None:
        return False
    return (row.tokens_per_s or 0.0) >= own * _LEAST_SPEEDUP


def answer_fits(
    request: SurveyRequest,
    training: UserTraining,
    row: ProbeResult,
    found: Sequence[Tried],
    tried: tuple[str, ...],
    usable_bytes: int,
    least: Tried | None = None,
    card_for: Callable[[ProbeResult], str | None] = lambda _: None,
) -> YourRung:
    """The answer about a rung that does not fit, or does not run; `found` are those that do.

    `least` is the change that needs the least memory, and `card_for` names a card for a rung.
    """
    changes = _changes(request, training, row, found)
    if changes:
        return YourRung(row.key, YOURS, "fits", changes, tried, None)
    if row.outcome == "unsupported":
        return YourRung(row.key, YOURS, None, (), tried, None)
    reason = why_nothing_fits(row, usable_bytes, tried)
    if least is not None:
        reason = _too_large(row, least, usable_bytes, card_for)
    return YourRung(row.key, YOURS, "fits", (), tried, reason)


def _too_large(
    row: ProbeResult,
    least: Tried,
    usable_bytes: int,
    card_for: Callable[[ProbeResult], str | None],
) -> str:
    """What the smallest of the changed rungs needs, and the smallest cards that would do."""
    one, changed = least
    peak = changed.peak_device_bytes or 0
    short = format_bytes(peak - usable_bytes)
    text = f"{one.words} needs the least, {format_bytes(peak)}, short by {short}"
    small, own = card_for(changed), card_for(row)
    cards = [f"{small} with it"] if small is not None else []
    cards += [f"{own} as it is"] if own is not None else []
    return f"{text}; smallest card: {', '.join(cards)}" if cards else text


def answer_faster(
    request: SurveyRequest,
    training: UserTraining,
    row: ProbeResult,
    found: Sequence[Tried],
    tried: tuple[str, ...],
    nothing: str,
) -> YourRung:
    """The answer about a rung that fits; `nothing` is the reason if none is found."""
    changes = _changes(request, training, row, found)
    return YourRung(row.key, YOURS, "faster", changes, tried, None if changes else nothing)


def _changes(
    request: SurveyRequest, training: UserTraining, row: ProbeResult, found: Sequence[Tried]
) -> tuple[YourChange, ...]:
    return tuple(_change(request, training, row, *pair) for pair in found[:_MOST_SHOWN])


def _as_the_program_does(training: UserTraining, row: ProbeResult, one: OneChange) -> OneChange:
    """The change to QLoRA with the program's own defaults, which need no line in a file."""
    if one.config.method != "qlora" or row.config.method == "qlora":
        return one
    defaults: dict[str, Any] = {}
    for file in training.files:
        table = table_of(file.path, file.format)
        defaults |= table.defaults if table is not None else {}
    taken = {name: defaults[name] for name in _QLORA_DEFAULTS if name in defaults}
    return replace(one, config=replace(one.config, **taken))


def _can_say(training: UserTraining, one: OneChange) -> bool:
    """Whether the user's files can hold the change."""
    config = one.config
    if config.micro_batch_size == AUTO:
        return True
    try:
        found = write_change(training, config)
    except NotPatchedError:
        return False
    return bool(found.lines or found.code)


def _change(
    request: SurveyRequest,
    training: UserTraining,
    base: ProbeResult,
    one: OneChange,
    row: ProbeResult,
) -> YourChange:
    config, words = one.config, one.words
    if config.micro_batch_size == AUTO and row.micro_batch_size is not None:
        config = config.with_micro_batch(row.micro_batch_size)
        words = f"micro-batch size {row.micro_batch_size}"
    said = write_change(training, config)
    speeds = (base.tokens_per_s, row.tokens_per_s)
    measured = row.measurement
    return YourChange(
        change=words,
        rung=own_rung_text(config, training.config),
        lines=said.lines,
        code=said.code,
        micro_batch_size=row.micro_batch_size,
        gradient_accumulation_steps=row.gradient_accumulation_steps,
        peak_device_bytes=measured.deciding_peak_bytes() if measured else row.peak_device_bytes,
        tokens_per_s=row.tokens_per_s,
        speedup=speeds[1] / speeds[0] if speeds[0] and speeds[1] else None,
        evidence=row.evidence,
    )
