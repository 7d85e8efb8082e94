"""`--cure`: run the command again with remedies that are settings of its Trainer.

A remedy is confirmed if the run with it fits the emulated card.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from oomdoctor.commands.run.past import with_peaks
from oomdoctor.records.report.diagnosis import Remedy
from oomdoctor.records.report.report import Report

_MOST_RUNS = 3
_ORDER = ("run", "replay", "no", None)
Settings = Mapping[str, Any]


def cured(report: Report, again: Callable[[Remedy, Settings], Report]) -> Report:
    """The report of a run past the card's memory, with its remedies tried until one fits.

    `again` runs the command with the settings of a remedy.
    """
    if not report.diagnoses or not any(rank.went_past for rank in report.ranks):
        return report
    found: list[Remedy] = []
    first, tried = report.diagnoses[0], 0
    for remedy in first.remedies:
        settings = settings_of(remedy)
        done = tried == _MOST_RUNS or any(one.confirmed == "run" for one in found)
        if settings and not done:
            tried += 1
            remedy = _after(report, remedy, again(remedy, settings))
        found.append(remedy)
    found.sort(key=lambda one: _ORDER.index(one.confirmed) if one.enough else len(_ORDER))
    told = replace(first, remedies=tuple(found))
    return replace(report, diagnoses=(told, *report.diagnoses[1:]))


def settings_of(remedy: Remedy) -> Settings:
    """The arguments of `TrainingArguments(...)` that a remedy sets; {} if it is no such line."""
    try:
        call = ast.parse(remedy.lines.get("transformers", ""), mode="eval").body
        if not isinstance(call, ast.Call) or ast.unparse(call.func) != "TrainingArguments":
            return {}
        return {one.arg: ast.literal_eval(one.value) for one in call.keywords if one.arg}
    except (SyntaxError, ValueError):
        return {}


def _after(report: Report, remedy: Remedy, again: Report) -> Remedy:
    """The remedy with what the run with it needed; as it was if that run shows nothing."""
    before, after = _peak(report), _peak(again)
    if before is None or after is None or (again.status != "ok" and not _is_past(again)):
        return remedy
    fits = again.status == "ok" and not _is_past(again)
    return with_peaks(remedy, before, after, "run" if fits else "no")


def _is_past(report: Report) -> bool:
    return any(rank.went_past for rank in report.ranks)


def _peak(report: Report) -> int | None:
    return max((rank.peak_device_bytes or 0 for rank in report.ranks), default=None)
