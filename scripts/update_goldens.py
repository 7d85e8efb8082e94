"""Write tests/data/golden/* from the example reports. Read the diff before you commit it.

python scripts/update_goldens.py
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

from oomdoctor.records.report.report import Report
from oomdoctor.render import render_report
from oomdoctor.render.formats import Style

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "tests" / "data" / "golden"
sys.path[:0] = [str(ROOT / "tests" / "examples"), str(ROOT / "scripts")]
from golden_reports import short, short_page, short_table, whole  # noqa: E402

# The report whose JSON another one's is told by: what it does not say is as it is there.
BASES = {
    "plan": None,
    "explain-gpu": None,
    "gpu": "plan",
    "emulated": "gpu",
    "cpu": "gpu",
    "error": "gpu",
    "interrupted": "gpu",
    "plan-verify": "plan",
    "plan-cards": "plan",
    "plan-prices": "plan-cards",
    "plan-sweep": "plan",
    "plan-solve": "plan-sweep",
    "plan-why": "plan",
    "plan-gpus": "plan",
    "plan-gpus-min": "plan-gpus",
    "explain-table": "explain-gpu",
    "snapshot-oom": "explain-gpu",
    "snapshot": "snapshot-oom",
    "snapshot-fits": "snapshot-oom",
    "run-oom": "explain-gpu",
    "run": "run-oom",
    "run-real": "run",
    "run-values": "run",
    "run-killed": "explain-gpu",
}


def goldens() -> Iterator[tuple[str, str]]:
    """Name and content of every golden file."""
    from example_diagnoses import EXPLAINED, SHORT
    from example_many_gpus import MANY_GPUS
    from example_plans import PLANS
    from example_reports import REPORTS
    from example_runs import RUNS
    from example_slurm import SLURM
    from example_snapshots import SNAPSHOTS

    made = {**REPORTS, **PLANS, **MANY_GPUS, **EXPLAINED, **SNAPSHOTS}
    for name, make in SHORT.items():
        yield f"{name}-pipe.txt", _render(make(), "table")
    for name, make in made.items():
        report = make()
        yield f"{name}-pipe.txt", _render(report, "table")
        yield f"{name}.md", _render(report, "markdown")
        yield f"{name}.csv", short_table(_render(report, "csv"))
        yield from _pages(report, name, 100, (60, 80, 140))
    for name, make in RUNS.items():  # printed to stderr, and written as JSON
        yield f"{name}-pipe.txt", _render(make(), "table")
        yield from _pages(make(), name, 80, (), verbose_at=120)
    for name, make in SLURM.items():
        yield from _pages(make(), name, 80, (120,))
        for kind, end in (("markdown", "md"), ("csv", "csv")):
            yield f"{name}.{end}", _render(make(), kind)
        yield f"{name}-pipe.txt", _render(make(), "table")
    for name in ("gpu", "cpu", "plan", "plan-why", "plan-gpus", "explain-gpu", "explain-table"):
        page, verbose = (
            _render(made[name](), "table", 100, verbose=more) for more in (False, True)
        )
        yield f"{name}-verbose-100.txt", short_page(verbose, page, f"{name}-100.txt")
    for name in ("gpu", "explain-table"):
        yield f"{name}-color-100.txt", _render(made[name](), "table", 100, color=True)
    yield from _documents({name: make() for name, make in {**made, **RUNS}.items()})


def _render(report: Report, kind: str, width: int | None = None, **style: bool) -> str:
    """A report for a terminal of this width, or for a pipe."""
    terminal = {"terminal": width is not None, "width": width or 80}
    return render_report(report, kind, Style(**terminal | style))


def _pages(
    report: Report, name: str, width: int, others: tuple[int, ...], verbose_at: int | None = None
) -> Iterator[tuple[str, str]]:
    """The page at one width, and what other widths change in it."""
    page = _render(report, "table", width)
    yield f"{name}-{width}.txt", page
    for other in (*others, *([verbose_at] if verbose_at else [])):
        wide = _render(report, "table", other, verbose=other == verbose_at)
        yield f"{name}-{other}.txt", short_page(wide, page, f"{name}-{width}.txt")


def _documents(reports: dict[str, Report]) -> Iterator[tuple[str, str]]:
    for name, report in reports.items():
        base = BASES[name]
        yield f"{name}.json", whole(report) if base is None else short(reports, name, base)


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
