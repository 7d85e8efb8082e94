"""The recorded prediction errors, from the package's data files.

`scripts/evaluation/peak_errors.py --write` makes the file of peaks, `speed.py --write` that of
times.
"""

from __future__ import annotations

import json
from functools import cache
from importlib import resources
from typing import Any

from oomdoctor.records.codec import from_json
from oomdoctor.records.evidence import PeakErrorRecord, SpeedErrorRecord


@cache
def peak_errors() -> tuple[PeakErrorRecord, ...]:
    """The errors of every kind of predicted peak, and those of the emulated GPU."""
    return tuple(from_json(PeakErrorRecord, row) for row in _rows("peak_errors.json"))


@cache
def speed_errors() -> tuple[SpeedErrorRecord, ...]:
    """The error of every kind of predicted speed that was compared with measurements."""
    return tuple(from_json(SpeedErrorRecord, row) for row in _rows("speed_errors.json"))


def _rows(name: str) -> Any:
    path = resources.files("oomdoctor").joinpath("data", name)
    return json.loads(path.read_text(encoding="utf-8"))
