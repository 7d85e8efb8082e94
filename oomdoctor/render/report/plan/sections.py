"""What only a plan has: one row a card, how peaks grow, and a rung taken apart."""

from __future__ import annotations

from oomdoctor.records.report import Report
from oomdoctor.render.blocks import Look, Section
from oomdoctor.render.report.plan.cards import card_sections
from oomdoctor.render.report.plan.checked import checked_sections
from oomdoctor.render.report.plan.fewest import fewest_sections
from oomdoctor.render.report.plan.solve import solve_sections
from oomdoctor.render.report.plan.sweep import sweep_sections
from oomdoctor.render.report.plan.why import why_sections


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
