"""Charts as SVG and PNG: whole, in the colors of their page, with text that stays text."""

from __future__ import annotations

import re
from dataclasses import replace
from xml.etree import ElementTree

import pytest
from example_gpu import gpu_report

from oomdoctor.records.report.report import Report
from oomdoctor.render.charts import CHARTS
from oomdoctor.render.charts.choose import KINDS, charts_of
from oomdoctor.render.charts.drawing import png, svg, svg_part

EVIL = '<script>alert("1")</script> $x^2$ & ]]> \x1b[31m \ud800 ünï'


def hostile() -> Report:
    """A report whose labels are markup, mathematics and no text."""
    report = gpu_report()
    return replace(report, results=tuple(replace(one, label=EVIL) for one in report.results))


def test_the_names_are_those_of_the_command_line() -> None:
    assert tuple(kind.name for kind in KINDS) == CHARTS


@pytest.mark.parametrize("size", ["wide", "narrow"])
def test_text_stays_text_and_cannot_be_markup(size) -> None:
    for chart in charts_of(hostile()):
        part = svg_part(chart, size, 1, {})
        root = ElementTree.fromstring(part)
        assert "<script" not in part and "style=" not in part and "<style" not in part
        texts = [one.text or "" for one in root.iter("{http://www.w3.org/2000/svg}text")]
        assert any("script" in text for text in texts) and not any("\x1b" in t for t in texts)
        assert root.get("role") == "img"
        assert chart.says in (root.get("aria-label") or "")


def test_colors_are_those_of_the_page() -> None:
    styles: dict[str, str] = {}
    for number, chart in enumerate(charts_of(gpu_report())):
        part = svg_part(chart, "wide", number, styles)
        assert not re.search("#fe[0-9a-f]{2}fe", part + "".join(styles))
    assert any("var(--weights)" in style for style in styles)
    alone = svg(charts_of(gpu_report())[0])
    assert "var(" not in alone and not re.search("#fe[0-9a-f]{2}fe", alone)
    ElementTree.fromstring(alone[alone.index("<svg") :])


def test_ids_of_two_charts_differ() -> None:
    charts = charts_of(gpu_report())
    parts = [
        svg_part(chart, size, number, {})
        for number, chart in enumerate(charts)
        for size in ("wide", "narrow")
    ]
    ids = [name for part in parts for name in re.findall(r'\bid="([^"]+)"', part)]
    assert len(ids) == len(set(ids))


def test_a_picture_is_the_same_each_time() -> None:
    chart = charts_of(gpu_report())[0]
    assert png(chart) == png(chart) and png(chart).startswith(b"\x89PNG")
    assert svg(chart) == svg(chart)
