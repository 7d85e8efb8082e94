"""Categories and phases have one table each; the types that name them are held against it."""

from __future__ import annotations

from dataclasses import fields
from typing import get_args

from oomdoctor.analysis.memory.phases import breakdown
from oomdoctor.records.facts.categories import BREAKDOWN, CATEGORIES, STACKED, TABLE
from oomdoctor.records.facts.phases import MEASURED, PHASES
from oomdoctor.records.job.measurement import BlockCategory, Breakdown, CategoryBytes, PhaseName
from oomdoctor.records.report.diagnosis import ReadPhase


def test_records_have_the_categories_of_the_table():
    assert [field.name for field in fields(Breakdown)] == [f"{name}_bytes" for name in BREAKDOWN]
    blocks = [name for name in TABLE if name != "inputs"]
    assert list(get_args(BlockCategory)) == blocks
    assert [field.name for field in fields(CategoryBytes)] == [f"{name}_bytes" for name in blocks]


def test_a_breakdown_has_a_word_a_letter_and_colors_for_each_part():
    for name in BREAKDOWN:
        row = TABLE[name]
        assert row.words and len(row.sign) == 1 and row.light and row.dark
    assert sorted(STACKED) == sorted(TABLE)


def test_a_breakdown_adds_up():
    parts = {name: 1 << place for place, name in enumerate(CATEGORIES)}
    found = breakdown(parts, 1000)
    assert sum(found.sizes().values()) == 1000
    assert found.sizes()["weights"] == parts["weights"]


def test_phases_are_those_of_the_records():
    assert {*PHASES, "unknown"} == set(get_args(ReadPhase))
    assert set(MEASURED) < set(get_args(PhaseName))
