"""Two reports side by side: the whole answer of `diff`.

Which rows of two reports belong together: by configuration, never by place.
Only the rung of the user's file goes by its label, because the file may have changed.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Collection, Sequence

from oomdoctor.analysis.differences.judging import Sides, importance, judged, most_important
from oomdoctor.analysis.differences.rows import Row, rows_of
from oomdoctor.analysis.differences.surroundings import (
    device_of,
    environment_changes,
    model_of,
    setting_changes,
)
from oomdoctor.records.report.earlier_runs import DiffAnswer, DiffSide
from oomdoctor.records.report.report import Report
from oomdoctor.records.report.user_training import YOURS

# What a command line sets for every rung at once, so that all rungs of two runs may differ in it.
_RUN_WIDE = frozenset({"sequence_length", "effective_batch_size", "world_size", "gpus_per_node"})


def compared(before: Report, after: Report, names: tuple[str, str], sides: Sides) -> DiffAnswer:
    """What changed from one report to the other. `names` are those that the user knows them by."""
    left, right = rows_of(before), rows_of(after)
    pairs, only_before, only_after = matched(left, right)
    rungs = sorted((judged(*pair, sides) for pair in pairs), key=importance)
    one, other = _side(before, names[0], left), _side(after, names[1], right)
    return DiffAnswer(
        before=one,
        after=other,
        verdict=most_important(one.verdict for one in rungs),
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


def _notes(before: DiffSide, after: DiffSide) -> list[str]:
    pairs = (("models", before.model, after.model), ("devices", before.device, after.device))
    notes = [f"the {what} differ: {one} and {other}" for what, one, other in pairs if one != other]
    if before.evidence != after.evidence:
        notes.append(f"before is {before.evidence}, after is {after.evidence}")
    return notes


def matched(
    before: Sequence[Row], after: Sequence[Row]
) -> tuple[list[tuple[Row, Row]], list[Row], list[Row]]:
    """The pairs, and the rows that only one side has.

    The same configurations first; then those that differ only in what the command line sets for the
    whole run; then those that also differ in the 16-bit type, which a rung takes from its card; and
    the rungs of the user's file.
    """
    pairs: list[tuple[Row, Row]] = []
    left, right = list(before), list(after)
    for kind in (_settings, _without_sizes, _without_types, _of_the_user):
        mine, theirs = Counter(map(kind, left)), Counter(map(kind, right))
        for row in list(left):
            same = kind(row)
            other = next((one for one in right if same and kind(one) == same), None)
            # A sweep has a rung at several sizes, so another size is another row.
            alone = kind is _settings or mine[same] == theirs[same] == 1
            if other is not None and alone:
                pairs.append((row, other))
                left.remove(row)
                right.remove(other)
    place = {id(row): number for number, row in enumerate(before)}
    pairs.sort(key=lambda pair: place[id(pair[0])])
    return pairs, left, right


def _settings(row: Row, without: Collection[str] = ()) -> str:
    kept = {name: value for name, value in row.settings.items() if name not in without}
    return json.dumps(kept, sort_keys=True)


def _without_sizes(row: Row) -> str:
    return _settings(row, _RUN_WIDE)


def _without_types(row: Row) -> str:
    return re.sub(r'"b?float16"', '"16 bits"', _settings(row, _RUN_WIDE))


def _of_the_user(row: Row) -> str:
    return YOURS if row.label == YOURS else ""
