"""Peaks that a benchmark wrote for many sizes, beside those that its authors published."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

from third.rows import Swept

Figure = list[str | float | None]  # as JSON reads it


def read(swept: Swept, folder: Path, checkout: Path) -> dict[str, Any]:
    """What a run in `folder` wrote, beside the files of the checkout.

    `figures` are the size, the published peak and the emulated one in units of `unit` bytes; the
    last is None where the run wrote none.
    """
    figures = [
        figure
        for written, source in swept.files
        for figure in _figures(swept, folder / written, checkout / source)
    ]
    return {
        "source": ", ".join(source for _, source in swept.files),
        "unit": swept.unit,
        "remark": swept.remark,
        "figures": figures,
    }


def _figures(swept: Swept, written: Path, source: Path) -> list[Figure]:
    here = _peaks(swept, written) if written.exists() else {}
    return [[size, peak, here.get(size)] for size, peak in _peaks(swept, source).items()]


def _peaks(swept: Swept, file: Path) -> dict[str, float]:
    """The peak of each size in a file."""
    with file.open(newline="") as text:
        return {
            " ".join(filter(None, (row[key] for key in swept.keys))): float(row[swept.column])
            for row in csv.DictReader(text)
            if all(row[name] == value for name, value in swept.only)
        }
