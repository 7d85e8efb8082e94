"""Why memory ran out: the rules of `data/causes.toml`, evaluated on a case, and the causes ranked.

Rules do not know each other. To add a cause, add a row.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any, NamedTuple

from oomdoctor.explain.diagnosis.case import Case
from oomdoctor.explain.diagnosis.causes import conditions, figures
from oomdoctor.explain.diagnosis.causes.conditions import Lines
from oomdoctor.package_data import data_of, in_tuples
from oomdoctor.records.job.measurement import CATEGORY_WORDS
from oomdoctor.records.report.diagnosis import Cause, CauseName, Confidence
from oomdoctor.records.report.timeline import CONFIDENCES
from oomdoctor.units import format_bytes

Condition = Callable[[Case], Lines]
_CONDITIONS = {"needs", "dialects", "resource", "tensor", "frames", "shows", "phases", "lines"}
_DATA: Mapping[str, Any] = in_tuples(data_of("causes.toml"))
_SCORES = "attention scores"


@dataclass(frozen=True, slots=True)
class Rule:
    """If each of `when` returns lines, `cause` applies with this confidence; `remedies` may help.

    `why` is a sentence; `causes` fills in its {names} with sizes of the case. `remedies` are keys
    of `remedies.table`, `in_order` if they are to be tried as they are listed. `arithmetic` rules
    compare what the training needs with the GPU: no other cause is as sure. If a rule that stands
    `alone` applies, no other one counts. `detail` says what exactly, in a noun phrase. `programs`
    are names and kinds of programs; empty for any. `only` limits it to some phases, resources or
    dialects, which are no evidence.
    """

    cause: CauseName
    confidence: Confidence
    when: tuple[Condition, ...]
    why: str
    remedies: tuple[str, ...]
    arithmetic: bool = False
    detail: str | None = None
    programs: tuple[str, ...] = ()
    only: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    in_order: bool = False
    alone: bool = False

    def evidence(self, case: Case) -> Lines:
        """The lines that prove it; () if it does not apply."""
        if self.programs and case.kinds.isdisjoint(self.programs):
            return ()
        if any(getattr(case, name) not in values for name, values in self.only.items()):
            return ()
        proofs = [condition(case) for condition in self.when]
        if not all(proofs):
            return ()
        return tuple(dict.fromkeys(line for proof in proofs for line in proof))


class Called(NamedTuple):
    """How a remedy is called for: the doubt about its cause (0 is none), and whether in order."""

    doubt: int
    in_order: bool = False


@cache
def rules() -> tuple[Rule, ...]:
    """All rules: ranked by confidence; among equals the row higher up wins."""
    return tuple(map(_rule, _DATA["rule"]))


@cache
def anything() -> tuple[str, ...]:
    """The remedies where no rule applies."""
    return tuple(_DATA["lists"]["anything"])


def _rule(row: Mapping[str, Any]) -> Rule:
    said = {key: value for key, value in row.items() if key not in _CONDITIONS}
    category: Any = str(row.get("needs", "")).partition(":")[2]
    said["why"] = row["why"].replace("{category}", CATEGORY_WORDS.get(category, ""))
    lists = _DATA["lists"]
    keys = (each for key in row["remedies"] for each in lists.get(key, (key,)))
    return Rule(**said | {"when": tuple(_conditions(row)), "remedies": tuple(dict.fromkeys(keys))})


def _conditions(row: Mapping[str, Any]) -> Iterator[Condition]:
    """What a row asks for: all of it has to be true."""
    if "needs" in row:
        name, _, argument = row["needs"].partition(":")
        module = figures if hasattr(figures, name) else conditions
        function = getattr(module, name)
        yield function(argument) if argument else function
    if "dialects" in row:
        yield conditions.dialect(*row["dialects"])
    if "resource" in row:
        yield conditions.resource(row["resource"])
    phases = row.get("phases", ())
    if "tensor" in row:
        yield conditions.tensor(row["tensor"], *phases)
    elif "frames" in row:
        yield conditions.frame(row["frames"], *phases)
    elif phases:
        yield conditions.at_phase(*phases, resource=row.get("resource", "gpu"))
    if "shows" in row:
        yield lambda case: case.seen("".join(row["shows"]))
    if "lines" in row:
        yield lambda case: case.logged(row["lines"])


def causes(case: Case) -> tuple[tuple[Cause, ...], dict[str, Called]]:
    """The causes of an incident, most likely first, and the keys of the remedies they call for.

    Each cause appears once, with its strongest rule; `unknown` if no rule applies. The doubt of a
    key follows the confidence of the cause that calls for it: 0 high, 1 medium, 2 low.
    """
    by_cause: dict[str, tuple[int, int, Cause, Rule]] = {}
    figures = _figures_of(case)
    for place, rule in enumerate(rules()):
        lines = rule.evidence(case)
        if not lines:
            continue
        confidence = rule.confidence
        if case.beyond and not rule.arithmetic and confidence == "high":
            confidence = "medium"  # without this cause it would not fit either
        rank = (CONFIDENCES.index(confidence), place)
        if rule.cause in by_cause and by_cause[rule.cause][:2] <= rank:
            continue
        scores = rule.cause == "activations" and case.scores_line is not None
        detail = _SCORES if scores else rule.detail
        cause = Cause(rule.cause, confidence, lines, rule.why.format(**figures), detail)
        by_cause[rule.cause] = (*rank, cause, rule)
        if rule.alone:
            by_cause = {rule.cause: by_cause[rule.cause]}
            break
    if not by_cause:
        why = "the log does not say enough to name a cause"
        return (Cause("unknown", "low", case.figures(), why),), dict.fromkeys(anything(), Called(2))
    ranked = sorted(by_cause.values(), key=lambda item: item[:2])
    # Remedies for unlikely causes would bury those for the likely ones.
    likely = [item for item in ranked if item[2].confidence != "low"] or ranked
    keys: dict[str, Called] = {}
    for doubt, _, _, rule in likely:
        for key in rule.remedies:
            keys.setdefault(key, Called(doubt, rule.in_order))
    return tuple(item[2] for item in ranked), keys


def _figures_of(case: Case) -> dict[str, str]:
    slope = conditions.growth_per_step(case.samples())
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
        "pools": format_bytes(case.incident.event.private_pools_bytes),
        "step": str(case.step or 0),
        "phase": case.phase,
        "held": format_bytes(seen.needed_bytes if seen is not None else None),
        "left": format_bytes(None if left is None else left.bytes_per_step),
        "unit": "step" if left is None else left.unit,
        "slope": format_bytes(None if slope is None else round(slope)),
    }
