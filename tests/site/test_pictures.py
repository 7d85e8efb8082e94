"""The pictures of the explanation are charts of the stored plans beside them."""

from __future__ import annotations

import io
import re
import struct
import sys
from pathlib import Path

import pytest
from PIL import Image, ImageChops, ImageStat

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "scripts"))

from memory_pictures import PICTURES, chart_of  # noqa: E402
from picture_files import VARIANTS, small  # noqa: E402

from oomdoctor.render.charts.drawing import png  # noqa: E402

PAGE = (ROOT / "docs" / "where-memory-goes.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("name", PICTURES)
def test_a_picture_is_on_the_page_with_its_plan(name: str) -> None:
    assert f"](images/{name}.png)" in PAGE and f"<!-- stored: {name};" in PAGE
    data = (ROOT / "docs" / "images" / f"{name}.png").read_bytes()
    assert data.startswith(b"\x89PNG")
    width, height = struct.unpack(">II", data[16:24])
    assert width >= 1200 and height >= 600
    assert len(data) < 250_000


@pytest.mark.parametrize("name", PICTURES)
def test_the_stored_plan_still_has_its_chart(name: str) -> None:
    chart = chart_of(name)
    assert len(chart.grid.rows) >= 4


@pytest.mark.parametrize("ending", VARIANTS)
@pytest.mark.parametrize("name", PICTURES)
def test_a_picture_is_what_the_code_draws_today(name: str, ending: str) -> None:
    pytest.importorskip("matplotlib")
    file = ROOT / "docs" / "images" / f"{name}{ending}.png"
    kept, drawn = (
        picture(data) for data in (file.read_bytes(), small(png(chart_of(name), *VARIANTS[ending])))
    )
    assert kept.size == drawn.size
    # Another release of matplotlib may move letters by a pixel; a word or a bar differs more.
    differs = ImageChops.difference(kept, drawn).point(lambda value: 255 * (value > 64))
    assert ImageStat.Stat(differs).mean[0] / 255 < 0.001, "run scripts/memory_pictures.py"


def test_every_picture_of_the_docs_is_there_for_each_screen() -> None:
    shown = set()
    for page in (ROOT / "docs").glob("*.md"):
        shown |= set(re.findall(r"\]\(images/([\w-]+)\.png\)", page.read_text(encoding="utf-8")))
    assert len(shown) >= 7
    for name in shown - {"report-phone-dark"}:  # which shows a phone
        for ending in VARIANTS:
            assert (ROOT / "docs" / "images" / f"{name}{ending}.png").is_file(), (name, ending)


def picture(data: bytes) -> Image.Image:
    return Image.open(io.BytesIO(data)).convert("L")
