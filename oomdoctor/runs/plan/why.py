"""One rung in detail for `--why`: the simulated phases, and what formulas would say."""

from __future__ import annotations

from collections.abc import Mapping

from oomdoctor.analysis.memory.formula import formula_view
from oomdoctor.records.planned.plan import PlanRequest, Why
from oomdoctor.records.result import Inspection, ProbeResult
from oomdoctor.records.simulation import Prediction
from oomdoctor.runs.devices.cards import Card


def why_of(
    plan: PlanRequest,
    card: Card | None,
    rows: Mapping[str, tuple[ProbeResult, ...]],
    predictions: Mapping[tuple[str, str], Prediction],
    inspection: Inspection | None,
) -> Why | None:
    """The rung at the micro-batch size of its row; None if not requested or not simulated."""
    if plan.why is None or card is None or inspection is None:
        return None
    row = next((row for row in rows[card.name] if row.label == plan.why), None)
    if row is None or row.measurement is None or row.peak_device_bytes is None:
        return None
    prediction = next(p for (name, _), p in predictions.items() if name == card.name)
    size = next(s for s in prediction.sizes if s.micro_batch_size == row.micro_batch_size)
    return Why(
        label=row.label,
        micro_batch_size=size.micro_batch_size,
        peak_allocated_bytes=row.measurement.peak_allocated_bytes,
        peak_reserved_bytes=row.measurement.peak_reserved_bytes,
        context_bytes=card.context.likely,
        peak_device_bytes=row.peak_device_bytes,
        phases=size.phases,
        formula=formula_view(row.config, inspection.parameters, row.measurement, size.phases),
    )
