"""What a survey and a plan have both found out: the request as it became, the model, its data.

Lower bounds for rungs that an early end left untried need no worker and no simulation.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from oomdoctor.analysis.memory.shape import least_counts
from oomdoctor.analysis.search.ladder import Context, bound_of, too_big
from oomdoctor.analysis.search.precision import emulated, ladder_for
from oomdoctor.commands.ladder.dataset import at_length, at_rows
from oomdoctor.errors import OomDoctorError
from oomdoctor.records.configuration.config import Rung, TrainConfig, adapts_all_linear
from oomdoctor.records.job.dataset import CountedRows
from oomdoctor.records.job.model import ModelSpec, ParameterCounts
from oomdoctor.records.job.result import Inspection, ProbeResult
from oomdoctor.records.report.plan import PlanRequest
from oomdoctor.records.report.report import Fault, Report, RungFile, SurveyRequest, Warn
from oomdoctor.records.report.user_training import YOURS, YourRung
from oomdoctor.records.report.warnings import LOWERED, warning
from oomdoctor.system.catalogue import model_types
from oomdoctor.units import format_bytes


class Ledger:
    """A run in progress; only the methods here and of its kinds change it.

    Invariant: `request` and `rungs` are the requested ones, with sequence lengths adapted to the
    data file and to the positions of the model. What is not known yet is None or empty.
    """

    def __init__(
        self, request: SurveyRequest, spec: ModelSpec, warnings: Iterable[Warn] = ()
    ) -> None:
        self.request, self.rungs = request, request.recipe.rungs
        self.spec, self.warnings = spec, tuple(warnings)
        self.inspection: Inspection | None = None
        self.counted: CountedRows | None = None
        self.files: tuple[RungFile, ...] = ()
        self.yours: YourRung | None = None

    def take_inspection(self, inspection: Inspection) -> None:
        """Take what the worker says about the model and the machine."""
        self.inspection = inspection
        if inspection.lora_targets:
            self._name_targets(inspection.lora_targets)

    def inspected(self) -> TrainConfig:
        """What the worker looks at the model with: LoRA on all layers, if that may be tried."""
        configs = [rung.config for rung in self.rungs]
        if self.request.user_training is not None:  # a change of it may be LoRA
            configs.append(TrainConfig(method="lora"))
        return next(filter(adapts_all_linear, configs), configs[0])

    def lora_targets(self) -> tuple[str, ...]:
        """The layers to name for LoRA; empty where peft takes `all-linear`."""
        return self.inspection.lora_targets if self.inspection is not None else ()

    def _name_targets(self, targets: tuple[str, ...]) -> None:
        """Name the layers for LoRA, because peft does not take `all-linear` for this model.

        Labels stay, for no other rung can have them. The user's own rung stays: it says what the
        user's program does.
        """
        named = tuple(
            replace(rung, config=replace(rung.config, lora_targets=targets))
            if adapts_all_linear(rung.config) and rung.label != YOURS
            else rung
            for rung in self.rungs
        )
        if named != self.rungs:
            self.warn([warning("lora_targets", targets=targets)])
            self._take_rungs(named)

    def take_rows(self, counted: CountedRows) -> None:
        """Take the counted rows: every rung is now about the longest one, or about packed ones."""
        self.counted = counted
        self.request = at_rows(self.request, counted)
        self.rungs = self.request.recipe.rungs

    def ladders_for(self, capabilities: Mapping[str, str | None]) -> dict[str, tuple[Rung, ...]]:
        """The rungs with the 16-bit type that each device has, by the name of the device.

        If they are the same for all devices, they are the requested ones from now on.
        """
        ladders = {name: ladder_for(self.rungs, has) for name, has in capabilities.items()}
        changed = [name for name, ladder in ladders.items() if ladder != self.rungs]
        slow = {name: emulated(ladders[name], has) for name, has in capabilities.items()}
        if changed:
            self.warn([warning("float16_rungs", cards=changed)])
        if any(slow.values()):
            labels = tuple(dict.fromkeys(label for of_card in slow.values() for label in of_card))
            cards = [name for name in slow if slow[name]]
            self.warn([warning("bfloat16_emulated", cards=cards, labels=labels)])
        if len(changed) == len(ladders) and len(set(ladders.values())) == 1:
            (rungs,) = set(ladders.values())
            self._take_rungs(rungs)
        return ladders

    def _take_rungs(self, rungs: tuple[Rung, ...]) -> None:
        """They are the requested ones from now on."""
        self.rungs = rungs
        self.request = replace(self.request, recipe=replace(self.request.recipe, rungs=rungs))

    def own_rung(self) -> Rung | None:
        """The rung of --from."""
        return next((rung for rung in self.rungs if rung.label == YOURS), None)

    def warn(self, warnings: Iterable[Warn]) -> None:
        """Add warnings."""
        self.warnings = (*self.warnings, *warnings)


def counts_from_config(spec: ModelSpec) -> ParameterCounts | None:
    """Parameters that the model has at least; None if its config.json says too little."""
    plain = spec.model_type in model_types()
    return least_counts(spec.config, spec.parameters, plain=plain)


def with_bound(row: ProbeResult, rung: Rung, context: Context) -> ProbeResult:
    """The row; if its rung was not reached, with what the rung needs at least.

    A rung whose bound is above the usable memory is settled by it.
    """
    if row.failure is None or row.failure.code != "not_reached":
        return row
    skip = too_big(rung, context)
    if skip is not None:
        return replace(row, reason=skip.reason, missed_by_bytes=skip.missed_by_bytes, failure=None)
    bound = bound_of(rung.config, context)
    if not bound.size_bytes:
        return row
    return replace(row, reason=f"not reached; lower bound {format_bytes(bound.size_bytes)}")


def bounds_only(report: Report, error: OomDoctorError) -> Report:
    """The report of a plan that cannot simulate: lower bounds, the error, and its exit code."""
    return replace(
        report,
        status="partial",
        exit_code=int(error.exit_code),
        errors=(Fault(error.code, error.message, error.hint),),
        next_commands=(),
    )


def within_limits(
    request: SurveyRequest, model: str, inspection: Inspection
) -> tuple[SurveyRequest, tuple[Rung, ...], list[Warn]]:
    """The request and its rungs with no more tokens a row than the model's code takes.

    A warning says that rows were cut, or that they are longer than the positions of the model.
    """
    rungs, limit = request.recipe.rungs, inspection.max_sequence_length
    asked = max(rung.config.sequence_length for rung in rungs)
    if limit is None or asked <= limit:
        return request, rungs, _beyond(model, inspection, asked)
    lowered: dict[str, Rung] = {}  # two rungs may become one
    for rung in rungs:
        shorter = at_length(rung, min(rung.config.sequence_length, limit))
        lowered.setdefault(shorter.config.key(), shorter)
    return (
        replace(request, sequence_length=min(request.sequence_length, limit)),
        tuple(lowered.values()),
        [warning(LOWERED, "lowered", model=model, limit=limit, asked=asked)],
    )


def sweep_within_limits(
    plan: PlanRequest, model: str, inspection: Inspection
) -> tuple[PlanRequest, list[Warn]]:
    """The plan with its sweep of lengths cut at what the model's code takes, and a warning as in
    `within_limits`.
    """
    sweep, limit = plan.sweep, inspection.max_sequence_length
    if sweep is None:
        return plan, []
    if limit is None or sweep.values[-1] <= limit:
        return plan, _beyond(model, inspection, sweep.values[-1])
    values = (*(value for value in sweep.values if value < limit), limit)
    ended = replace(plan, sweep=replace(sweep, values=values))
    return ended, [warning(LOWERED, "sweep", model=model, limit=limit)]


def _beyond(model: str, inspection: Inspection, asked: int) -> list[Warn]:
    """A warning about rows that run, but are longer than the positions of the model."""
    positions = inspection.positions
    if positions is None or asked <= positions:
        return []
    return [warning("beyond_positions", model=model, limit=positions, asked=asked)]
