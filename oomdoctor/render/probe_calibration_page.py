"""The page of `probe --calibrate`: what was measured, and how exact estimates with it are."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields
from typing import Any

from oomdoctor.records.report.calibration import CalibrationAnswer, CheckedStep, MeasuredTerm
from oomdoctor.records.report.report import Report
from oomdoctor.render.blocks import Cells, Column, Facts, Look, Note, Section, figures, table_of
from oomdoctor.render.formats.csv_rows import named, record_rows
from oomdoctor.units import DASH, format_percent, format_seconds

_CLOCKS = {"device": "time on the GPU", "wall": "wall time", "cpu": "CPU time of one thread"}
_TERMS: Cells[MeasuredTerm] = (
    (Column("operators"), lambda row: row.term),
    (Column("type"), lambda row: row.dtype),
    (figures("measured", 2), lambda row: str(row.operators)),
    (figures("best rate"), lambda row: _rate(row)),
    (figures("spread", 1), lambda row: _share(row.spread)),
    (figures("measured/estimated"), lambda row: _factor(row.factor)),
)
_STEPS: Cells[CheckedStep] = (
    (Column("model"), lambda row: row.model),
    (figures("measured"), lambda row: _milliseconds(row.measured_s)),
    (figures("estimated"), lambda row: _milliseconds(row.estimated_s)),
    (figures("error"), lambda row: DASH if row.error is None else f"{row.error:+.0%}"),
    (figures("uncalibrated", 1), lambda row: _milliseconds(row.uncalibrated_s)),
)


def calibration_sections(report: Report, look: Look) -> list[Section]:
    """The outcome, the operators by kind and type, and the steps that check them."""
    answer = report.calibration
    if answer is None:
        return []
    facts = Facts(
        (
            ("Device", _device(answer)),
            ("Measured", _measured(answer)),
            ("Host", f"{answer.host_operator_s * 1e6:.1f} us per operator"),
        )
    )
    sections = [
        Section("", (Note(_outcome(answer), "strong"), facts)),
        Section("Operators", (table_of(answer.terms, _TERMS).without_empty_columns(),)),
    ]
    if answer.steps:
        table = table_of(answer.steps, _STEPS).without_empty_columns()
        sections.append(Section("Training steps of small models, to check the estimates", (table,)))
    return sections


def term_rows(report: Report) -> Iterator[list[Any]]:
    """The operators by kind and type as rows of CSV, the headings first."""
    terms = () if report.calibration is None else report.calibration.terms
    yield from record_rows(named(field.name for field in fields(MeasuredTerm)), terms)


def _outcome(answer: CalibrationAnswer) -> str:
    if answer.reason is not None:
        return f"Not kept: {answer.reason}."
    if answer.clock == "device":
        return (
            "Kept: plan and probe now estimate speeds with these times on this card, and on cards "
            "of its architecture."
        )
    return "Kept: probe --device cpu now predicts speeds with these times before it measures."


def _device(answer: CalibrationAnswer) -> str:
    driver = f"driver {answer.driver_version}" if answer.driver_version else None
    torch = f"torch {answer.torch}" if answer.torch else None
    return ", ".join(filter(None, (answer.device_name, driver, torch)))


def _measured(answer: CalibrationAnswer) -> str:
    clock, took = _CLOCKS[answer.clock], format_seconds(answer.elapsed_s)
    return f"{answer.rounds} times each, as {clock}; {took} in all"


def _rate(term: MeasuredTerm) -> str:
    if term.best_flops_per_s:
        return f"{term.best_flops_per_s / 1e12:.2f} TFLOP/s"
    return f"{term.best_bytes_per_s / 1e9:.0f} GB/s" if term.best_bytes_per_s else DASH


def _factor(value: float | None) -> str:
    return DASH if value is None else f"{value:.2f}"


def _share(value: float | None) -> str:
    return DASH if value is None else format_percent(value)


def _milliseconds(value: float | None) -> str:
    return DASH if value is None else f"{value * 1e3:.1f} ms"
