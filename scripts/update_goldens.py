"""Write tests/data/golden/* from the example reports. Read the diff before you commit it.

python scripts/update_goldens.py
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

from oomdoctor.render import render_report

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "tests" / "data" / "golden"
WIDTHS = (60, 80, 100, 140)


def goldens() -> Iterator[tuple[str, str]]:
    """Name and content of every golden file."""
    sys.path.insert(0, str(ROOT / "tests" / "examples"))
    from example_diagnoses import EXPLAINED, SHORT
    from example_many_gpus import MANY_GPUS
    from example_plans import PLANS
    from example_reports import REPORTS
    from example_runs import RUNS
    from example_slurm import SLURM
    from example_snapshots import SNAPSHOTS

    plain = {"terminal": False, "width": 80, "color": False}
    made = {**REPORTS, **PLANS, **MANY_GPUS, **EXPLAINED, **SNAPSHOTS}
    for name, make in SHORT.items():
        yield f"{name}-pipe.txt", render_report(make(), "table", **plain, verbose=False)
    for name, make in made.items():
        report = make()
        yield f"{name}-pipe.txt", render_report(report, "table", **plain, verbose=False)
        for width in WIDTHS:
            table = render_report(
                report, "table", terminal=True, width=width, color=False, verbose=False
            )
            yield f"{name}-{width}.txt", table
        yield f"{name}.md", render_report(report, "markdown", **plain, verbose=False)
        yield f"{name}.csv", render_report(report, "csv", **plain, verbose=False)
        yield f"{name}.json", render_report(report, "json", **plain, verbose=False)
    for name, make in RUNS.items():  # printed to stderr, and written as JSON
        yield f"{name}-pipe.txt", render_report(make(), "table", **plain, verbose=False)
        yield f"{name}.json", render_report(make(), "json", **plain, verbose=False)
        for width in (80, 120):
            yield (
                f"{name}-{width}.txt",
                render_report(
                    make(), "table", terminal=True, width=width, color=False, verbose=width == 120
                ),
            )
    for name, make in SLURM.items():
        for width in (80, 120):
            style = {"terminal": True, "width": width, "color": False}
            yield f"{name}-{width}.txt", render_report(make(), "table", **style, verbose=False)
        for kind, end in (("markdown", "md"), ("csv", "csv")):
            yield f"{name}.{end}", render_report(make(), kind, **plain, verbose=False)
        yield f"{name}-pipe.txt", render_report(make(), "table", **plain, verbose=False)
    for name in ("gpu", "cpu", "plan", "plan-why", "plan-gpus", "explain-gpu", "explain-table"):
        verbose = render_report(
            made[name](), "table", terminal=True, width=100, color=False, verbose=True
        )
        yield f"{name}-verbose-100.txt", verbose
    for name in ("gpu", "explain-table"):
        color = render_report(
            made[name](), "table", terminal=True, width=100, color=True, verbose=False
        )
        yield f"{name}-color-100.txt", color


if __name__ == "__main__":
    FOLDER.mkdir(parents=True, exist_ok=True)
    written = set()
    for file, content in goldens():
        (FOLDER / file).write_text(content, encoding="utf-8")
        written.add(file)
    for old in FOLDER.iterdir():
        if old.name not in written:
            old.unlink()
    print(f"{len(written)} files in {FOLDER}")
