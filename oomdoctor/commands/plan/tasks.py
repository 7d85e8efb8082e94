"""What a plan has to simulate: rungs, at each value of a sweep, for all cards at once."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial

from oomdoctor.analysis.search.ladder import Context, fixed_size, too_big
from oomdoctor.analysis.simulator.predicted_attempts import sizes_to_predict
from oomdoctor.commands.devices.cards import Card
from oomdoctor.commands.ladder.dataset import at_length
from oomdoctor.commands.ladder.ledger import counts_from_config
from oomdoctor.records.configuration.config import Rung
from oomdoctor.records.facts.checkpoints import checkpoint_of
from oomdoctor.records.job.model import ModelSpec
from oomdoctor.records.job.result import Inspection
from oomdoctor.records.report.plan import PlanRequest
from oomdoctor.records.report.report import SurveyRequest

PLANNED = partial(
    SurveyRequest,
    device="cuda",
    vram_bytes=None,
    weights="synthetic",
    evaluate=False,
    eval_batch_size=8,
    seed=0,
    time_limit_s=None,
    rung_limit_s=600.0,
)
"""Makes requests of plans. A simulation takes seconds; one that hangs must not block the plan."""


@dataclass(frozen=True, slots=True)
class Task:
    """One simulation: a rung at some micro-batch sizes, for all cards."""

    rung: Rung
    sizes: tuple[int, ...]
    cards: tuple[Card, ...]


def context_of(
    card: Card, request: SurveyRequest, spec: ModelSpec, inspection: Inspection | None
) -> Context:
    """What is the same for all rungs on a card; before the inspection from config.json alone."""
    return Context(
        usable_bytes=card.usable_bytes,
        total_bytes=card.total_bytes,
        device_type="cuda",
        counts=inspection.parameters if inspection else counts_from_config(spec),
        fixed_micro_batch=request.micro_batch_size,
        model_config=spec.config,
        checkpoint=checkpoint_of(spec.quantized),
        task=spec.task,
        compute_capability=card.capability,
        gpu=card.facts,
    )


def swept(rung: Rung, plan: PlanRequest) -> tuple[Rung, ...]:
    """The rung at every sequence length of the sweep; without one, the rung itself."""
    if plan.sweep is None or plan.sweep.key != "sequence_length":
        return (rung,)
    return tuple(at_length(rung, value) for value in plan.sweep.values)


def tasks_of(
    plan: PlanRequest,
    ladders: Mapping[str, tuple[Rung, ...]],
    cards: tuple[Card, ...],
    contexts: Mapping[str, Context],
) -> tuple[Task, ...]:
    """Every simulation of a plan, in ladder order, for all cards that have the rung.

    `ladders` and `contexts` are by name of the card.
    """
    wanted: dict[str, tuple[Rung, list[Card]]] = {}
    for card in cards:
        for rung in ladders[card.name]:
            for variant in swept(rung, plan):
                having = wanted.setdefault(variant.config.key(), (variant, []))[1]
                if card not in having:  # two rungs may become one at a length
                    having.append(card)
    return tuple(
        Task(rung, _sizes(rung, plan, [contexts[card.name] for card in having]), tuple(having))
        for rung, having in wanted.values()
    )


def shown(task: Task, plan: PlanRequest) -> Rung:
    """The rung with a label that identifies this simulation."""
    label, config = task.rung.label, task.rung.config
    if plan.sweep is not None and plan.sweep.key == "sequence_length":
        label += f" at {config.sequence_length:,} tokens"
    return Rung(label, config)


def _sizes(rung: Rung, plan: PlanRequest, contexts: list[Context]) -> tuple[int, ...]:
    config = rung.config
    if plan.sweep is not None and plan.sweep.key == "micro_batch_size":
        return plan.sweep.values
    fixed = fixed_size(config, contexts[0])
    if plan.sweep is not None:
        return (fixed or 1,)
    sizes = sizes_to_predict(config, fixed)
    # If even the weights do not fit, the smallest size shows by how much.
    out_of_reach = all(too_big(rung, context) is not None for context in contexts)
    return sizes[:1] if out_of_reach else sizes
