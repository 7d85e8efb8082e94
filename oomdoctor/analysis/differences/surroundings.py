"""What two runs ran in and were asked for: versions, driver, device, settings."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import fields
from typing import Any

from oomdoctor.records.job.machine import real_name
from oomdoctor.records.report.earlier_runs import ChangedPart, ValueChange
from oomdoctor.records.report.report import Report, SurveyRequest
from oomdoctor.units import format_bytes

# What does not shape a rung, or is shown elsewhere: the model and the device.
_LEFT_OUT = frozenset(
    {
        *("model", "recipe", "rank_by", "tokens", "time_limit_s", "rung_limit_s", "python"),
        *("plan", "lengths", "predict", "fresh", "training", "snapshot", "trace", "device"),
        *("emulate", "versions", "user_training"),
    }
)
_NAMES = {"vram_bytes": "vram", "most_gpus": "gpus", "from_files": "from"}


def environment_changes(before: Report, after: Report) -> tuple[ValueChange, ...]:
    """Versions, driver and device that differ."""
    return tuple(_changes("environment", _environment(before), _environment(after)))


def setting_changes(before: Report, after: Report) -> tuple[ValueChange, ...]:
    """What was asked for differently, for all rungs at once."""
    return tuple(_changes("setting", _settings(before), _settings(after)))


def device_of(report: Report) -> str | None:
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


def model_of(report: Report) -> str | None:
    """The model as it was named; of a watched command its command line."""
    if report.request is not None:
        return report.request.model.name
    if report.command_line:
        return " ".join(report.command_line)
    return report.model.id if report.model is not None else None


def _environment(report: Report) -> dict[str, str | None]:
    found: dict[str, str | None] = {}
    machine = report.machine
    if machine is not None:
        found |= machine.versions
        found["driver"] = machine.driver_version
        found["cpu"] = machine.cpu_name if machine.device == "cpu" else None
    if report.torch_version is not None:
        found["torch"] = report.torch_version
    found["oomdoctor"] = report.tool.version
    return found


def _settings(report: Report) -> dict[str, str | None]:
    found: dict[str, str | None] = {}
    request = report.request
    if request is not None:
        found["recipe"] = request.recipe.name
        for field in fields(SurveyRequest):
            if field.name not in _LEFT_OUT:
                found[_NAMES.get(field.name, field.name)] = _word(field.name, request)
        if request.plan is not None and request.plan.interconnect != "auto":
            found["interconnect"] = request.plan.interconnect
    if report.budget is not None:
        found["usable memory"] = format_bytes(report.budget.usable_bytes)
    for name, value in report.settings.items():
        found[name] = str(value)
    return found


def _word(name: str, request: SurveyRequest) -> str | None:
    value = getattr(request, name)
    if value is None:
        return None
    if isinstance(value, tuple):
        return ", ".join(value) or None
    return format_bytes(value) if name.endswith("_bytes") else str(value)


def _changes(
    part: ChangedPart, before: Mapping[str, Any], after: Mapping[str, Any]
) -> Iterator[ValueChange]:
    for name in dict.fromkeys([*before, *after]):
        one, other = before.get(name), after.get(name)
        if one != other:
            yield ValueChange(part, name, one, other)
