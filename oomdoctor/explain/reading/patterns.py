"""The expressions by which texts are read, from `data/patterns.toml`."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from oomdoctor.package_data import data_of

_DATA: Mapping[str, Mapping[str, Any]] = data_of("patterns.toml")


def patterns(part: str) -> Mapping[str, re.Pattern[str]]:
    """The expressions of a part by name; (?&name) in one stands for a fragment."""
    rows = dict(_DATA[part])
    fragments = rows.pop("fragments", {})
    return {name: re.compile(_whole(row, fragments)) for name, row in rows.items()}


def _whole(row: str | list[str], fragments: Mapping[str, str | list[str]]) -> str:
    text = row if isinstance(row, str) else "".join(row)
    return re.sub(r"\(\?&(\w+)\)", lambda match: _whole(fragments[match[1]], fragments), text)
