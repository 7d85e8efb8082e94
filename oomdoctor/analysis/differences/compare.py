"""Two reports side by side: the whole answer of `diff`, with what both ran in and were asked for.

Which rows of two reports belong together: by configuration, never by place.
Only the rung of the user's file goes by its label, because the file may have changed.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import fields
from functools import partial

from oomdoctor.analysis.differences.judging import (
    Sides,
    changes,
    importance,
    judged,
    most_important,
)
from oomdoctor.analysis.differences.rows import Row, rows_of
from oomdoctor.records.job.machine import real_name
from oomdoctor.records.report.earlier_runs import DiffAnswer, DiffSide
from oomdoctor.records.report.report import Report, SurveyRequest
from oomdoctor.records.report.user_training import YOURS
from oomdoctor.units import format_bytes

# What a command line sets for every rung at once, so that all rungs of two runs may differ in it.
_RUN_WIDE = frozenset({"sequence_length", "effective_batch_size", "world_size", "gpus_per_node"})
# What does not shape a rung, or is shown elsewhere: the model and the device.
_LEFT_OUT = frozenset(
    {
        *("model", "recipe", "rank_by", "tokens", "time_limit_s", "rung_limit_s", "python"),
        *("plan", "lengths", "predict", "fresh", "training", "snapshot", "trace", "device"),
        *("emulate", "versions", "user_training"),
    }
)
_NAMES = {"vram_bytes": "vram", "most_gpus": "gpus", "from_files": "from"}


def compared(before: Report, after: Report, names: tuple[str, str], sides: Sides) -> DiffAnswer:
    """What changed from one report to the other. `names` are those that the user knows them by."""
    left, right = rows_of(before), rows_of(after)
    pairs, only_before, only_after = matched(left, right)
    rungs = sorted((judged(*pair, sides) for pair in pairs), key=importance)
    first, second = _side(before, names[0], left), _side(after, names[1], right)
    return DiffAnswer(
        before=first,
        after=second,
        verdict=most_important(rung.verdict for rung in rungs),
        environment=tuple(changes("environment", _environment(before), _environment(after))),
        settings=tuple(changes("setting", _asked(before), _asked(after))),
        rungs=tuple(rungs),
        only_before=tuple(row.label for row in only_before),
        only_after=tuple(row.label for row in only_after),
        notes=tuple(_notes(first, second)),
    )


def _side(report: Report, name: str, rows: Sequence[Row]) -> DiffSide:
    kinds = Counter(row.evidence for row in rows)
    return DiffSide(
        name=name,
        command=report.command,
        model=_model_of(report),
        device=_device_of(report),
        started_at=report.started_at,
        evidence=kinds.most_common(1)[0][0] if kinds else None,
        oomdoctor=report.tool.version,
        rungs=len(rows),
    )


def _notes(before: DiffSide, after: DiffSide) -> list[str]:
    pairs = (("models", before.model, after.model), ("devices", before.device, after.device))
    notes = [f"the {what} differ: {old} and {new}" for what, old, new in pairs if old != new]
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
    without_sizes = partial(_settings, without=_RUN_WIDE)
    kinds = (
        _settings,
        without_sizes,
        lambda row: re.sub(r'"b?float16"', '"16 bits"', without_sizes(row)),
        lambda row: YOURS if row.label == YOURS else "",
    )
    for kind in kinds:
        mine, theirs = Counter(map(kind, left)), Counter(map(kind, right))
        for row in list(left):
            same = kind(row)
            other = next((other for other in right if same and kind(other) == same), None)
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


def _device_of(report: Report) -> str | None:
    """The device, or the cards of a plan; an emulated GPU counts as the card that it stands for."""
    if report.device is not None:
        name = real_name(report.device.gpu_name or format_bytes(report.device.total_bytes))
        return f"{report.device.gpus} x {name}" if report.device.gpus > 1 else name
    if report.machine is None:
        return None
    named = real_name(report.machine.gpu_name or "") or None
    if named is not None and report.machine.gpus > 1:
        return f"{report.machine.gpus} x {named}"
    return named or ", ".join(card.name for card in report.cards) or report.machine.device


def _model_of(report: Report) -> str | None:
    """The model as it was named; of a watched command its command line."""
    if report.request is not None:
        return report.request.model.name
    if report.command_line:
        return " ".join(report.command_line)
    return report.model.id if report.model is not None else None


def _environment(report: Report) -> dict[str, str | None]:
    versions: dict[str, str | None] = {}
    machine = report.machine
    if machine is not None:
        versions |= machine.versions
        versions["driver"] = machine.driver_version
        versions["cpu"] = machine.cpu_name if machine.device == "cpu" else None
    if report.torch_version is not None:
        versions["torch"] = report.torch_version
    versions["oomdoctor"] = report.tool.version
    return versions


def _asked(report: Report) -> dict[str, str | None]:
    asked: dict[str, str | None] = {}
    request = report.request
    if request is not None:
        asked["recipe"] = request.recipe.name
        for field in fields(SurveyRequest):
            if field.name not in _LEFT_OUT:
                asked[_NAMES.get(field.name, field.name)] = _word(field.name, request)
        if request.plan is not None and request.plan.interconnect != "auto":
            asked["interconnect"] = request.plan.interconnect
    if report.budget is not None:
        asked["usable memory"] = format_bytes(report.budget.usable_bytes)
    for name, value in report.settings.items():
        asked[name] = str(value)
    return asked


def _word(name: str, request: SurveyRequest) -> str | None:
    value = getattr(request, name)
    if value is None:
        return None
    if isinstance(value, tuple):
        return ", ".join(value) or None
    return format_bytes(value) if name.endswith("_bytes") else str(value)
