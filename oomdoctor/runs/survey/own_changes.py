"""What makes the rung of --from fit, or faster, in a probe: the best changes are measured.

They come after the ladder. The simulator chooses which ones are worth a measurement. Without it,
the cheapest are measured.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from oomdoctor.analysis.changes.search import Answer, Verdict, verdict_of
from oomdoctor.analysis.changes.sets import ChangeSet, sets_in_order
from oomdoctor.analysis.search.ladder import certainly_more, least_of
from oomdoctor.analysis.verdict import conclude
from oomdoctor.records.config import Rung, TrainConfig
from oomdoctor.records.facts.choices import AUTO
from oomdoctor.records.result import ProbeResult
from oomdoctor.records.user_training import YOURS, Aim, UserTraining, YourChange, YourRung
from oomdoctor.runs.devices.cards import room_for
from oomdoctor.runs.events import Listener
from oomdoctor.runs.files.your_changes import (
    Tried,
    changed_rung,
    fastest_first,
    is_faster,
    no_answer,
    offered,
    other_changes,
    search_yours,
    shown,
    simulate_faster,
    too_large,
)
from oomdoctor.runs.survey.jobs import SurveyJobs
from oomdoctor.runs.survey.knowledge import Knowledge
from oomdoctor.runs.survey.ladder_prediction import LadderPrediction
from oomdoctor.runs.survey.predict import predict_rungs
from oomdoctor.runs.survey.state import Ending, SurveyState
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
    simulation = None
    if knowledge is not None and row.key in state.predicted.rungs:
        simulation = Simulation(state, knowledge, on_event, ending.is_over)
    changes, ruled_out = _promising(state, training, row, simulation)
    predicted = simulation.predicted.rungs if simulation is not None else {}
    tried: list[Tried] = []
    for one in changes:
        if ending.is_over() or _is_enough(row, tried):
            break
        changed = changed_rung(one)
        state.add_change(changed, predicted)
        walk(state, jobs, None, on_event, ending)
        result = state.row(changed)
        if _was_tried(one, row, result):
            tried.append((one, result))
            state.take_yours(_answer(training, row, tried, None))
    if not ending.is_over():
        state.take_yours(_answer(training, row, tried, ruled_out))


@dataclass(slots=True)
class Simulation:
    """A judge that simulates on the device of the probe, with what earlier probes measured."""

    state: SurveyState
    knowledge: Knowledge
    on_event: Listener
    is_over: Callable[[], bool]
    predicted: LadderPrediction = field(default_factory=LadderPrediction)

    @property
    def usable_bytes(self) -> int:
        """What a rung may use."""
        return self.state.context.usable_bytes

    def judge(self, sets: Sequence[ChangeSet]) -> list[Verdict | None]:
        """Simulate each configuration; one recording serves all its micro-batch sizes."""
        if self.is_over():
            return [None] * len(sets)
        alike: dict[str, ChangeSet] = {one.config.rung_key(): one for one in sets}
        sizes: dict[str, tuple[int, ...]] = {}
        rungs = []
        for key, one in alike.items():
            asked = {
                size
                for other in sets
                if isinstance(size := other.config.micro_batch_size, int)
                and other.config.rung_key() == key
            }
            rung = changed_rung(replace(one, config=one.config.with_micro_batch(AUTO)))
            sizes[rung.config.key()] = tuple(sorted(asked))
            rungs.append(rung)
        self.simulate(rungs, sizes)
        return [verdict_of(self.row(changed_rung(one))) for one in sets]

    def least_bytes(self, config: TrainConfig) -> int:
        """Weights, gradients and states, by formula."""
        return least_of(config, self.state.context)

    def needs_more(self, more: TrainConfig, less: TrainConfig) -> bool:
        """Whether the rules of dominance say so."""
        return certainly_more(more, less, self.state.context)

    def rows(self, changes: Sequence[ChangeSet]) -> list[Tried]:
        """The simulated row of each change, at its best micro-batch size if it has none."""
        if self.is_over():
            return []
        rungs = [changed_rung(one) for one in changes]
        self.simulate(rungs)
        return [(one, self.row(rung)) for one, rung in zip(changes, rungs, strict=True)]

    def simulate(
        self, rungs: Sequence[Rung], sizes: dict[str, tuple[int, ...]] | None = None
    ) -> None:
        """Simulate rungs, and keep what they come to at each size."""
        learned, stop = self.knowledge.learned, self.is_over
        found = predict_rungs(
            self.state, rungs, learned, sizes or {}, on_event=self.on_event, stop=stop
        )
        self.predicted.rungs.update(found.rungs)
        self.predicted.attempts.update(found.attempts)

    def row(self, rung: Rung) -> ProbeResult:
        """The simulated row of a rung that was simulated."""
        state, attempts = self.state, self.predicted.attempts
        tried = attempts.get(rung.config.key(), ()) or tuple(
            attempt
            for attempt in attempts.get(rung.config.rung_key(), ())
            if attempt.config.micro_batch_size == rung.config.micro_batch_size
        )
        return conclude(rung, tried, None, state.context, state.request, "predicted")


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
    state: SurveyState, training: UserTraining, row: ProbeResult, simulation: Simulation | None
) -> tuple[Sequence[ChangeSet], tuple[tuple[str, ...], str] | None]:
    """The changes that are worth a measurement, the best first.

    Where none is, also the words of all that were simulated, and why they do not help.
    """
    if row.outcome in ("fits", "unsupported"):
        changes = other_changes(training, row)
        if simulation is None:
            return changes, None
        if row.outcome == "unsupported":
            return [one for one, found in simulation.rows(changes) if found.surely_fits], None
        own = state.context.predictions[row.key].rates.get(row.micro_batch_size or 0)
        if own is None:  # no speeds are estimated for this device
            fitting = [one for one, found in simulation.rows(changes) if found.surely_fits]
            return fitting, None
        better, tried = simulate_faster(changes, simulation.rows, own)
        return [one for one, _ in better], (tried, "no single change is faster")
    if simulation is None:
        return tuple(sets_in_order(row.config, *offered(training, row.config))), None
    answer = search_yours(training, row, simulation)
    words = tuple(one.words for one, _ in answer.judged)
    return [one for one, _ in answer.fitting], (words, _why_none(state, row, answer, simulation))


def _why_none(state: SurveyState, row: ProbeResult, answer: Answer, simulation: Simulation) -> str:
    """Why no change makes the rung fit, by simulation."""

    def row_of(found: ChangeSet) -> ProbeResult:
        return simulation.row(changed_rung(found))

    context, headroom = state.context, state.request.headroom
    card_for: Callable[[ProbeResult], str | None] = partial(
        room_for, own=context.compute_capability, headroom=headroom
    )
    if context.device_type != "cuda":
        card_for = _no_card
    return too_large(row, answer, row_of, context.usable_bytes, card_for)


def _no_card(row: ProbeResult) -> None:
    """A probe on the CPU names no larger card."""
    del row


def _was_tried(one: ChangeSet, row: ProbeResult, result: ProbeResult) -> bool:
    """Whether the change ran; a search over micro-batch sizes begins with the try of the rung."""
    own = row.micro_batch_size if one.config.rung_key() == row.config.rung_key() else None
    return any(each.micro_batch_size != own for each in result.tries)


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
    training: UserTraining,
    row: ProbeResult,
    tried: Sequence[Tried],
    ruled_out: tuple[tuple[str, ...], str] | None,
) -> YourRung:
    """The answer from what was measured; `ruled_out` says why nothing was."""
    words = tuple(one.words for one, result in tried if result.outcome != "unsupported")
    found = [pair for pair in tried if _helps(row, pair[1])]
    if row.outcome == "fits":
        found = fastest_first(found)
    changes = shown(training, row, found)
    aim: Aim = "faster" if row.outcome == "fits" else "fits"
    if row.outcome == "unsupported" and not changes:
        return YourRung(row.key, YOURS, None, (), words, None)
    return YourRung(row.key, YOURS, aim, changes, words, _reason(aim, words, ruled_out, changes))


def _reason(
    aim: Aim,
    words: tuple[str, ...],
    ruled_out: tuple[tuple[str, ...], str] | None,
    changes: Sequence[YourChange],
) -> str | None:
    """Why no measured change helps; None if one does."""
    if changes:
        return None
    if words:
        any_of = ", or ".join(words)
        return f"{any_of} is not faster" if aim == "faster" else f"not even with {any_of}"
    if ruled_out is not None and ruled_out[0]:
        return f"when simulated, {ruled_out[1]}"
    return "no change can run here"
