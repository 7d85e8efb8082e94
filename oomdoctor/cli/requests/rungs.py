"""The rungs that a command line names: to take apart (--why) or to record (--snapshot, --trace)."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from dataclasses import replace

from oomdoctor.analysis.search.precision import ladder_for
from oomdoctor.cli.options.surveys import PlanOptions
from oomdoctor.cli.requests.reader import Reader
from oomdoctor.errors import OomDoctorError, usage_error
from oomdoctor.records.planned.plan import PlanRequest
from oomdoctor.records.report import SurveyRequest
from oomdoctor.runs.devices.cards import card_named


def recorded_only(request: SurveyRequest) -> SurveyRequest:
    """The request with only the rungs to record, if there are any.

    Raises:
        OomDoctorError: the ladder has no such rung (exit 2).
    """
    asked = {"--snapshot": request.snapshot, "--trace": request.trace}
    wanted = {label for label in asked.values() if label is not None}
    if not wanted:
        return request
    labels = [rung.label for rung in request.recipe.rungs]
    for option, label in asked.items():
        if label is not None and label not in labels:
            raise unknown_rung(option, label, request.recipe.name, labels)
    rungs = tuple(rung for rung in request.recipe.rungs if rung.label in wanted)
    return replace(request, recipe=replace(request.recipe, rungs=rungs))


def unknown_rung(option: str, label: str, recipe: str, labels: Sequence[str]) -> OomDoctorError:
    """The error that no rung has a label, with those that look like it."""
    near = difflib.get_close_matches(label, labels, 3, 0.3) or labels
    return usage_error(
        "unknown_rung",
        f"{option}: the recipe {recipe} has no rung {label!r}",
        f"use one of its rungs: {', '.join(near)}; or add one with --rung",
    )


def only(request: SurveyRequest, option: str, label: str) -> SurveyRequest:
    """The request with only the rung of that label, as the recipe or the card names it.

    Raises:
        OomDoctorError: the ladder has no such rung (exit 2).
    """
    assert request.plan is not None
    facts = card_named(request.plan.gpus[0], 0.0).facts
    capability = facts.compute_capability if facts is not None else None
    rungs = tuple(rung for rung in request.recipe.rungs if rung.label == label)
    ladder = ladder_for(rungs or request.recipe.rungs, capability)
    rungs = ladder if rungs else tuple(rung for rung in ladder if rung.label == label)
    if not rungs:
        labels = [rung.label for rung in ladder]
        raise unknown_rung(option, label, request.recipe.name, labels)
    return replace(request, recipe=replace(request.recipe, rungs=rungs))


def check_snapshot(reader: Reader, options: PlanOptions, plan: PlanRequest) -> None:
    """A snapshot is of one rung on one card."""
    if options.snapshot is None:
        return
    if plan.all_gpus or len(plan.gpus) > 1:
        reader.fault("--snapshot", "needs exactly one card: give one --gpu, without --all-gpus")
