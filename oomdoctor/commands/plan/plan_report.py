"""The report of a plan: rows, cards, the sweep, the why."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import replace

from oomdoctor.analysis.memory.formula import formula_view
from oomdoctor.analysis.ranking import without_speed
from oomdoctor.commands.devices.cards import Card
from oomdoctor.commands.ladder import assemble
from oomdoctor.commands.ladder.assemble import Course
from oomdoctor.commands.plan.engines import runs_on_card_only
from oomdoctor.commands.plan.findings import Findings
from oomdoctor.commands.plan.longest_row import lengths_answer
from oomdoctor.commands.plan.picks import card_plan
from oomdoctor.records.configuration.adapters import compute_dtype
from oomdoctor.records.configuration.config import Rung
from oomdoctor.records.job.machine import Machine
from oomdoctor.records.job.result import Attempt, ProbeResult
from oomdoctor.records.report.plan import (
    CardOrder,
    CardPick,
    CardPlan,
    PlanRequest,
    Sweep,
    SweepAnswer,
    SweepLine,
    SweptPeak,
    Why,
)
from oomdoctor.records.report.report import Budget, Report, Simulations, Warn
from oomdoctor.records.report.warnings import host_memory_short, warning
from oomdoctor.system.machine.capabilities import installed_versions
from oomdoctor.system.machine.devices import Device, describe

Rows = Mapping[str, tuple[ProbeResult, ...]]
"""The rows of each card, by its name."""


def report(findings: Findings, course: Course) -> Report:
    """The public document."""
    rows = {card.name: findings.rows(card) for card in findings.cards}
    single = findings.cards[0] if len(findings.cards) == 1 and findings.plan.ranks else None
    cards = tuple(
        card_plan(card, rows[card.name], findings.request, findings.remedies.get(card.name, ()))
        for card in findings.cards
    )
    dates = findings.simulated.values()  # one serves all cards
    cached = [date for date in dates if date is not None]
    of_card = assemble.report(
        findings,
        course,
        machine=_machine(findings),
        budget=None
        if single is None
        else Budget(
            single.total_bytes, None, single.total_bytes, single.headroom_bytes, single.usable_bytes
        ),
        results=rows[single.name] if single is not None else (),
        warnings=_speeds_unknown(findings, rows) + _short_of_host(findings, rows),
        judged=tuple(row for of_card in rows.values() for row in of_card),
        cards=in_order(cards, findings.plan),
    )
    return replace(
        of_card,
        sweep=sweep_answer(findings),
        why=why_of(findings, single, rows),
        lengths=lengths_answer(findings),
        simulations=Simulations(len(dates), len(cached), min(cached, default=None)),
        solve=findings.solution,
        fewest=findings.fewest,
    )


def _speeds_unknown(findings: Findings, rows: Rows) -> tuple[Warn, ...]:
    """A warning about named cards without a speed; with --all-gpus, the legend says it.

    What no simulation knows has no speed on any card.
    """
    unknown = {
        card.name: {compute_dtype(row.config) for row in unknown}
        for card in findings.cards
        if card.facts is not None
        and card.facts.vendor == "NVIDIA"
        and (
            unknown := [
                row for row in without_speed(rows[card.name]) if not runs_on_card_only(row.config)
            ]
        )
    }
    if not unknown or findings.plan.all_gpus:
        return ()
    by_speed = findings.request.rank_by == "throughput" and findings.plan.ranks
    types = " and ".join(sorted({name for types in unknown.values() for name in types}))
    return (warning("speed_unknown", cards=list(unknown), types=types, by_peak=by_speed),)


def _short_of_host(findings: Findings, rows: Rows) -> tuple[Warn, ...]:
    """A warning about rungs that fit the card, but not the host memory that the plan names."""
    has = findings.plan.host_memory_bytes
    needs = {
        row.label: row.host_peak_bytes
        for of_card in rows.values()
        for row in of_card
        if row.outcome == "fits" and row.host_peak_bytes is not None
    }
    short = {label: size for label, size in needs.items() if has is not None and size > has}
    return (host_memory_short(short, has, here=False),) if has is not None and short else ()


def _machine(findings: Findings) -> Machine:
    """The predicted device with the libraries installed here; of several cards the largest."""
    cards, inspection = findings.cards, findings.inspection
    versions = inspection.versions if inspection else installed_versions()
    only = cards[0].facts if len(cards) == 1 else None
    return replace(
        describe(Device("cpu", None), versions),
        device="cuda",
        gpu_name=only.name if only else None,
        total_bytes=cards[-1].total_bytes,
        compute_capability=only.compute_capability if only else None,
        gpus=findings.request.most_gpus(),
    )


def in_order(cards: tuple[CardPlan, ...], plan: PlanRequest) -> tuple[CardPlan, ...]:
    """The cards of a plan as its report lists them; without an order, by memory."""
    if plan.sort is None:
        return cards
    place = _PLACES[plan.sort]
    return tuple(sorted(cards, key=lambda card: (not card.fitting, *place(card), card.name)))


def _fitting(card: CardPlan) -> list[CardPick]:
    picks = (card.picks.full, card.picks.lora, card.picks.qlora)
    return [pick for pick in picks if pick is not None and pick.fits]


def _by_speed(card: CardPlan) -> tuple[float, ...]:
    """The fastest first; then what has no speed, and what does not fit, the largest first."""
    fastest = max((pick.tokens_per_s or 0.0 for pick in _fitting(card)), default=0.0)
    return -fastest, -card.memory_bytes, -card.total_bytes


def _by_cost(card: CardPlan) -> tuple[float, ...]:
    """The cheapest million tokens first; then cards without a price or a speed, by speed."""
    costs = [pick.cost_per_million_tokens for pick in _fitting(card)]
    priced = [cost for cost in costs if cost is not None]
    return min(priced, default=math.inf), *_by_speed(card)


def _by_name(card: CardPlan) -> tuple[str, ...]:
    """By name; numbers count as numbers: an A2 is before an A10."""
    parts = re.split(r"(\d+)", card.name.lower())
    return tuple(part.zfill(8) if part.isdigit() else part for part in parts)


_PLACES: dict[CardOrder, Callable[[CardPlan], tuple[float, ...] | tuple[str, ...]]] = {
    "speed": _by_speed,
    "memory": lambda card: (card.memory_bytes, card.total_bytes),
    "name": _by_name,
    "cost": _by_cost,
}


def why_of(findings: Findings, card: Card | None, rows: Rows) -> Why | None:
    """The rung at the micro-batch size of its row; None if not requested or not simulated."""
    plan, inspection = findings.plan, findings.inspection
    if plan.why is None or card is None or inspection is None:
        return None
    row = next((row for row in rows[card.name] if row.label == plan.why), None)
    if row is None or row.measurement is None or row.peak_device_bytes is None:
        return None
    prediction = findings.predictions[card.name, row.key]
    size = next(s for s in prediction.sizes if s.micro_batch_size == row.micro_batch_size)
    return Why(
        label=row.label,
        micro_batch_size=size.micro_batch_size,
        peak_allocated_bytes=row.measurement.peak_allocated_bytes,
        peak_reserved_bytes=row.measurement.peak_reserved_bytes,
        context_bytes=findings.target(card, row.config).overhead_bytes,
        peak_device_bytes=row.peak_device_bytes,
        phases=size.phases,
        formula=formula_view(row.config, inspection.parameters, row.measurement, size.phases),
        step=next(device.step for device in size.devices if device.target == card.name),
        mfu=row.mfu,
        faster=findings.faster,
    )


def sweep_answer(findings: Findings) -> SweepAnswer | None:
    """One line for each card and each rung of its ladder; None without a sweep."""
    sweep = findings.plan.sweep
    if sweep is None:
        return None
    return SweepAnswer(
        key=sweep.key,
        values=sweep.values,
        lines=tuple(
            _swept(findings, sweep, rung, card)
            for card in findings.cards
            for rung in findings.ladder(card)
        ),
    )


def _swept(findings: Findings, sweep: Sweep, rung: Rung, card: Card) -> SweepLine:
    attempts = findings.swept_attempts(card, rung)
    peaks = tuple(_swept_peak(value, attempts.get(value)) for value in sweep.values)
    sizes = {attempt.config.micro_batch_size for attempt in attempts.values()}
    size = sizes.pop() if len(sizes) == 1 else None
    reasons = [a.reason for a in attempts.values() if a.measurement is None and a.reason]
    return SweepLine(
        card=card.name,
        key=rung.config.key(),
        label=rung.label,
        micro_batch_size=size if isinstance(size, int) else None,
        peaks=peaks,
        largest_fitting=max(
            (peak.value for peak in peaks if peak.fits and not peak.borderline), default=None
        ),
        crossed_at=findings.crossings.get((card.name, rung.config.key())),
        reason=reasons[0] if reasons else None,
    )


def _swept_peak(value: int, attempt: Attempt | None) -> SweptPeak:
    if attempt is None or attempt.measurement is None:
        return SweptPeak(value, None, None)
    measured = attempt.measurement
    return SweptPeak(
        value,
        least_bytes=measured.least_bytes(),
        fits=attempt.outcome == "fits",
        peak_device_bytes=measured.deciding_peak_bytes(),
        borderline=attempt.borderline is not None,
    )
