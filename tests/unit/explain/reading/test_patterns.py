"""Each part of data/patterns.toml has the expressions that its module uses, and no more."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import oomdoctor.explain
from oomdoctor.explain.reading.patterns import patterns
from oomdoctor.package_data import data_of

SOURCES = [file.read_text() for file in Path(oomdoctor.explain.__file__).parent.rglob("*.py")]
PARTS = {found[1]: text for text in SOURCES if (found := re.search(r'= patterns\("(\w+)"\)', text))}


def test_each_part_has_a_module() -> None:
    assert PARTS.keys() == data_of("patterns.toml").keys()


@pytest.mark.parametrize("part", PARTS)
def test_a_module_uses_all_expressions_of_its_part(part: str) -> None:
    assert {*re.findall(r'_RE\["(\w+)"\]', PARTS[part])} == patterns(part).keys()
    written = str(data_of("patterns.toml")[part])
    fragments = data_of("patterns.toml")[part].get("fragments", {})
    assert {*re.findall(r"\(\?&(\w+)\)", written)} == fragments.keys()
