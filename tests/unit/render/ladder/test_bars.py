"""Bars of letters: to scale, in ASCII, as wide as the terminal, and absent where they are many."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
from example_gpu import gpu_report
from example_plans import plan_report, why_report
from example_reports import cpu_report

from oomdoctor.render import render_report
from oomdoctor.render.blocks import Look
from oomdoctor.render.charts.parts import SIGNS, bar, bar_sections, peaks_of
from oomdoctor.render.formats import Style
from oomdoctor.units import GIB

BAR = re.compile(r"\[([a-z+.-]+)\]([a-z+>-]*)")


@pytest.mark.parametrize(
    ("parts", "drawn"),
    [
        ([("weights", 5), ("logits", 3)], "[wwwwwlll..]"),
        ([("weights", 10)], "[wwwwwwwwww]"),
        ([("weights", 8), ("logits", 4)], "[wwwwwwwwll]ll"),
        ([("weights", 30), ("context", 1)], "[wwwwwwwwww]wwwwwww>"),
        ([("weights", 0)], "[..........]"),
    ],
)
def test_a_bar_is_to_scale(parts, drawn) -> None:
    assert bar(parts, 10, 10) == drawn


def test_what_is_over_by_a_byte_stands_behind_the_bracket() -> None:
    assert bar([("weights", 10 * GIB), ("context", 1)], 10 * GIB, 20) == f"[{'w' * 20}]c"
    assert bar([("weights", 10 * GIB - 1), ("context", 1)], 10 * GIB, 20) == f"[{'w' * 20}]"


@pytest.mark.parametrize("make", [gpu_report, plan_report])
def test_what_fits_stays_inside_and_what_does_not_goes_beyond(make) -> None:
    report = make()
    assert report.budget is not None
    for peak in peaks_of(report):
        for cells in (24, 72):
            found = BAR.fullmatch(bar(peak.parts, report.budget.usable_bytes, cells))
            assert found is not None and len(found[1]) == cells
            assert bool(found[2]) is (peak.total > report.budget.usable_bytes)
            share = peak.total / report.budget.usable_bytes
            if peak.fits:
                assert abs(len(found[1].rstrip(".")) - share * cells) <= 1


@pytest.mark.parametrize("width", [60, 80, 120, 200])
@pytest.mark.parametrize("make", [gpu_report, cpu_report])
def test_every_line_has_room(make, width: int) -> None:
    text = render_report(
        make(), "table", Style(terminal=True, width=width, signs=False, verbose=True)
    )
    section = text[text.index("Memory at the peak") :].split("\n\n")[0]
    assert all(len(line) <= width for line in section.splitlines())
    bars = [found for line in section.splitlines() if (found := BAR.search(line))]
    assert len(bars) == len(peaks_of(make()))
    assert {letter for found in bars for letter in found[1]} <= {*SIGNS.values(), "."}
    assert section.replace("─", "-").replace("·", "-").isascii()  # the output has words for them


def test_a_pipe_gets_sizes() -> None:
    text = render_report(gpu_report(), "table", Style(width=80, verbose=True))
    section = text[text.index("Memory at the peak") :].split("\n\n")[0]
    assert "optimizer states" in section and "[" not in section


def test_where_nothing_is_known_there_is_no_bar() -> None:
    report = plan_report()
    bare = tuple(replace(one, measurement=None, predicted=None) for one in report.results)
    assert bar_sections(replace(report, results=bare), Look(verbose=True)) == []
    assert bar_sections(why_report(), Look(verbose=True)) == []


def test_bars_say_their_micro_batch_size_and_the_peak_at_size_1() -> None:
    text = render_report(gpu_report(), "table", Style(terminal=True, width=120, verbose=True))
    section = text[text.index("Memory at the peak") :].split("\n\n")[0]
    assert re.search(r"config +mb +peak +at mb 1 ", section)
    assert re.search(r" 4 +22.9 GiB +18.0 GiB +\[", section)
    assert "mb is the micro-batch size" in section
