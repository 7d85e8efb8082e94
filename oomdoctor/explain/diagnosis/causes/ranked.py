"""Why memory ran out: evaluates the rules on a case and ranks the causes that apply."""

from __future__ import annotations

from typing import NamedTuple

from oomdoctor.explain.diagnosis.case import Case
from oomdoctor.explain.diagnosis.causes.conditions import growth_per_step
from oomdoctor.explain.diagnosis.causes.rules import Rule, anything, rules
from oomdoctor.records.report.diagnosis import Cause, Confidence
from oomdoctor.units import format_bytes

_ORDER: dict[Confidence, int] = {"high": 0, "medium": 1, "low": 2}
_SCORES = "attention scores"


class Called(NamedTuple):
    """How a remedy is called for: the doubt about its cause (0 is none), and whether in order."""

    doubt: int
    in_order: bool = False


def causes(case: Case) -> tuple[tuple[Cause, ...], dict[str, Called]]:
    """The causes of an incident, most likely first, and the keys of the remedies they call for.

    Each cause appears once, with its strongest rule; `unknown` if no rule applies. The doubt of a
    key follows the confidence of the cause that calls for it: 0 high, 1 medium, 2 low.
    """
    found: dict[str, tuple[int, int, Cause, Rule]] = {}
    figures = _figures_of(case)
    for place, rule in enumerate(rules()):
        lines = rule.evidence(case)
        if not lines:
            continue
        confidence = rule.confidence
        if case.beyond and not rule.arithmetic and confidence == "high":
            confidence = "medium"  # without this cause it would not fit either
        rank = (_ORDER[confidence], place)
        if rule.cause in found and found[rule.cause][:2] <= rank:
            continue
        why = rule.why.format(**figures)
        detail = rule.detail
        if rule.cause == "activations" and case.scores_line is not None:
            detail = _SCORES
        cause = Cause(rule.cause, confidence, lines, why, detail)
        found[rule.cause] = (*rank, cause, rule)
        if rule.alone:
            found = {rule.cause: found[rule.cause]}
            break
    if not found:
        why = "the log does not say enough to name a cause"
        return (Cause("unknown", "low", case.figures(), why),), dict.fromkeys(anything(), Called(2))
    ranked = sorted(found.values(), key=lambda item: item[:2])
    # Remedies for unlikely causes would bury those for the likely ones.
    likely = [item for item in ranked if item[2].confidence != "low"] or ranked
    keys: dict[str, Called] = {}
    for doubt, _, _, rule in likely:
        for key in rule.remedies:
            keys.setdefault(key, Called(doubt, rule.in_order))
    return tuple(item[2] for item in ranked), keys


def _figures_of(case: Case) -> dict[str, str]:
    slope = growth_per_step(case.samples())
    seen = case.snapshot
    left = seen.growth if seen is not None else None
    moment = case.moment()
    when = moment.when if moment is not None else ""
    sizes = {term.name: term.size_bytes for term in case.model_terms()}
    least = "at least " if case.at_least else ""
    return {
        "total": least + format_bytes(case.total),
        "moment": when,
        "moment_too": f" {when}" if when and not case.at_least else "",
        "run": "the training" if case.trains else "the model",
        "logits": format_bytes(sizes.get("logits")),
        "activations": format_bytes(sizes.get("activations")),
        "requested": format_bytes(case.requested),
        "capacity": format_bytes(case.capacity),
        "free": format_bytes(case.free),
        "others": format_bytes(case.others),
        "allowed": format_bytes(case.incident.event.allowed_bytes),
        "unallocated": format_bytes(case.unallocated),
        "reserved": format_bytes(case.reserved),
        "pools": format_bytes(case.incident.event.private_pools_bytes),
        "step": str(case.step or 0),
        "phase": case.phase,
        "held": format_bytes(seen.needed_bytes if seen is not None else None),
        "left": format_bytes(None if left is None else left.bytes_per_step),
        "unit": "step" if left is None else left.unit,
        "steps_left": str(0 if left is None else left.steps),
        "slope": format_bytes(None if slope is None else round(slope)),
    }
