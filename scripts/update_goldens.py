"""Write tests/data/golden/* anew from the example reports; read the diff before committing it.

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
    sys.path.insert(0, str(ROOT / "tests" / "unit" / "render"))
    from example_reports import REPORTS

    plain = {"terminal": False, "width": 80, "color": False}
    for name, make in REPORTS.items():
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
    for name in ("gpu", "cpu"):
        verbose = render_report(
            REPORTS[name](), "table", terminal=True, width=100, color=False, verbose=True
        )
        yield f"{name}-verbose-100.txt", verbose
    color = render_report(
        REPORTS["gpu"](), "table", terminal=True, width=100, color=True, verbose=False
    )
    yield "gpu-color-100.txt", color


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
