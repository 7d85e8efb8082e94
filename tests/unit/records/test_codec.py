"""Documents come back as they were written, also those of earlier versions; nothing is guessed."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from oomdoctor.records.codec import CodecError, dumps, from_json, loads, to_json
from oomdoctor.records.job.measurement import MemoryCurve
from oomdoctor.records.report.report import Report
from oomdoctor.render import render_report
from oomdoctor.render.formats import Style

# Reports as earlier versions wrote them: before `explain`, before `plan`, and the first cases.
EARLIER = sorted((Path(__file__).parents[2] / "data" / "earlier").glob("*.json"))


@dataclass(frozen=True, slots=True)
class Inner:
    size: int
    later: float | None = None


@dataclass(frozen=True, slots=True)
class Outer:
    name: str
    parts: tuple[Inner, ...]
    best: Inner | None
    more: Mapping[str, int] = field(default_factory=dict)


def refused(value: Any) -> str:
    with pytest.raises(CodecError) as caught:
        from_json(Outer, value)
    return str(caught.value)


def test_a_record_comes_back():
    record = Outer("a", (Inner(1, 2.0), Inner(3)), None, {"x": 1})
    assert from_json(Outer, to_json(record)) == record


def test_a_missing_key_takes_its_default():
    value = {"name": "a", "parts": [{"size": 1}], "best": {"size": 2}}
    assert from_json(Outer, value) == Outer("a", (Inner(1, None),), Inner(2, None), {})


def test_a_missing_key_without_a_default_is_named():
    assert refused({"name": "a", "more": {}}) == "Outer: missing parts, best"
    told = refused({"name": "a", "parts": [{"size": 1}, {}], "best": None})
    assert told == "Outer.parts[1]: missing size"


def test_an_unknown_key_is_named_with_who_may_have_written_it():
    told = refused({"name": "a", "parts": [], "best": {"size": 1, "newest": 2}})
    assert told == ("Outer.best: unknown newest, perhaps from a newer version of oomdoctor")


@pytest.mark.parametrize(
    ("value", "told"),
    [
        ({"name": 1, "parts": [], "best": None}, "Outer.name: expected str, got int 1"),
        ({"name": "a", "parts": None, "best": None}, "Outer.parts: expected a list, got null"),
        ([], "Outer: expected an object, got list []"),
    ],
)
def test_a_wrong_type_is_named(value, told):
    assert refused(value) == told


@pytest.mark.parametrize("file", EARLIER, ids=lambda file: file.stem)
def test_a_report_of_an_earlier_version_is_read_and_shown(file):
    text = file.read_text(encoding="utf-8")
    before, report = json.loads(text), loads(Report, text)
    assert (report.cards, report.sweep, report.why, report.lengths) == ((), None, None, None)
    assert _within(before, to_json(report))
    for verbose in (False, True):
        page = render_report(report, "table", Style(width=80, verbose=verbose))
        commands = before["next_commands"][: None if verbose else 1]
        told = commands + [row["label"] for row in before["results"]]
        assert [words for words in told if words not in page] == []


def test_there_are_earlier_reports_of_each_kind():
    assert {json.loads(file.read_text())["command"] for file in EARLIER} == {
        "probe",
        "explain",
        "run",
    }


def _within(part: Any, whole: Any) -> bool:
    """Whether everything of a document is in another one, which may have keys more."""
    if isinstance(part, dict):
        return part.keys() <= whole.keys() and all(_within(part[k], whole[k]) for k in part)
    if isinstance(part, list):
        return len(part) == len(whole) and all(map(_within, part, whole))
    return part == whole


def test_a_long_row_of_numbers_is_a_line_and_a_text_is_left_as_it_is():
    numbers = tuple(range(-3, 40))
    curve = MemoryCurve(9, numbers, numbers, {"[\n  1,\n  2": numbers}, (), 0)
    text = dumps(curve)
    assert f'"event": {list(numbers)},\n' in text
    assert loads(MemoryCurve, text) == curve
