"""All remedies by key. The rules in `diagnosis.causes.rules` refer to them by these keys."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from oomdoctor.explain.diagnosis.case import Case
from oomdoctor.explain.remedies.conditions import WHEN
from oomdoctor.explain.remedies.effects import EFFECTS
from oomdoctor.explain.remedies.row import Effect, Row, changing, rule
from oomdoctor.package_data import data_of

_OF_TRAININGS = ("training", "rl", "inference")


def _effect(key: str, said: Mapping[str, Any]) -> Callable[[Case], Effect]:
    if key in EFFECTS:
        return EFFECTS[key]
    if "rule" in said:
        return rule(said["rule"])
    return changing(said["saves"], **said.get("changes", said.get("settings", {})))


def _when(key: str, said: Mapping[str, Any]) -> Iterator[Callable[[Case], object]]:
    """What has to be true for a remedy to help."""
    if "phases" in said:
        yield lambda case: case.phase in said["phases"]
    if "shows" in said:
        yield lambda case: case.shows(said["shows"])
    if "logs" in said:
        yield lambda case: case.logged(said["logs"])
    if "around" in said:
        yield lambda case: not case.around.isdisjoint(said["around"])
    if key in WHEN:
        yield WHEN[key]


def _row(key: str, said: Mapping[str, Any]) -> Row:
    conditions = tuple(_when(key, said))
    return Row(
        key,
        said["cost"],
        said["change"],
        lambda case: all(condition(case) for condition in conditions),
        _effect(key, said),
        said.get("lines", {}),
        said.get("note"),
        said.get("settings", {}),
        frozenset(said.get("programs", _OF_TRAININGS)),
    )


TABLE = {key: _row(key, said) for key, said in data_of("remedies.toml").items()}
