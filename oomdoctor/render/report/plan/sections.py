"""What only a plan has: one row a card, how peaks grow, and a rung taken apart."""

from __future__ import annotations

from oomdoctor.records.config import runs_itself
from oomdoctor.records.report import Report
from oomdoctor.records.result import OUTCOME_WORDS, ProbeResult
from oomdoctor.render.blocks import Column, Grid, Look, Note, Section
from oomdoctor.render.report.plan.cards import card_sections
from oomdoctor.render.report.plan.searched import fewest_sections, solve_sections, sweep_sections
from oomdoctor.render.report.plan.why import why_sections
from oomdoctor.render.words import batch
from oomdoctor.units import DASH, format_bytes

_COLUMNS = (
    Column("rung"),
    Column("batch", 3, right=True, detail="batch {}"),
    Column("predicted", 1, right=True, detail="predicted {}"),
    Column("emulated", 1, right=True, detail="emulated {}"),
    Column("difference", 2, right=True, detail="difference {}"),
    Column("verdict", tone=True),
)


def plan_sections(report: Report, look: Look) -> list[Section]:
    """The sections that a survey does not have; none for other reports."""
    sections = checked_sections(report)
    if report.fewest is not None:
        sections += fewest_sections(report.fewest, report.cards)
    elif report.solve is not None:
        sections += solve_sections(report.solve, report.cards)
    elif report.sweep is not None:
        sections += sweep_sections(report.sweep, report.cards)
    elif report.cards and not report.results:
        sections += card_sections(report)
    if report.why is not None:
        sections += why_sections(report.why, verbose=look.verbose)
    return sections


def checked_sections(report: Report) -> list[Section]:
    """Both peaks of each checked rung, and whether the verdicts differ; none without checks."""
    checked = [result for result in report.results if is_checked(result)]
    if report.request is None or report.request.plan is None or not checked:
        return []
    usable = report.budget.usable_bytes if report.budget is not None else None
    differ = [result.label for result in checked if _difference(result, usable)]
    verdicts = (
        f"The emulated card decides where they differ: {', '.join(differ)}."
        if differ
        else "The verdicts agree."
    )
    rows = tuple(_row(result, usable) for result in checked)
    title = "Checked on the emulated card"
    return [Section(title, (Grid(_COLUMNS, rows), Note(verdicts)))]


def is_checked(result: ProbeResult) -> bool:
    """Whether a rung was predicted, and then ran on the emulated card."""
    return result.evidence == "emulated" and not runs_itself(result.config)


def _row(result: ProbeResult, usable: int | None) -> tuple[str, ...]:
    expected = result.predicted.deciding_peak_bytes() if result.predicted is not None else None
    found = result.deciding_peak_bytes()
    difference = DASH
    if expected and found is not None:
        difference = f"{(expected - found) / found:+.2%}"
    verdict = ", ".join(filter(None, [OUTCOME_WORDS[result.outcome], _difference(result, usable)]))
    return (
        result.label,
        batch(result),
        format_bytes(expected),
        format_bytes(found),
        difference,
        verdict,
    )


def _difference(result: ProbeResult, usable: int | None) -> str:
    """What was predicted, where the emulated card said something else; empty where they agree."""
    said = next((note for note in result.notes if note.startswith("predicted ")), None)
    expected = result.predicted.deciding_peak_bytes() if result.predicted is not None else None
    if said is not None or expected is None or usable is None:
        return said or ""
    if (expected <= usable) == (result.outcome == "fits"):
        return ""
    return "predicted to fit" if expected <= usable else "predicted not to fit"
