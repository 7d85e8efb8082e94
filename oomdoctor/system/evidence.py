"""The recorded errors of predictions, from the package's data.

`scripts/benchmarks/accuracy.py --write` makes the file.
"""

from __future__ import annotations

import json
from functools import cache
from importlib import resources

from oomdoctor.records.codec import from_json
from oomdoctor.records.evidence import ErrorRecord


@cache
def prediction_errors() -> tuple[ErrorRecord, ...]:
    """Every kind of prediction that was compared with measurements."""
    path = resources.files("oomdoctor").joinpath("data", "prediction_errors.json")
    rows = json.loads(path.read_text(encoding="utf-8"))
    return tuple(from_json(ErrorRecord, row) for row in rows)
