"""The pictures of the explanation are charts of the stored plans beside them."""

from __future__ import annotations

import struct
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "scripts"))

from memory_pictures import PICTURES, chart_of  # noqa: E402

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
