"""Makes the pictures of the page of a run, for README.md and docs/, from a stored report.

    python scripts/report_pictures.py

It opens the page of docs/reports/plan-4090.json in Chromium (scripts/chromium.sh installs it).
`scripts/build_docs.py --run plan-4090` renews that report.
"""

from __future__ import annotations

import sys
import tempfile
from functools import partial
from pathlib import Path

from picture_files import keep_all

from oomdoctor.records.codec import loads
from oomdoctor.records.report.report import Report
from oomdoctor.render import render_report
from oomdoctor.render.charts import Size
from oomdoctor.render.charts.axes import Palette
from oomdoctor.render.charts.choose import chart_named
from oomdoctor.render.charts.drawing import png
from oomdoctor.render.formats import Style

ROOT = Path(__file__).parents[1]
REPORT = ROOT / "docs" / "reports" / "plan-4090.json"
WIDTH, PHONE = 1100, 390
sys.path.insert(0, str(ROOT / "tests" / "examples"))

from chromium import LOADED, Tab, browser  # noqa: E402


def main() -> None:
    """Draw them all."""
    report = loads(Report, REPORT.read_text(encoding="utf-8"))
    page = render_report(report, "html", Style(width=0))
    for name in ("step", "frontier"):
        keep_all(name, partial(png, chart_named(report, name)))
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        file = Path(folder) / "report.html"
        file.write_text(page, encoding="utf-8")
        with browser(Path(folder) / "profile") as tab:
            keep_all("report", partial(shot, tab, file))


def top(part: str, tab: Tab) -> float:
    """Where a part of the page begins."""
    return float(tab.value(f"document.getElementById('{part}').offsetTop"))


def shot(tab: Tab, file: Path, size: Size, colors: Palette) -> bytes:
    """The page down to its ranking; on a phone, only the chart above that."""
    wide = size == "wide"
    tab.open(file, WIDTH if wide else PHONE, 900, dark=colors == "dark", shown=LOADED)
    begins, ends = 24.0 if wide else top("memory", tab), top("ranking", tab)
    picture = file.with_suffix(".png")
    width = WIDTH if wide else PHONE
    tab.picture(picture, {"x": 0, "y": begins - 24, "width": width, "height": ends - begins})
    return picture.read_bytes()


if __name__ == "__main__":
    main()
