"""What makes the rung of --from fit, or faster, in a probe: the best changes are measured.

They come after the ladder. The simulator chooses which ones are worth a measurement. Without it,
the cheapest are measured.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from oomdoctor.analysis.search.own_rung import OneChange
from oomdoctor.analysis.verdict import conclude
from oomdoctor.records.config import Rung
from oomdoctor.records.result import ProbeResult
from oomdoctor.records.rung.choices import AUTO
from oomdoctor.records.user_training import YOURS, UserTraining, YourRung
from oomdoctor.runs.devices.cards import room_for
from oomdoctor.runs.events import Listener
from oomdoctor.runs.files.your_changes import (
    Simulate,
    Simulated,
    Tried,
    answer_faster,
    answer_fits,
    best_first,
    changes_to_try,
    is_faster,
    no_answer,
    rung_with,
    simulate_faster,
    simulate_fitting,
)
from oomdoctor.runs.survey.jobs import SurveyJobs
from oomdoctor.runs.survey.knowledge import Knowledge
from oomdoctor.runs.survey.ladder_prediction import LadderPrediction
from oomdoctor.runs.survey.predict import predict_rungs
from oomdoctor.runs.survey.setup import Ending
from oomdoctor.runs.survey.state import SurveyState
from oomdoctor.runs.survey.walk import walk

_ENOUGH = 2  # changes that help
_MOST_MEASURED = 3


def unmeasured(state: SurveyState) -> YourRung | None:
    """The answer about the rung of --from before a change of it is measured; None without one."""
    rung = _own(state)
    if rung is None:
        return None
    return YourRung(rung.config.key(), YOURS, None, (), (), "no change of it was measured")


def try_changes(
    state: SurveyState,
    jobs: SurveyJobs,
    knowledge: Knowledge | None,
    on_event: Listener,
    ending: Ending,
) -> None:
    """Measure the changes that promise most, until some help or an end is requested."""
    training, rung = state.request.user_training, _own(state)
    if training is None or rung is None or ending.is_over():
        return
    row = state.row(rung)
    reason = no_answer(row)
    if reason is None and row.outcome == "fits":
        reason = _not_comparable(state, row)
    if reason is not None:
        state.take_yours(YourRung(row.key, YOURS, None, (), (), reason))
        return
    changes = changes_to_try(training, row, state.context.usable_bytes)
    predicted = LadderPrediction()
    ruled_out = Simulated((), ())
    if knowledge is not None and row.key in state.predicted.rungs:

        def simulate(asked: Sequence[OneChange]) -> list[Tried]:
            if ending.is_over():
                return []
            rungs = [rung_with(one) for one in asked]
            learned = knowledge.learned if knowledge is not None else None
            found = predict_rungs(state, rungs, learned, on_event=on_event, stop=ending.is_over)
            predicted.rungs.update(found.rungs)
            return [
                (one, _simulated_row(state, changed, found))
                for one, changed in zip(asked, rungs, strict=True)
            ]

        changes, ruled_out = _promising(state, row, changes, simulate)
    elif row.outcome != "fits":
        changes = tuple(map(_without_search, changes))
    tried: list[Tried] = []
    for one in changes:
        if ending.is_over() or _is_enough(row, tried):
            break
        changed = rung_with(one)
        state.add_change(changed, predicted.rungs)
        walk(state, jobs, None, on_event, ending)
        result = state.row(changed)
        if _was_tried(one, row, result):
            tried.append((one, result))
            state.take_yours(_answer(state, training, row, tried, Simulated((), ())))
    if not ending.is_over():
        state.take_yours(_answer(state, training, row, tried, ruled_out))


def _own(state: SurveyState) -> Rung | None:
    return next((rung for rung in state.rungs if rung.label == YOURS), None)


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
    state: SurveyState, row: ProbeResult, changes: Sequence[OneChange], simulate: Simulate
) -> tuple[tuple[OneChange, ...], Simulated]:
    """The changes that help when simulated, the best first, and all that were simulated."""
    if row.outcome != "fits":
        result = simulate_fitting(changes, simulate)
        return tuple(one for one, _ in result.fitting), result
    prediction = state.context.predictions[row.key]
    own = prediction.rates.get(row.micro_batch_size or 0)
    if own is None:  # no speeds are estimated for this device
        fitting = [one for one, result in simulate(changes) if result.surely_fits]
        return tuple(fitting), Simulated((), tuple(one.words for one in changes))
    found, simulated = simulate_faster(changes, simulate, own)
    return tuple(one for one, _ in found), Simulated((), simulated)


def _without_search(one: OneChange) -> OneChange:
    """The change at micro-batch size 1 if it searches: without a prediction a search starts there,
    and one size that ran out of memory ends it.
    """
    if one.config.micro_batch_size != AUTO:
        return one
    return replace(one, words="micro-batch size 1", config=one.config.with_micro_batch(1))


def _was_tried(one: OneChange, row: ProbeResult, result: ProbeResult) -> bool:
    """Whether the change ran; a search over micro-batch sizes begins with the try of the rung."""
    own = row.micro_batch_size if one.config.rung_key() == row.config.rung_key() else None
    return any(each.micro_batch_size != own for each in result.tries)


def _simulated_row(state: SurveyState, rung: Rung, found: LadderPrediction) -> ProbeResult:
    attempts = found.attempts.get(rung.config.key(), ())
    return conclude(rung, attempts, None, state.context, state.request, "predicted")


def _helps(row: ProbeResult, result: ProbeResult) -> bool:
    """Whether a measured change makes the rung fit, or faster by more than both times spread."""
    if row.outcome != "fits":
        return result.outcome == "fits"
    own = row.tokens_per_s
    if own is None or result.speed_state != "settled":
        return False
    spread = math.hypot(row.tokens_per_s_spread or 0.0, result.tokens_per_s_spread or 0.0)
    return is_faster(result, own) and (result.tokens_per_s or 0.0) > own * (1 + spread)


def _is_enough(row: ProbeResult, tried: Sequence[Tried]) -> bool:
    ran = [result for _, result in tried if result.outcome != "unsupported"]
    return len(ran) >= _MOST_MEASURED or sum(_helps(row, result) for result in ran) >= _ENOUGH


def _answer(
    state: SurveyState,
    training: UserTraining,
    row: ProbeResult,
    tried: Sequence[Tried],
    simulated: Simulated,
) -> YourRung:
    """The answer from what was measured; `simulated` says why nothing was."""
    words = tuple(one.words for one, result in tried if result.outcome != "unsupported")
    found = best_first([pair for pair in tried if _helps(row, pair[1])])
    request, usable = state.request, state.context.usable_bytes
    if row.outcome == "fits":
        found.sort(key=lambda pair: -(pair[1].tokens_per_s or 0.0))
        reason = f"{', or '.join(words)} is not faster" if words else "no change can run here"
        if simulated.tried and not words:
            reason = "when simulated, no single change is faster"
        return answer_faster(request, training, row, found, words, reason)
    card_for = partial(room_for, own=state.context.compute_capability, headroom=request.headroom)
    least = None if words or state.context.device_type != "cuda" else simulated.least
    answer = answer_fits(
        request, training, row, found, words or simulated.tried, usable, least, card_for
    )
    if words or not simulated.tried:
        return answer
    why = f"when simulated, {answer.reason}" if answer.reason else None
    return replace(answer, tried=(), reason=why)
