"""What makes the rung of --from fit, or faster, in a probe: the best changes are measured.

They come after the ladder. The simulator chooses which ones are worth a measurement. Without it,
the cheapest are measured.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import partial

from oomdoctor.analysis.changes.search import Answer
from oomdoctor.analysis.changes.sets import ChangeSet, sets_in_order
from oomdoctor.analysis.search.from_prediction import RungPrediction
from oomdoctor.commands.devices.cards import room_for
from oomdoctor.commands.jobs.launch import Stopped
from oomdoctor.commands.ladder import your_changes as yours
from oomdoctor.commands.ladder.your_changes import Simulation, Sized, Tried
from oomdoctor.commands.probe.knowledge import Knowledge, predict_rungs
from oomdoctor.commands.probe.state import SurveyState
from oomdoctor.commands.probe.walk import SurveyJobs, walk
from oomdoctor.records.job.result import Attempt, ProbeResult
from oomdoctor.records.report.user_training import YOURS, Aim, UserTraining, YourRung

_ENOUGH = 2  # changes that help
_MOST_MEASURED = 3


def unmeasured(state: SurveyState) -> YourRung | None:
    """The answer about the rung of --from before a change of it is measured; None without one."""
    rung = state.own_rung()
    if rung is None:
        return None
    return yours.unanswered(rung.config.key(), "no change of it was measured")


def try_changes(state: SurveyState, jobs: SurveyJobs, knowledge: Knowledge | None) -> None:
    """Measure the changes that promise most, until some help or an end is requested."""
    training, rung = state.request.user_training, state.own_rung()
    if training is None or rung is None or jobs.ending.is_over():
        return
    row = state.row(rung)
    reason = yours.no_answer(row)
    if reason is None and row.outcome == "fits":
        reason = _not_comparable(state, row)
    if reason is not None:
        state.yours = yours.unanswered(row.key, reason)
        return
    simulation, predicted = None, dict[str, RungPrediction]()
    if knowledge is not None and row.key in state.predicted.rungs:
        simulation = _simulation(state, jobs, knowledge, predicted)
    changes, ruled_out = _promising(state, training, row, simulation)
    tried: list[Tried] = []
    for candidate in changes:
        if jobs.ending.is_over() or _is_enough(row, tried):
            break
        changed = yours.changed_rung(candidate)
        state.add_change(changed, predicted)
        with suppress(Stopped):
            walk(state, jobs, None)
        result = state.row(changed)
        if _was_tried(candidate, row, result):
            tried.append((candidate, result))
            state.yours = _answer(training, row, tried, None)
    if not jobs.ending.is_over():
        state.yours = _answer(training, row, tried, ruled_out)


def _simulation(
    state: SurveyState, jobs: SurveyJobs, knowledge: Knowledge, predicted: dict[str, RungPrediction]
) -> Simulation:
    """A judge on the device of the probe, with what earlier probes measured; fills `predicted`."""

    is_over = jobs.ending.is_over

    def run(rungs: Sequence[Sized]) -> Iterator[tuple[Attempt, ...]]:
        sizes = {rung.config.key(): sizes for rung, sizes in rungs}
        asked = [rung for rung, _ in rungs]
        learned = knowledge.learned
        ladder = predict_rungs(state, asked, learned, sizes, on_event=jobs.on_event, stop=is_over)
        predicted.update(ladder.rungs)
        yield from ladder.attempts.values()

    return Simulation(state.context, state.request, run, is_over=is_over)


def _not_comparable(state: SurveyState, row: ProbeResult) -> str | None:
    """Why nothing can be said to be faster than the rung; None if it can."""
    if state.context.emulated:
        return "it fits, and an emulated GPU has no speeds to compare"
    if row.tokens_per_s is None or row.speed_state == "not_believable":
        return "it fits, but its speed was not measured"
    if row.speed_state == "not_settled":
        return "it fits, but its step times did not settle"
    return None


def _promising(
    state: SurveyState, training: UserTraining, row: ProbeResult, simulation: Simulation | None
) -> tuple[Sequence[ChangeSet], tuple[tuple[str, ...], str] | None]:
    """The changes that are worth a measurement, the best first.

    Where none is, also the words of all that were simulated, and why they do not help.
    """
    targets = state.lora_targets()
    if row.outcome in ("fits", "unsupported"):
        changes = yours.other_changes(training, row)
        if simulation is None:
            return changes, None
        if row.outcome == "unsupported":
            return [
                changed for changed, result in simulation.rows(changes) if result.surely_fits
            ], None
        own = state.context.predictions[row.key].rates.get(row.micro_batch_size or 0)
        if own is None:  # no speeds are estimated for this device
            fitting = [
                changed for changed, result in simulation.rows(changes) if result.surely_fits
            ]
            return fitting, None
        better, tried = yours.simulate_faster(changes, simulation.rows, own)
        return [changed for changed, _ in better], (tried, "no single change is faster")
    if simulation is None:
        return tuple(sets_in_order(row.config, *yours.offered(training, row.config, targets))), None
    answer = yours.search_yours(training, row, simulation, targets)
    words = tuple(changed.words for changed, _ in answer.judged)
    return [changed for changed, _ in answer.fitting], (
        words,
        _why_none(state, row, answer, simulation),
    )


def _why_none(state: SurveyState, row: ProbeResult, answer: Answer, simulation: Simulation) -> str:
    context, headroom = state.context, state.request.headroom
    own = context.compute_capability
    card_for: Callable[[ProbeResult], str | None] = (
        partial(room_for, own=own, headroom=headroom)
        if context.device_type == "cuda"
        else lambda row: None  # a probe on the CPU names no larger card
    )
    return yours.too_large(row, answer, simulation, card_for)


def _was_tried(changed: ChangeSet, row: ProbeResult, result: ProbeResult) -> bool:
    """Whether the change ran; a search over micro-batch sizes begins with the try of the rung."""
    own = row.micro_batch_size if changed.config.rung_key() == row.config.rung_key() else None
    return any(each.micro_batch_size != own for each in result.tries)


def _helps(row: ProbeResult, result: ProbeResult) -> bool:
    """Whether a measured change makes the rung fit, or faster by more than both times spread."""
    if row.outcome != "fits":
        return result.outcome == "fits"
    own = row.tokens_per_s
    if own is None or result.speed_state != "settled":
        return False
    spread = math.hypot(row.tokens_per_s_spread or 0.0, result.tokens_per_s_spread or 0.0)
    return yours.is_faster(result, own) and (result.tokens_per_s or 0.0) > own * (1 + spread)


def _is_enough(row: ProbeResult, tried: Sequence[Tried]) -> bool:
    ran = [result for _, result in tried if result.outcome != "unsupported"]
    return len(ran) >= _MOST_MEASURED or sum(_helps(row, result) for result in ran) >= _ENOUGH


def _answer(
    training: UserTraining,
    row: ProbeResult,
    tried: Sequence[Tried],
    ruled_out: tuple[tuple[str, ...], str] | None,
) -> YourRung:
    """The answer from what was measured; `ruled_out` says why nothing was."""
    words = tuple(changed.words for changed, result in tried if result.outcome != "unsupported")
    helpful = [pair for pair in tried if _helps(row, pair[1])]
    if row.outcome == "fits":
        helpful = yours.fastest_first(helpful)
    changes = yours.shown(training, row, helpful)
    aim: Aim = "faster" if row.outcome == "fits" else "fits"
    if row.outcome == "unsupported" and not changes:
        return YourRung(row.key, YOURS, None, (), words, None)
    reason: str | None = "no change can run here"
    if changes:
        reason = None
    elif words:
        any_of = ", or ".join(words)
        reason = f"{any_of} is not faster" if aim == "faster" else f"not even with {any_of}"
    elif ruled_out is not None and ruled_out[0]:
        reason = f"when simulated, {ruled_out[1]}"
    return YourRung(row.key, YOURS, aim, changes, words, reason)
