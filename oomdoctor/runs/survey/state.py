"""What a survey has found out so far, and the rows that follow from it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from oomdoctor.analysis.search.from_prediction import RungPrediction
from oomdoctor.analysis.search.ladder import Context, NextTry, SkipRung, attempts_of, next_step
from oomdoctor.analysis.verdict import conclude
from oomdoctor.records.dataset import CountedRows
from oomdoctor.records.report import Budget, Warn
from oomdoctor.records.result import Attempt, Inspection, ProbeResult
from oomdoctor.runs import device
from oomdoctor.runs.dataset import at_longest
from oomdoctor.runs.position_limit import within_limits
from oomdoctor.runs.survey.ladder_prediction import LadderPrediction
from oomdoctor.runs.survey.setup import SurveySetup


class SurveyState:
    """One survey in progress; only the methods here change it.

    Invariants: `attempts` holds every attempt, in order. `request` and `rungs` are those of the
    setup, with sequence lengths adapted to the data file and to the positions of the model.
    """

    def __init__(self, setup: SurveySetup) -> None:
        self.setup = setup
        self.request, self.rungs = setup.request, setup.request.recipe.rungs
        self.warnings = setup.warnings
        self.context = Context(usable_bytes=0, device_type=setup.device.type)
        self.inspection: Inspection | None = None
        self.counted: CountedRows | None = None
        self.budget: Budget | None = None
        self.predicted = LadderPrediction()
        self.attempts: dict[str, tuple[Attempt, ...]] = {}  # by config.rung_key()
        self.skipped: dict[str, SkipRung] = {}  # by config.key()

    def take_inspection(self, inspection: Inspection) -> None:
        """Take what the worker says about the model and the machine."""
        self.inspection = inspection

    def take_rows(self, counted: CountedRows) -> None:
        """Take the counted rows: every rung is now about the longest one."""
        self.counted = counted
        self.request = at_longest(self.request, counted.distribution.longest.tokens)
        self.rungs = self.request.recipe.rungs

    def set_limits(self, inspection: Inspection) -> None:
        """Lower rows that are too long for the model, and find what a rung may use."""
        setup = self.setup
        self.request, self.rungs, lowered = within_limits(
            self.request, setup.spec.id, inspection.max_sequence_length
        )
        self.budget = device.budget(
            setup.device, inspection, self.request.vram_bytes, self.request.headroom
        )
        self.warn(lowered)
        self.warn(device.warnings(setup.device, self.budget, inspection))
        self.context = Context(
            usable_bytes=self.budget.usable_bytes,
            device_type=setup.device.type,
            counts=inspection.parameters,
            fixed_micro_batch=self.request.micro_batch_size,
            model_config=setup.spec.config,
            task=setup.spec.task,
            compute_capability=inspection.compute_capability,
            gpu=device.facts(setup.device, inspection),
        )

    def take_prediction(self, predicted: LadderPrediction) -> None:
        """Take the predictions of all rungs; the search then starts from them."""
        self.predicted = predicted
        self.correct_predictions(predicted.rungs)

    def correct_predictions(self, predictions: Mapping[str, RungPrediction]) -> None:
        """Use corrected predictions for the search; the report keeps the first ones."""
        self.context = replace(self.context, predictions=predictions)

    def keep(self, attempt: Attempt) -> None:
        """Add an attempt."""
        key = attempt.config.rung_key()
        self.attempts[key] = (*self.attempts.get(key, ()), attempt)

    def skip(self, step: SkipRung) -> None:
        """Leave a rung out."""
        self.skipped[step.rung.config.key()] = step

    def warn(self, warnings: Iterable[Warn]) -> None:
        """Add warnings."""
        self.warnings = (*self.warnings, *warnings)

    def next_step(self) -> NextTry | SkipRung | None:
        """What to do next; None once every rung is settled."""
        return next_step(self.rungs, self.attempts, self.skipped, self.context)

    def results(self) -> tuple[ProbeResult, ...]:
        """A row for each rung."""
        return tuple(
            self.predicted.beside(
                conclude(
                    rung,
                    attempts_of(rung, self.attempts),
                    self.skipped.get(rung.config.key()),
                    self.context,
                    self.request,
                ),
                rung,
            )
            for rung in self.rungs
        )
