"""The rules that say why memory ran out, as `data/causes.toml` has them.

Rules do not know each other. To add a cause, add a row; `causes` evaluates and ranks them all.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from oomdoctor.explain.diagnosis.case import Case
from oomdoctor.explain.diagnosis.causes import conditions, figures
from oomdoctor.explain.diagnosis.causes.conditions import Lines
from oomdoctor.package_data import data_of
from oomdoctor.records.job.measurement import CATEGORY_WORDS
from oomdoctor.records.report.diagnosis import CauseName, Confidence

Condition = Callable[[Case], Lines]


@dataclass(frozen=True, slots=True)
class Rule:
    """If each of `when` returns lines, `cause` applies with this confidence; `remedies` may help.

    `why` is a sentence; `causes` fills in its {names} with sizes of the case. `remedies` are keys
    of `remedies.table`, `in_order` if they are to be tried as they are listed. `arithmetic` rules
    compare what the training needs with the GPU: no other cause is as sure. If a rule that stands
    `alone` applies, no other one counts. `detail` says what exactly, in a noun phrase. `programs`
    are names and kinds of programs; empty for any.
    """

    cause: CauseName
    confidence: Confidence
    when: tuple[Condition, ...]
    why: str
    remedies: tuple[str, ...]
    arithmetic: bool = False
    detail: str | None = None
    programs: frozenset[str] = frozenset()
    in_order: bool = False
    alone: bool = False

    def evidence(self, case: Case) -> Lines:
        """The lines that prove it; () if it does not apply."""
        if self.programs and not self.programs & case.kinds:
            return ()
        proofs = [condition(case) for condition in self.when]
        if not all(proofs):
            return ()
        return tuple(dict.fromkeys(line for proof in proofs for line in proof))


@cache
def _data() -> Mapping[str, Any]:
    found: dict[str, Any] = data_of("causes.toml")
    return found


@cache
def rules() -> tuple[Rule, ...]:
    """All rules: ranked by confidence; among equals the row higher up wins."""
    return tuple(_rule(row, _data()["lists"]) for row in _data()["rule"])


@cache
def anything() -> tuple[str, ...]:
    """The remedies where no rule applies."""
    return tuple(_data()["lists"]["anything"])


def _rule(row: Mapping[str, Any], lists: Mapping[str, list[str]]) -> Rule:
    category = str(row.get("needs", "")).partition(":")[2]
    words = {str(name): text for name, text in CATEGORY_WORDS.items()}
    return Rule(
        cause=row["cause"],
        confidence=row["confidence"],
        when=tuple(_conditions(row)),
        why=row["why"].replace("{category}", words.get(category, "")),
        remedies=tuple(dict.fromkeys(_expanded(row["remedies"], lists))),
        arithmetic=row.get("arithmetic", False),
        detail=row.get("detail"),
        programs=frozenset(row.get("programs", ())),
        in_order=row.get("in_order", False),
        alone=row.get("alone", False),
    )


def _expanded(keys: list[str], lists: Mapping[str, list[str]]) -> Iterator[str]:
    for key in keys:
        yield from lists.get(key, (key,))


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
    if "lines" in row:
        yield conditions.log(row["lines"])
