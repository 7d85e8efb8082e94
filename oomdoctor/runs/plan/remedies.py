"""What would make each method fit that does not, from a few more simulations.

Each claim is simulated: at most four in a plan. Only a technique whose package is not installed
here is left to arithmetic.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from oomdoctor.analysis.command_line import rung_text
from oomdoctor.analysis.search.changes import (
    Change,
    changes_of,
    liger_alone,
    still_shorter,
    why_nothing_fits,
)
from oomdoctor.records.config import Rung
from oomdoctor.records.planned.plan import PlanRemedy
from oomdoctor.records.result import ProbeResult
from oomdoctor.records.rung.faults import config_faults
from oomdoctor.runs.devices.cards import Card
from oomdoctor.runs.jobs.simulators import Simulators
from oomdoctor.runs.plan.cards.picks import METHODS, nearest
from oomdoctor.runs.plan.findings import Findings
from oomdoctor.runs.plan.sharded.route import runs_on_card_only
from oomdoctor.runs.plan.tasks import Task

_MOST_SIMULATIONS = 4


@dataclass(slots=True)
class _Case:
    """A method that does not fit: its nearest rung, and the changes that are left to try."""

    row: ProbeResult
    left: list[Change]
    arithmetic: PlanRemedy | None = None
    simulated: PlanRemedy | None = None
    tried: list[str] = field(default_factory=list)


def find_remedies(known: Findings, simulators: Simulators) -> tuple[PlanRemedy, ...]:
    """Remedies for each method of the ladder that does not fit; only for a plain plan of one card.

    Raises:
        Stopped: told to stop.
    """
    plan = known.plan
    asked_more = plan.all_gpus or plan.sweep is not None or plan.why is not None
    if not plan.suggest or asked_more or known.request.lengths is not None or len(known.cards) != 1:
        return ()
    if known.request.most_gpus() > 1:
        return ()
    card = known.cards[0]
    cases = _cases(known, card)
    left = _MOST_SIMULATIONS
    while asked := [case for case in cases if case.simulated is None and case.left][:left]:
        left -= len(asked)
        _simulate(known, simulators, card, asked)
    return tuple(remedy for case in cases for remedy in _found(case, card))


def _cases(known: Findings, card: Card) -> list[_Case]:
    rows = known.rows(card)
    no_liger = any(r.config.loss == "liger" and r.outcome == "unsupported" for r in rows)
    cases = []
    for method in METHODS:
        own = tuple(row for row in rows if row.config.method == method)
        simulated = tuple(row for row in own if not runs_on_card_only(row.config))
        row = None if any(r.outcome == "fits" for r in own) else nearest(simulated, method)
        if row is None:
            continue
        unavailable = frozenset({"loss"} if no_liger else set())
        case = _Case(row, list(changes_of(row, card.usable_bytes, unavailable)))
        liger = liger_alone(row, card.usable_bytes) if no_liger else None
        if liger is not None:
            case.arithmetic = _remedy(known, row, liger, None)
        cases.append(case)
    return cases


def _simulate(known: Findings, simulators: Simulators, card: Card, cases: list[_Case]) -> None:
    """Simulate the next change of each case; a change that fits is the answer."""
    tried: list[tuple[_Case, Change, Task]] = []
    for case in cases:
        change = case.left.pop(0)
        config = change.of(case.row.config)  # its micro-batch size is the one of the row
        if not config_faults(config):
            rung = Rung(f"{case.row.label} with {change.words}", config)
            tried.append((case, change, Task(rung, (int(config.micro_batch_size),), (card,))))
    for ended in known.simulate(simulators, [task for *_, task in tried]):
        case, change, task = tried[ended.number]
        row = known.row(card, task.rung)
        if row.measurement is not None:
            case.tried.append(change.words)
        if row.outcome == "fits":
            case.simulated = _remedy(known, case.row, change, row)
        elif "sequence_length" in change.settings:
            shorter = still_shorter(change, case.row, row, card.usable_bytes)
            case.left[:0] = [shorter] if shorter is not None else []


def _found(case: _Case, card: Card) -> tuple[PlanRemedy, ...]:
    """What was found for a method: at least an entry that says why there is nothing."""
    found = tuple(remedy for remedy in (case.arithmetic, case.simulated) if remedy is not None)
    if found:
        return found
    row = case.row
    reason = why_nothing_fits(row, card.usable_bytes, case.tried)
    nothing = PlanRemedy(
        row.config.method, row.key, row.label, None, None, None, None, None, reason
    )
    return (nothing,)


def _remedy(
    known: Findings, base: ProbeResult, change: Change, row: ProbeResult | None
) -> PlanRemedy:
    """The remedy, by a simulation that fits, or by arithmetic without one."""
    before = base.peak_device_bytes or 0
    after = row.peak_device_bytes if row is not None else None
    return PlanRemedy(
        method=base.config.method,
        key=base.key,
        label=base.label,
        change=change.words,
        frees_bytes=before - after if after is not None else change.frees_bytes,
        peak_device_bytes=after,
        basis="simulated" if row is not None else "arithmetic",
        rung=rung_text(change.of(base.config), known.request),
        reason=None,
    )
