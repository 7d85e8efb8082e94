"""The parts of a peak add up to it."""

from __future__ import annotations

from dataclasses import astuple

from oomdoctor.analysis.memory.phases import breakdown
from oomdoctor.records.facts.categories import CATEGORIES


def test_what_no_category_holds_is_other() -> None:
    parts = {name: 2**place for place, name in enumerate(CATEGORIES)}
    found = breakdown(parts, 1000)
    assert sum(astuple(found)) == 1000
    assert found.weights_bytes == parts["weights"]
    known = sum(parts.values()) - parts["inputs"] - parts["temporary"]
    assert found.other_bytes == 1000 - known
