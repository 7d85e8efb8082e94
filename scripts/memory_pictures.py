"""Makes the pictures of docs/where-memory-goes.md from the stored plans of that page.

    python scripts/build_docs.py --run where-rungs where-step where-length   # renew the plans first
    python scripts/memory_pictures.py

The pictures are the charts that `oomdoctor show --png` draws. They need matplotlib.
"""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path

from picture_files import keep_all

from oomdoctor.records.codec import loads
from oomdoctor.records.report.report import Report
from oomdoctor.render.charts import Chart
from oomdoctor.render.charts.choose import chart_named
from oomdoctor.render.charts.drawing import png

ROOT = Path(__file__).parents[1]
# Name of the stored plan and of the picture, and the chart.
PICTURES = {"where-rungs": "memory", "where-step": "step", "where-length": "sweep"}


def chart_of(name: str) -> Chart:
    """The chart of a stored plan."""
    text = (ROOT / "docs" / "reports" / f"{name}.json").read_text(encoding="utf-8")
    return chart_named(loads(Report, text), PICTURES[name])


def main() -> int:
    """Draw all pictures."""
    for name in PICTURES:
        keep_all(name, partial(png, chart_of(name)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
