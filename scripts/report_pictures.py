"""Makes the pictures of the page of a run, for README.md and docs/, from a stored report.

    python scripts/report_pictures.py

It opens the page of docs/reports/plan-4090.json in Chromium (scripts/chromium.sh installs it).
`scripts/build_docs.py --run plan-4090` renews that report.
"""

from __future__ import annotations

import io
import sys
import tempfile
from pathlib import Path

from PIL import Image

from oomdoctor.records.codec import loads
from oomdoctor.records.report.report import Report
from oomdoctor.render import render_report
from oomdoctor.render.charts.choose import chart_named
from oomdoctor.render.charts.drawing import png
from oomdoctor.render.formats import Style

ROOT = Path(__file__).parents[1]
REPORT = ROOT / "docs" / "reports" / "plan-4090.json"
IMAGES = ROOT / "docs" / "images"
COLORS = 255  # of a picture; its text stays sharp
WIDTH, PHONE = 1100, 390
sys.path.insert(0, str(ROOT / "tests" / "examples"))

from chromium import LOADED, Tab, browser  # noqa: E402


def main() -> None:
    """Draw them all."""
    report = loads(Report, REPORT.read_text(encoding="utf-8"))
    page = render_report(report, "html", Style(width=0))
    for name in ("step", "frontier"):
        keep(name, png(chart_named(report, name)))
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        file = Path(folder) / "report.html"
        file.write_text(page, encoding="utf-8")
        with browser(Path(folder) / "profile") as tab:
            tab.open(file, WIDTH, 900, shown=LOADED)
            shot(tab, file, "report", WIDTH, 24, top("ranking", tab))
            tab.open(file, PHONE, 900, dark=True, shown=LOADED)
            shot(tab, file, "report-phone", PHONE, top("memory", tab), top("ranking", tab))


def top(part: str, tab: Tab) -> float:
    """Where a part of the page begins."""
    return float(tab.value(f"document.getElementById('{part}').offsetTop"))


def shot(tab: Tab, file: Path, name: str, width: int, begins: float, ends: float) -> None:
    """The page from one height to another."""
    picture = file.with_name(f"{name}.png")
    tab.picture(picture, {"x": 0, "y": begins - 24, "width": width, "height": ends - begins})
    keep(name, picture.read_bytes())


def keep(name: str, data: bytes) -> None:
    """Write a picture with few colors, which makes it small."""
    image = Image.open(io.BytesIO(data)).convert("RGB")
    few = image.quantize(COLORS, Image.Quantize.MAXCOVERAGE, dither=Image.Dither.NONE)
    target = IMAGES / f"{name}.png"
    few.save(target, optimize=True)
    print(f"{target.relative_to(ROOT)} {target.stat().st_size:,} bytes")


if __name__ == "__main__":
    main()
