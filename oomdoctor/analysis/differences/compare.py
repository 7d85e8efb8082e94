"""Two reports side by side: the whole answer of `diff`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from oomdoctor.analysis.differences.judging import importance, judged
from oomdoctor.analysis.differences.matching import matched
from oomdoctor.analysis.differences.rows import Row, rows_of
from oomdoctor.analysis.differences.surroundings import (
    device_of,
    environment_changes,
    model_of,
    setting_changes,
)
from oomdoctor.analysis.differences.uncertainty import Sides
from oomdoctor.records.history.difference import DiffAnswer, DiffSide, DiffVerdict, RungDiff
from oomdoctor.records.report import Report


def compared(before: Report, after: Report, names: tuple[str, str], sides: Sides) -> DiffAnswer:
    """What changed from one report to the other. `names` are those that the user knows them by."""
    left, right = rows_of(before), rows_of(after)
    pairs, only_before, only_after = matched(left, right)
    rungs = sorted((judged(*pair, sides) for pair in pairs), key=importance)
    one, other = _side(before, names[0], left), _side(after, names[1], right)
    return DiffAnswer(
        before=one,
        after=other,
        verdict=_overall(rungs),
        environment=environment_changes(before, after),
        settings=setting_changes(before, after),
        rungs=tuple(rungs),
        only_before=tuple(row.label for row in only_before),
        only_after=tuple(row.label for row in only_after),
        notes=tuple(_notes(one, other)),
    )


def _side(report: Report, name: str, rows: Sequence[Row]) -> DiffSide:
    kinds = Counter(row.evidence for row in rows)
    return DiffSide(
        name=name,
        command=report.command,
        model=model_of(report),
        device=device_of(report),
        started_at=report.started_at,
        evidence=kinds.most_common(1)[0][0] if kinds else None,
        oomdoctor=report.tool.version,
        rungs=len(rows),
    )


def _overall(rungs: Sequence[RungDiff]) -> DiffVerdict:
    found = {one.verdict for one in rungs}
    order: tuple[DiffVerdict, ...] = ("worse", "better", "different", "within")
    return next((verdict for verdict in order if verdict in found), "same")


def _notes(before: DiffSide, after: DiffSide) -> list[str]:
    notes = []
    if before.model != after.model:
        notes.append(f"the models differ: {before.model} and {after.model}")
    if before.device != after.device:
        notes.append(f"the devices differ: {before.device} and {after.device}")
    if before.evidence != after.evidence:
        notes.append(f"before is {before.evidence}, after is {after.evidence}")
    return notes
