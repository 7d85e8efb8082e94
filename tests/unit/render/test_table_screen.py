"""The table at every width, in a pipe, in colour, and with hostile text."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
from drawn_tables import plain, table, whole
from example_gpu import gpu_report

from oomdoctor.records.job.machine import GpuProcess
from oomdoctor.records.job.model import ModelRef
from oomdoctor.records.job.result import Failure
from oomdoctor.records.report.report import Fault, Warn
from oomdoctor.render import render_report
from oomdoctor.render.formats import Style, format_names

ATTACKS = (
    "\x1b]52;c;cm0gLXJmIC8=\x07",
    "\x1b]0;owned\x07",
    "\x1b[2J\x1b[10;10H",
    "\x9b31m",
    "\x1b[31;",
    "\u202e",
    "[red]bold[/red]",
    ":boom:",
)


@pytest.mark.parametrize("width", range(56, 200, 4))
@pytest.mark.parametrize("verbose", [False, True])
def test_every_width_shows_every_number(width: int, verbose: bool) -> None:
    report = gpu_report()
    text = table(report, width=width, verbose=verbose)
    for line in text.splitlines():
        # What is to be copied (a command, a path, a line of a log) is never broken.
        copied = ("oomdoctor probe", "oomdoctor show", "Run ", "RuntimeError", "File")
        if not line.lstrip().startswith(copied):
            assert len(line) <= width, line
    shown = ["5,310 ±0.6%", "22.9 GiB", "fits, 97%", "4 x 8", "3,100 ±1.2%", "14.2 GiB"]
    shown += ["fits, 60%", "1,200", "45.0 GiB", "21.5 GiB", "96.1 GiB", "23.5 GiB"]
    shown += ["out of host memory", "crashed", "timed out"]
    shown += (
        ["largest micro-batch 8", "out of memory", "not supported", "140 GiB"] if verbose else []
    )
    for number in shown:
        assert number in text, number
    # What follows from the speed is left out with its whole column, and the page says so.
    told = re.search(r"not shown at this width: ([^;]*);", " ".join(text.split()))
    left_out = told[1] if told is not None else ""
    columns = {"vs fastest": ("1.00x", "0.58x"), "1M tokens": ("3 min 08 s",)} if verbose else {}
    for column, numbers in columns.items():
        assert all((number in text) != (column in left_out) for number in numbers), column


def test_a_pipe_gets_one_full_line_a_row_in_ascii() -> None:
    text = whole(gpu_report())
    assert text.isascii()
    row = next(line for line in text.splitlines() if line.lstrip().startswith("2  qlora"))
    assert "qlora-nf4-r16+ckpt+paged8bit" in row
    for cell in ("8 x 4", "14.2 GiB", "fits, 60%", "optimizer", "3,100 +-1.2%", "0.58x"):
        assert cell in row
    assert "paged states 1.20 GiB; kbit_prepare upcasts the rest to fp32" in row
    missed = next(line for line in text.splitlines() if line.lstrip().startswith("full-bf16"))
    assert re.search(r"out of memory\s+1 x 32\s+~45.0 GiB\s+~21.5 GiB\s+backward$", missed)


def test_a_pipe_never_depends_on_the_width() -> None:
    assert table(gpu_report(), terminal=False, width=20) == plain(gpu_report())


def test_colour_only_where_it_is_wanted() -> None:
    assert "\x1b[" not in table(gpu_report()) + plain(gpu_report())
    colored = table(gpu_report(), color=True)
    assert "\x1b[32mfits, 97%\x1b[0m" in colored
    assert "\x1b[31mout of memory\x1b[0m" in table(gpu_report(), color=True, verbose=True)
    assert re.sub(r"\x1b\[[0-9;]*m", "", colored) == table(gpu_report())


def test_colour_does_not_depend_on_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    colored, bare = table(gpu_report(), color=True), table(gpu_report())
    for name in ("NO_COLOR", "FORCE_COLOR", "TTY_COMPATIBLE"):
        monkeypatch.setenv(name, "1")
        assert table(gpu_report(), color=True) == colored
        assert table(gpu_report()) == bare
        monkeypatch.delenv(name)


@pytest.mark.parametrize("attack", ATTACKS)
def test_hostile_text_does_not_reach_the_terminal(attack: str) -> None:
    report = gpu_report()
    assert report.model is not None and report.machine is not None and report.request is not None
    text = f"a{attack}b"
    failure = Failure(text, text, 1, text, text, f"line\n{text}\n")
    results = tuple(
        replace(
            r,
            label=text,
            reason=text,
            failure=failure,
            notes=(text,),
            attention_kernel=text,
            peak_phase=text,
            oom=replace(r.oom, message=text, phase=text) if r.oom else None,
        )
        for r in report.results
    )
    hostile = replace(
        report,
        run_dir=text,
        model=replace(report.model, id=text, architecture=text, revision=text),
        machine=replace(
            report.machine, gpu_name=text, other_processes=(GpuProcess(1, text, None),)
        ),
        request=replace(report.request, model=ModelRef(text)),
        results=results,
        ranking_reasons={results[2].key: text},
        next_commands=(f"oomdoctor probe {text}",),
        warnings=(Warn("x", text),),
        errors=(Fault("x", text, text),),
    )
    for format in format_names():
        for terminal in (True, False):
            for verbose in (True, False):
                shown = render_report(
                    hostile, format, Style(terminal=terminal, width=90, verbose=verbose)
                )
                assert not re.search("[\x00-\x09\x0b-\x1f\x7f-\x9f\u202e]", shown)
    colored = table(hostile, color=True, verbose=True)
    assert not re.search("[\x00-\x09\x0b-\x1a\x1c-\x1f\x7f-\x9f\u202e]", colored)
    assert set(re.findall(r"\x1b[^m]*m", colored)) <= {
        f"\x1b[{code}m" for code in ("0", "1", "2", "31", "32", "33")
    }
    if attack in ("[red]bold[/red]", ":boom:"):
        assert f"a{attack}b" in table(hostile, verbose=True)


def test_a_screen_without_signs_gets_ascii_for_a_spread() -> None:
    assert "±" not in table(gpu_report(), signs=False)
    assert " +-" in table(gpu_report(), signs=False)
    assert "±" in table(gpu_report())
