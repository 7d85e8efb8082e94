"""The title of a page: what ran, and on what."""

from __future__ import annotations

from oomdoctor.records.report import Report
from oomdoctor.render.text import one_line
from oomdoctor.render.words import card_name


def title_of(report: Report) -> str:
    """`meta-llama/Llama-3.1-8B on A100 80GB`; the command where there is no model."""
    if report.model is None:
        what = report.source or " ".join(report.command_line)
        return one_line(what) or f"oomdoctor {report.command}"
    return one_line(f"{report.model.id}{_where(report)}")


def _where(report: Report) -> str:
    machine = report.machine
    if len(report.cards) > 1:
        return f" on {len(report.cards)} cards"
    if len(report.cards) == 1:
        name = card_name(report.cards[0].name)
    elif machine is None:
        return ""
    else:
        name = card_name(machine.gpu_name) if machine.gpu_name else "the CPU"
    times = f"{machine.gpus} x " if machine is not None and machine.gpus > 1 else ""
    return f" on {times}{name}"
