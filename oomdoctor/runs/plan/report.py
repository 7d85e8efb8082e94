"""What a plan found, and the report that is made of it: rows, cards, the sweep, the why."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from oomdoctor.analysis.search.ladder import Context, SkipRung
from oomdoctor.analysis.simulator.predicted_attempts import with_borderline_note
from oomdoctor.analysis.verdict import conclude
from oomdoctor.errors import ExitCode
from oomdoctor.records.config import Rung
from oomdoctor.records.machine import Machine
from oomdoctor.records.model import ModelSpec
from oomdoctor.records.plan import PlanRequest
from oomdoctor.records.report import Budget, Report, SurveyRequest, Warn
from oomdoctor.records.result import Attempt, Inspection, ProbeResult
from oomdoctor.records.rows import CountedRows, LengthLimit, LengthsAnswer, LengthShape
from oomdoctor.records.simulation import Prediction
from oomdoctor.runs import assemble
from oomdoctor.runs.plan.card_picks import card_plan
from oomdoctor.runs.plan.cards import Card
from oomdoctor.runs.plan.sweep import sweep_answer
from oomdoctor.runs.plan.tasks import swept
from oomdoctor.runs.plan.why import why_of
from oomdoctor.system.evidence import prediction_errors
from oomdoctor.system.machine.devices import Device, describe, installed_versions
from oomdoctor.system.store.run_folders import RunFolder

Key = tuple[str, str]  # name of the card, key of the rung's configuration


@dataclass(slots=True)
class Findings:
    """What a plan knows so far. `contexts` are by name of the card; None and empty: not yet."""

    request: SurveyRequest
    plan: PlanRequest
    spec: ModelSpec
    cards: tuple[Card, ...]
    rungs: tuple[Rung, ...] = ()
    inspection: Inspection | None = None
    contexts: dict[str, Context] = field(default_factory=dict)
    attempts: dict[Key, tuple[Attempt, ...]] = field(default_factory=dict)
    skipped: dict[Key, SkipRung] = field(default_factory=dict)
    predictions: dict[Key, Prediction] = field(default_factory=dict)
    warnings: list[Warn] = field(default_factory=list)
    counted: CountedRows | None = None
    shapes: tuple[LengthShape, ...] = ()
    limits: tuple[LengthLimit, ...] = ()

    def __post_init__(self) -> None:
        self.rungs = self.request.recipe.rungs

    def rows(self, card: Card) -> tuple[ProbeResult, ...]:
        """A row for each rung, and for each sequence length of a sweep, on a card."""
        return tuple(
            self.row(card, variant) for rung in self.rungs for variant in swept(rung, self.plan)
        )

    def row(self, card: Card, rung: Rung) -> ProbeResult:
        """The row of a rung, at whichever sequence length it was simulated, on a card."""
        context = self.contexts.get(card.name) or Context(card.usable_bytes, "cuda")
        key = card.name, rung.config.key()
        attempts, skip = self.attempts.get(key, ()), self.skipped.get(key)
        row = conclude(rung, attempts, skip, context, self.request, "predicted")
        return with_borderline_note(row, card.context, card.usable_bytes, prediction_errors())


def report(
    known: Findings,
    *,
    folder: RunFolder,
    started_at: str,
    elapsed_s: float,
    interrupted: ExitCode | None,
    lengths: LengthsAnswer | None = None,
) -> Report:
    """The public document; `interrupted` is the exit code of a signal, None for a whole plan."""
    rows = {card.name: known.rows(card) for card in known.cards}
    one = known.cards[0] if len(known.cards) == 1 and known.plan.sweep is None else None
    return assemble.report(
        request=known.request,
        run_dir=str(folder.path),
        run_name=folder.name,
        started_at=started_at,
        elapsed_s=elapsed_s,
        machine=_machine(known.cards, known.inspection),
        spec=known.spec,
        inspection=known.inspection,
        budget=_budget(one) if one is not None else None,
        results=rows[one.name] if one is not None else (),
        warnings=tuple(known.warnings),
        interrupted=interrupted,
        judged=tuple(row for found in rows.values() for row in found),
        cards=tuple(card_plan(card, rows[card.name], known.request) for card in known.cards),
        sweep=sweep_answer(known.plan, known.rungs, known.cards, known.attempts),
        why=why_of(known.plan, one, rows, known.predictions, known.inspection),
        lengths=lengths,
    )


def _machine(cards: tuple[Card, ...], inspection: Inspection | None) -> Machine:
    """The device that is predicted for, on the libraries here; of several cards the largest."""
    versions = inspection.versions if inspection else installed_versions()
    only = cards[0].facts if len(cards) == 1 else None
    return replace(
        describe(Device("cpu", None), versions),
        device="cuda",
        gpu_name=only.name if only else None,
        total_bytes=cards[-1].total_bytes,
        compute_capability=only.compute_capability if only else None,
    )


def _budget(card: Card) -> Budget:
    return Budget(card.total_bytes, None, card.total_bytes, card.headroom_bytes, card.usable_bytes)
