"""The page of `probe --calibrate`."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime

from calibration_make import times

from oomdoctor.commands.probe.calibrate import answer_of
from oomdoctor.records.job.costs import Calibration
from oomdoctor.records.report.report import Report, bare_report
from oomdoctor.render import render_report
from oomdoctor.render.formats import Style
from oomdoctor.system.catalogue import find_gpu
from oomdoctor.system.store.calibration import Learned

L4 = find_gpu("NVIDIA L4")
assert L4 is not None
LEARNED = Learned("NVIDIA L4", "550.54", None, Calibration(), 0, torch="2.13.0")


def report(*, real: bool = True) -> Report:
    """Products take 1.5 times as long as estimated, and the step 1.1 times as long as its parts."""
    taken = times(L4, {"matmul": 1.5}, off=1.1)
    answer = answer_of(LEARNED, taken, L4 if real else None, None if real else "it runs no kernels")
    bare = bare_report("probe", "ok" if real else "no", 0 if real else 3, datetime.now(UTC), 21.0)
    return replace(bare, calibration=answer)


def page(told: Report) -> str:
    """The page for a wide terminal."""
    return render_report(told, "table", Style(width=120))


def test_the_page_has_terms_and_the_error_of_the_steps() -> None:
    lines = page(report()).splitlines()
    assert lines[0].startswith("Kept: plan and probe now estimate speeds with these times")
    assert "NVIDIA L4, driver 550.54, torch 2.13.0" in page(report())
    (products,) = [line.split() for line in lines if line.strip().startswith("products")]
    assert products[:3] == ["products", "bfloat16", "1"]
    assert products[-2:] == ["2%", "1.50"]
    (step,) = [line for line in lines if line.strip().startswith("llama")]
    assert "-9%" in step


def test_an_emulated_gpu_has_no_rates() -> None:
    text = page(report(real=False))
    assert text.startswith("Not kept: it runs no kernels.")
    assert "FLOP/s" not in text and "llama" not in text


def test_the_rows_are_the_terms() -> None:
    heading, first, *_ = render_report(report(), "csv", Style()).splitlines()
    assert heading.startswith("term,dtype,operators,")
    assert first.startswith("products,bfloat16,1,")


def test_every_format_shows_it() -> None:
    for name in ("markdown", "html", "json"):
        assert "products" in render_report(report(), name, Style())
