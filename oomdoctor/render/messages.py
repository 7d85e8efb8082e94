"""The sections that every page has: errors, warnings, the next commands."""

from __future__ import annotations

from collections.abc import Sequence

from oomdoctor.records.report import Report
from oomdoctor.render.blocks import Facts, Note, Section, Verbatim


def error_sections(report: Report) -> list[Section]:
    """What failed, and the line to type."""
    pairs = []
    for fault in report.errors:
        pairs.append(("error:", fault.message))
        for number, line in enumerate((fault.hint or "").splitlines()):
            pairs.append(("" if number else "hint:", line))
    return [Section("Errors", (Facts(tuple(pairs)),))] if pairs else []


def message_sections(title: str, texts: Sequence[str]) -> list[Section]:
    """A sentence a line, such as warnings; nothing without texts."""
    return [Section(title, tuple(Note(text, "normal") for text in texts))] if texts else []


def warning_sections(report: Report) -> list[Section]:
    """The warnings; those that Slurm causes stand apart."""
    slurm = [warning.message for warning in report.warnings if warning.code == "slurm"]
    others = [warning.message for warning in report.warnings if warning.code != "slurm"]
    return [*message_sections("Slurm", slurm), *message_sections("Warnings", others)]


def next_sections(report: Report) -> list[Section]:
    """The commands to run next, here and on the machine with the GPU."""
    sections = []
    if report.next_commands:
        sections.append(Section("Next:", (Verbatim(report.next_commands),)))
    if report.next_on_gpu:
        title = "Next, on the machine with the GPU:"
        sections.append(Section(title, (Verbatim(report.next_on_gpu),)))
    return sections
