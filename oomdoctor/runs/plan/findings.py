"""What a plan has found out so far, and the rows that follow from it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from oomdoctor.analysis.dataset.distribution import shapes_of
from oomdoctor.analysis.search.ladder import Context, SkipRung, bound_of, too_big
from oomdoctor.analysis.simulator.predicted_attempts import (
    attempts_of_prediction,
    prediction_for,
    with_borderline_note,
)
from oomdoctor.analysis.verdict import conclude
from oomdoctor.records.config import Rung, config_faults
from oomdoctor.records.dataset import CountedRows, LengthLimit, LengthShape
from oomdoctor.records.model import ModelSpec
from oomdoctor.records.plan import PlanRequest
from oomdoctor.records.report import SurveyRequest, Warn
from oomdoctor.records.result import Attempt, Inspection, ProbeResult
from oomdoctor.records.simulation import Prediction
from oomdoctor.runs import device
from oomdoctor.runs.dataset import at_longest
from oomdoctor.runs.jobs.simulators import Ended
from oomdoctor.runs.plan.cards import Card
from oomdoctor.runs.plan.tasks import Task, context_of, swept
from oomdoctor.runs.position_limit import sweep_within_limits, within_limits
from oomdoctor.system.evidence import prediction_errors
from oomdoctor.units import format_bytes

Key = tuple[str, str]  # name of the card, key of the rung's configuration


class Findings:
    """One plan in progress; only the methods here change it.

    Invariant: `request` and `rungs` are the requested ones, with sequence lengths adapted to the
    data file and to the positions of the model. `contexts` are by name of the card. What is not
    known yet is None or empty.
    """

    def __init__(
        self,
        request: SurveyRequest,
        spec: ModelSpec,
        cards: tuple[Card, ...],
        warnings: Sequence[Warn] = (),
    ) -> None:
        self.request, self.rungs = request, request.recipe.rungs
        self.spec, self.cards = spec, cards
        self.warnings = tuple(warnings)
        self.inspection: Inspection | None = None
        self.counted: CountedRows | None = None
        self.shapes: tuple[LengthShape, ...] = ()
        self.contexts: dict[str, Context] = {}
        self.attempts: dict[Key, tuple[Attempt, ...]] = {}
        self.skipped: dict[Key, SkipRung] = {}
        self.predictions: dict[Key, Prediction] = {}
        self.limits: tuple[LengthLimit, ...] = ()

    @property
    def plan(self) -> PlanRequest:
        """What makes the request a plan."""
        assert self.request.plan is not None
        return self.request.plan

    def take_inspection(self, inspection: Inspection) -> None:
        """Take what the worker says about the model."""
        self.inspection = inspection
        self.warnings += tuple(device.model_warnings(inspection))

    def take_rows(self, counted: CountedRows, inspection: Inspection) -> None:
        """Take the counted rows: every rung is now about the longest one."""
        assert self.request.lengths is not None
        self.counted = counted
        lengths, positions = counted.distribution, inspection.max_sequence_length
        self.shapes = shapes_of(lengths, self.request.lengths, positions)
        self.request = at_longest(self.request, lengths.longest.tokens)
        self.rungs = self.request.recipe.rungs

    def set_limits(self, inspection: Inspection) -> None:
        """Lower rows that are too long for the model, and find what each card offers."""
        limit = inspection.max_sequence_length
        if self.plan.sweep is not None and self.plan.sweep.key == "sequence_length":
            plan, lowered = sweep_within_limits(self.plan, self.spec.id, limit)
            self.request = replace(self.request, plan=plan)
        else:
            self.request, self.rungs, lowered = within_limits(self.request, self.spec.id, limit)
        self.warnings += tuple(lowered)
        self.contexts = {
            card.name: context_of(card, self.request, self.spec, inspection) for card in self.cards
        }

    def reject(self, task: Task) -> bool:
        """Whether the settings of a rung contradict each other; it is then kept as unsupported."""
        config = task.rung.config.with_micro_batch(task.sizes[0])
        wrong = config_faults(config)
        reason = "; ".join(f"{key} {what}" for key, what in wrong)
        for card in task.cards if wrong else ():
            attempt = Attempt(config, "unsupported", None, None, None, reason, 0.0)
            self.attempts[card.name, task.rung.config.key()] = (attempt,)
        return bool(wrong)

    def take(self, task: Task, card: Card, ended: Ended) -> None:
        """Keep what a simulation says about a card; if it failed, the reason and a lower bound."""
        config, context = task.rung.config, self.contexts[card.name]
        key = card.name, config.key()
        predictions = ended.reply.predictions if ended.reply is not None else ()
        prediction = prediction_for(predictions, card.name)
        if prediction is not None:
            self.predictions[key] = prediction
            self.attempts[key] = attempts_of_prediction(
                config, prediction, card.target(), ended.attempt.elapsed_s, ended.folder.name
            )
            return
        reason = ended.attempt.reason or "the simulation failed without a reason"
        skip = too_big(task.rung, context)
        if skip is not None:
            self.skipped[key] = replace(skip, reason=f"{skip.reason}; not simulated: {reason}")
            return
        assert context.counts is not None
        bound = bound_of(config, context.counts, context)
        if bound.size_bytes:
            reason += f"; lower bound {format_bytes(bound.size_bytes)}"
        self.attempts[key] = (replace(ended.attempt, reason=reason),)

    def keep_limits(self, limits: tuple[LengthLimit, ...]) -> None:
        """Keep the longest rows that fit."""
        self.limits = limits

    def rows(self, card: Card) -> tuple[ProbeResult, ...]:
        """A row for each rung, and for each sequence length of a sweep, on a card."""
        return tuple(
            self.row(card, variant) for rung in self.rungs for variant in swept(rung, self.plan)
        )

    def row(self, card: Card, rung: Rung) -> ProbeResult:
        """The row of a rung on a card, at the sequence length of the rung."""
        context = self.contexts.get(card.name) or Context(card.usable_bytes, "cuda")
        key = card.name, rung.config.key()
        attempts, skip = self.attempts.get(key, ()), self.skipped.get(key)
        row = conclude(rung, attempts, skip, context, self.request, "predicted")
        return with_borderline_note(row, card.context, card.usable_bytes, prediction_errors())
