"""Limit row lengths to the number of positions of the model."""

from __future__ import annotations

from dataclasses import replace

from oomdoctor.records.config import Rung
from oomdoctor.records.facts.warnings import sequence_lowered, sweep_ends
from oomdoctor.records.planned.plan import PlanRequest
from oomdoctor.records.report import SurveyRequest, Warn


def within_limits(
    request: SurveyRequest, model: str, limit: int | None
) -> tuple[SurveyRequest, tuple[Rung, ...], list[Warn]]:
    """The request and its rungs with at most `limit` tokens a row; a warning if changed."""
    rungs = request.recipe.rungs
    if limit is None or all(rung.config.sequence_length <= limit for rung in rungs):
        return request, rungs, []
    asked = max(rung.config.sequence_length for rung in rungs)
    lowered: dict[str, Rung] = {}  # two rungs may become one
    for rung in rungs:
        length = min(rung.config.sequence_length, limit)
        config = replace(rung.config, sequence_length=length)
        lowered.setdefault(config.key(), replace(rung, config=config))
    return (
        replace(request, sequence_length=min(request.sequence_length, limit)),
        tuple(lowered.values()),
        [sequence_lowered(model, limit, asked)],
    )


def sweep_within_limits(
    plan: PlanRequest, model: str, limit: int | None
) -> tuple[PlanRequest, list[Warn]]:
    """The plan with its sweep of lengths cut at `limit`; a warning if that changes it."""
    sweep = plan.sweep
    if sweep is None or limit is None or sweep.values[-1] <= limit:
        return plan, []
    values = (*(value for value in sweep.values if value < limit), limit)
    ended = replace(plan, sweep=replace(sweep, values=values))
    return ended, [sweep_ends(model, limit)]
