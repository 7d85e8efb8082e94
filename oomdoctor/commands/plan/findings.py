"""What a plan has found out so far, and the rows that follow from it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from oomdoctor.analysis.dataset_distribution import shapes_of
from oomdoctor.analysis.fit import PeakErrors, peak_error
from oomdoctor.analysis.search.ladder import Context, SkipRung, bound_of, too_big
from oomdoctor.analysis.simulator.predicted_attempts import attempts_of_prediction, prediction_for
from oomdoctor.analysis.speed.training_time import training_data
from oomdoctor.analysis.verdict import conclude
from oomdoctor.commands.devices import device
from oomdoctor.commands.devices.cards import Card, of_ranks
from oomdoctor.commands.jobs.simulators import Ended, OnStart, Simulators
from oomdoctor.commands.ladder.ledger import Ledger, sweep_within_limits, with_bound, within_limits
from oomdoctor.commands.plan.tasks import Task, context_of, swept
from oomdoctor.records.configuration.config import Rung, TrainConfig, taken_bytes
from oomdoctor.records.job.dataset import CountedRows, LengthLimit, LengthShape
from oomdoctor.records.job.model import ModelSpec
from oomdoctor.records.job.result import Attempt, Inspection, ProbeJob, ProbeResult, refused
from oomdoctor.records.job.simulation import Prediction, SimulationRequest, Target
from oomdoctor.records.report.plan import Faster, PlanRemedy, PlanRequest
from oomdoctor.records.report.report import SurveyRequest, Warn
from oomdoctor.records.report.searched import FewestAnswer, SolveAnswer
from oomdoctor.system.catalogue import peak_errors
from oomdoctor.units import format_bytes

Key = tuple[str, str]  # name of the card, key of the rung's configuration


class Findings(Ledger):
    """One plan in progress.

    `contexts` are by name of the card, and so are the `ladders`: the rungs with the 16-bit type
    that the card has.
    """

    def __init__(
        self,
        request: SurveyRequest,
        spec: ModelSpec,
        cards: tuple[Card, ...],
        warnings: Sequence[Warn] = (),
    ) -> None:
        super().__init__(request, spec, warnings)
        self.cards = cards
        self.shapes: tuple[LengthShape, ...] = ()
        self.contexts: dict[str, Context] = {}
        self.ladders: dict[str, tuple[Rung, ...]] = {}
        self.attempts: dict[Key, tuple[Attempt, ...]] = {}
        self.skipped: dict[Key, SkipRung] = {}
        self.predictions: dict[Key, Prediction] = {}
        self.simulated: dict[str, str | None] = {}  # by key of the rung: when, if in an earlier run
        self.limits: tuple[LengthLimit, ...] = ()
        self.solution: SolveAnswer | None = None
        self.crossings: dict[Key, int] = {}  # in a sweep: the largest value that fits
        self.remedies: dict[str, tuple[PlanRemedy, ...]] = {}  # by name of the card
        self.fewest: FewestAnswer | None = None
        self.faster: Faster | None = None
        self.not_run: dict[Key, str] = {}  # why an engine did not run
        self._run: set[Key] = set()
        self.chosen: dict[Key, Rung] = {}  # in a search: the rung at the value that is shown
        self.checked: dict[Key, ProbeResult] = {}  # on the emulated card, instead of predictions

    @property
    def plan(self) -> PlanRequest:
        """What makes the request a plan."""
        assert self.request.plan is not None
        return self.request.plan

    def take_inspection(self, inspection: Inspection) -> None:
        """Take what the worker says about the model."""
        super().take_inspection(inspection)
        self.warn(device.model_warnings(inspection, self.request))

    def take_rows(self, counted: CountedRows) -> None:
        """Take the counted rows, and the shapes of batches made from them."""
        assert self.request.lengths is not None and self.inspection is not None
        positions = self.inspection.max_sequence_length
        self.shapes = shapes_of(counted.distribution, self.request.lengths, positions)
        super().take_rows(counted)

    def set_limits(self, inspection: Inspection) -> None:
        """Lower rows that are too long for the model, and find what each card offers."""
        if self.plan.sweep is not None and self.plan.sweep.key == "sequence_length":
            plan, lowered = sweep_within_limits(self.plan, self.spec.id, inspection)
            self.request = replace(self.request, plan=plan)
        elif self.plan.solve == "sequence_length":
            lowered = []  # the search ends there anyway
        else:
            self.request, self.rungs, lowered = within_limits(
                self.request, self.spec.id, inspection
            )
        self.warn(lowered)
        data = training_data(self.request.training, self.request.lengths, self.counted)
        self.contexts = {
            card.name: replace(context_of(card, self.request, self.spec, inspection), data=data)
            for card in self.cards
        }
        self.ladders = self.ladders_for(
            {name: context.compute_capability for name, context in self.contexts.items()}
        )

    def ladder(self, card: Card) -> tuple[Rung, ...]:
        """The rungs of a card; the requested ones as long as the model is not known."""
        return self.ladders.get(card.name, self.rungs)

    def supported(self, task: Task) -> Task | None:
        """The task for the cards that can run it; for the others it is kept as unsupported.

        None if its settings contradict each other, if it can run on none of the cards, or if its
        engine has run on all of them.
        """
        config = task.rung.config.with_micro_batch(task.sizes[0])
        left = []
        for card in task.cards:
            key = card.name, task.rung.config.key()
            if key in self.attempts or key in self.skipped:
                continue
            reason = self.contexts[card.name].refuses(config)
            if reason is None:
                left.append(card)
            else:
                self.attempts[key] = (refused(config, reason),)
        return replace(task, cards=tuple(left)) if left else None

    def job(self, task: Task, *, for_later: bool = False) -> ProbeJob:
        """The job that simulates a task; `for_later` also records what later plans may need."""
        assert self.inspection is not None
        plan, config = self.plan, task.rung.config
        return ProbeJob(
            mode="simulate",
            label=task.rung.label,
            model=self.spec,
            config=config.with_micro_batch(task.sizes[0]),
            device_type="cuda",
            seed=self.request.seed,
            simulation=SimulationRequest(
                micro_batch_sizes=task.sizes,
                targets=tuple(self.target(card, config) for card in task.cards),
                stacks=self.inspection.stacks,
                detail=task.rung.label == plan.why,
                every_size=plan.sweep is not None,
                for_later=for_later,
                curve=plan.ranks and len(task.cards) == 1,
            ),
        )

    def measuring_job(self, card: Card, rung: Rung, budget_bytes: int | None) -> ProbeJob:
        """The job that runs a rung on the emulated card; its allocator may take `budget_bytes`."""
        return ProbeJob(
            mode="measure",
            label=rung.label,
            model=self.spec,
            config=rung.config,
            device_type="cuda",
            budget_bytes=budget_bytes,
            seed=self.request.seed,
            timed=False,
            vllm_bytes=taken_bytes(rung.config, card.total_bytes),
        )

    def simulate(
        self,
        simulators: Simulators,
        tasks: Sequence[Task],
        on_start: OnStart = lambda number: None,
        *,
        for_later: bool = False,
        keep: bool = True,
    ) -> Iterator[Ended]:
        """Simulate tasks; yields them as they end. With `keep`, their rows follow from them.

        Raises:
            Stopped: told to stop; what is known stays.
        """
        jobs = [self.job(task, for_later=for_later) for task in tasks]
        for ended in simulators.run(jobs, on_start):
            task = tasks[ended.number]
            for card in task.cards if keep else ():
                self.take(task, card, ended)
            yield ended

    def attempts_on(self, card: Card, task: Task, ended: Ended) -> tuple[Attempt, ...]:
        """What a simulation says about a card, by micro-batch size; empty if it failed."""
        prediction = prediction_for(ended.reply, card.name)
        if prediction is None:
            return ()
        config = task.rung.config
        target, context = self.target(card, config), self.contexts[card.name]
        return attempts_of_prediction(config, prediction, target, ended.attempt, context)

    def target(self, card: Card, config: TrainConfig) -> Target:
        """A card as the simulation of a rung on its number of GPUs sees it."""
        card = of_ranks(card, config.world_size)
        error = peak_error(card.context, self.errors(card), config.method)
        return card.target(self.plan.interconnect, error).beside_vllm(config)

    def take(self, task: Task, card: Card, ended: Ended) -> None:
        """Keep what a simulation says about a card; if it failed, the reason and a lower bound."""
        config, context = task.rung.config, self.contexts[card.name]
        self.simulated[config.key()] = ended.attempt.cached_at
        key = card.name, config.key()
        prediction = prediction_for(ended.reply, card.name)
        if prediction is not None:
            self.predictions[key] = prediction
            self.attempts[key] = self.attempts_on(card, task, ended)
            return
        reason = ended.attempt.reason or "the simulation failed without a reason"
        reason = "; ".join(filter(None, [self.not_run.get(key), reason]))
        skip = too_big(task.rung, context)
        if skip is not None:
            self.skipped[key] = replace(skip, reason=f"{skip.reason}; not simulated: {reason}")
            return
        bound = bound_of(config, context)
        if bound.size_bytes:
            reason += f"; lower bound {format_bytes(bound.size_bytes)}"
        self.attempts[key] = (replace(ended.attempt, reason=reason),)

    def keep_run(self, card: Card, rung: Rung, attempts: tuple[Attempt, ...]) -> None:
        """Keep the attempts of a rung that its engine ran on the emulated card."""
        key = card.name, rung.config.key()
        self.attempts[key] = attempts
        self._run.add(key)

    def rows(self, card: Card) -> tuple[ProbeResult, ...]:
        """A row for each rung, and for each sequence length of a sweep, on a card."""
        return tuple(
            self.row(card, self.chosen.get((card.name, variant.config.key()), variant))
            for rung in self.ladder(card)
            for variant in swept(rung, self.plan)
        )

    def swept_attempts(self, card: Card, rung: Rung) -> dict[int, Attempt]:
        """What was simulated of a rung on a card, by the value of the sweep."""
        assert self.plan.sweep is not None
        return {
            getattr(attempt.config, self.plan.sweep.key): attempt
            for variant in swept(rung, self.plan)
            for attempt in self.attempts.get((card.name, variant.config.key()), ())
        }

    def row(self, card: Card, rung: Rung) -> ProbeResult:
        """The row of a rung on a card, at the sequence length of the rung."""
        context = self.contexts.get(card.name) or context_of(card, self.request, self.spec, None)
        key = card.name, rung.config.key()
        if key in self.checked:
            return self.checked[key]
        attempts, skip = self.attempts.get(key, ()), self.skipped.get(key)
        if key in self._run:
            return conclude(rung, attempts, skip, context, self.request, "emulated")
        row = conclude(rung, attempts, skip, context, self.request, "predicted")
        row = with_bound(row, rung, context)
        if row.tokens_per_s is not None:
            row = replace(row, calibrated_by=card.calibrated_by)
        return row

    def errors(self, card: Card) -> PeakErrors:
        """How far peaks on a card may be off with the installed torch."""
        torch = self.inspection.versions.get("torch") if self.inspection else None
        return PeakErrors(peak_errors(), card.capability, torch)
