"""The page of `explain`: what stands in it, at every width, and nothing of a log gets through."""

from __future__ import annotations

import csv
import io
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from example_diagnoses import GPU, explained

from oomdoctor.records.report.diagnosis import Cause, Diagnosis, Frame, Numbers, Remedy, Tensor
from oomdoctor.records.report.report import Fault, Report, Warn
from oomdoctor.render import render_report
from oomdoctor.render.formats import Style, format_names
from oomdoctor.units import GIB

FOUND = replace(
    GPU,
    source="train.log",
    line_number=None,
    step=None,
    rank=0,
    where=Frame("train.py", 12, "main", "loss = model(x).loss"),
    tensor=None,
    causes=(
        Cause("logits", "high", ("the message", "a frame"), "the logits did not fit"),
        Cause("other_process", "medium", ("the message",), "others hold 16 GiB"),
    ),
    remedies=tuple(
        Remedy(
            f"change {number}",
            GIB * number if number else None,
            "arithmetic" if number else "rule",
            {"transformers": f"A({number})", "trl": f"B({number})", "pytorch": f"C({number})"},
            "8 -> 0",
        )
        for number in range(7)
    ),
    message="CUDA out of memory.",
    verdict="out of GPU memory while computing the loss: tried to allocate 8.00 GiB",
    tensors=(Tensor(8 * GIB, (4, 2, 1), "fp32 logits", "fp32", "high", "8.00 GiB = 4 x 2 x 1"),),
    evidence=("the message", "a frame"),
    oddities=("something is odd",),
    assumed=("weights in bfloat16",),
    needs=("weights 1 x 2 bytes = 2 B", "logits 1 x 2 bytes = 2 B"),
    framework="transformers",
)
NOT_MEMORY = replace(
    FOUND, source="other.log", is_oom=False, resource="none", dialect="not_oom", causes=(),
    remedies=(), tensors=(), look_alike="shape", verdict="not a memory failure: shapes",
    short_answer="compare the shapes", numbers=Numbers(), oddities=(), assumed=(), needs=(),
)  # fmt: skip
# Everything that a log can bring: clipboard (OSC 52), title, cursor moves, colours, markup, C1.
EVIL = "\x1b]52;c;aGk=\x07\x1b]0;title\x07\x1b[2J\x1b[31m[red]x[/red]\x9b1A\u202e\x07`<b>|"


def _report(*found: Diagnosis, **changes: Any) -> Report:
    report = explained(*found, next_commands=("oomdoctor explain train.log --verbose",))
    return replace(report, **changes)


def _page(
    *found: Diagnosis,
    format: str = "table",
    terminal: bool = False,
    width: int = 100,
    color: bool = False,
    verbose: bool = False,
    **changes: Any,
) -> str:
    return render_report(_report(*found, **changes), format, Style(terminal, width, color, verbose))


@pytest.mark.parametrize("terminal", [True, False])
def test_what_ran_out_and_what_to_do_first_come_first(terminal: bool) -> None:
    lines = _page(FOUND, terminal=terminal).splitlines()
    assert lines[:4] == [
        "Out of GPU memory while computing the loss: tried to allocate 8.00 GiB.",
        "Do this first: change 0",
        "    A(0)",
        "8 -> 0.",
    ]
    cause = "Cause        logits (high confidence): the logits did not fit"
    bar = next(line for line in lines if line.startswith("["))
    assert lines.index(bar) < lines.index(cause) < lines.index("Other remedies")


def test_without_a_program_in_the_log_the_lines_to_type_are_named() -> None:
    page = _page(replace(FOUND, framework=None))
    assert "    transformers  A(0)\n    pytorch       C(0)\n" in page


def test_code_breaks_between_words_and_not_in_a_string() -> None:
    long = 'export WORDS="one two three four five six seven" MORE=1 AND_STILL_MORE=2 LAST=3'
    remedy = Remedy("set it", None, "rule", {"shell": long})
    page = _page(replace(FOUND, remedies=(remedy,)), terminal=True, width=60)
    assert (
        'Do this first: set it\n    export WORDS="one two three four five six seven" \\\n'
        "        MORE=1 AND_STILL_MORE=2 LAST=3\n"
    ) in page
    assert f"\n    {long}\n" in _page(replace(FOUND, remedies=(remedy,)))


def test_a_comment_that_does_not_fit_goes_below_its_line() -> None:
    code = f"call({'argument, ' * 3}last=1)  # " + "and why this is so " * 2
    remedy = Remedy("call it", None, "rule", {"transformers": code})
    page = _page(replace(FOUND, remedies=(remedy,)), terminal=True, width=60)
    assert "\n    call(argument, argument, argument, last=1)\n    # and why" in page


def test_a_replay_is_an_upper_bound() -> None:
    """What shrinks with the batch is not known of every block; a plan for the half says less."""
    remedy = Remedy("halve it", GIB, "predicted", {}, None, None, 70 * GIB, True)
    page = _page(replace(FOUND, remedies=(replace(remedy, confirmed="replay"),)))
    assert "Then it needs at most 70.0 GiB of 80.0 GiB; it fits, confirmed by a replay" in page
    assert "at most" not in _page(replace(FOUND, remedies=(replace(remedy, confirmed="run"),)))


def test_sizes_that_leave_out_the_batch_say_so_once() -> None:
    remedies = tuple(
        Remedy(f"r{n}", GIB, "arithmetic", {}, "a + b", None, 70 * GIB, None) for n in range(3)
    )
    page = _page(replace(FOUND, remedies=remedies))
    assert "Then it needs 70.0 GiB of 80.0 GiB.\n" in page and "a + b" not in page
    assert page.count("leave out what grows with the batch") == 1
    assert "computed: a + b" in _page(replace(FOUND, remedies=remedies), verbose=True)


def test_the_card_is_drawn_to_scale() -> None:
    lines = _page(FOUND).splitlines()
    bar = next(line for line in lines if line.startswith("["))
    body = bar[1 : bar.index("]")]
    assert (len(body), body.count("="), body.count("."), body.count("#")) == (32, 6, 2, 24)
    assert bar[bar.index("]") + 1 :] == "!! of 80.0 GiB"
    assert lines[lines.index(bar) + 1 :][:4] == [
        "# this process     60.0 GiB: 55.0 GiB allocated, 1.00 GiB reserved but unallocated",
        "= other processes  16.0 GiB",
        ". free             4.00 GiB",
        "! requested        8.00 GiB",
    ]


def test_a_page_with_a_chart_has_the_figures_of_the_terminal() -> None:
    """It said that the process held its tensors alone, because the bar is not drawn there."""
    found = replace(FOUND, numbers=replace(FOUND.numbers, process_bytes=None))
    held = "60.0 GiB: 55.0 GiB allocated, 1.00 GiB reserved but unallocated"
    assert held in _page(found)
    assert held in render_report(explained(found), "html", Style())


@pytest.mark.parametrize(
    "numbers",
    [
        Numbers(),
        Numbers(capacity_bytes=8),
        Numbers(capacity_bytes=8, free_bytes=9),
        Numbers(capacity_bytes=8, free_bytes=4, other_processes_bytes=5),
    ],
)
def test_no_bar_without_enough_numbers(numbers: Numbers) -> None:
    assert "[#" not in _page(replace(FOUND, numbers=numbers))


def test_numbers_that_make_no_bar_are_listed() -> None:
    numbers = Numbers(requested_bytes=GIB, allocated_bytes=9 * GIB, allowed_bytes=10 * GIB)
    page = _page(replace(FOUND, numbers=numbers))
    assert "this process  9.00 GiB\nlimit         10.0 GiB for this process\nrequested" in page
    assert "requested" not in _page(
        replace(FOUND, numbers=Numbers(requested_bytes=GIB), verdict="")
    )


def test_memory_in_use_belongs_to_this_process_only_if_the_others_are_known() -> None:
    unknown = replace(FOUND.numbers, other_processes_bytes=None, process_bytes=None)
    page = _page(replace(FOUND, numbers=unknown))
    assert "# in use     76.0 GiB by all processes: 55.0 GiB allocated, 1.00 GiB reserved" in page
    assert "this process" not in page


def test_the_bar_fits_into_60_columns() -> None:
    numbers = replace(FOUND.numbers, requested_bytes=900 * GIB)
    bar = next(x for x in _page(replace(FOUND, numbers=numbers)).splitlines() if x[:1] == "[")
    assert len(bar) <= 60


def test_evidence_is_quoted_once_and_the_message_never() -> None:
    long = "CUDA out of memory. " + "figures " * 60 + "the end"
    frame = 'File "/lib/torch/nn/modules/module.py", line 9, in _wrapped_call_impl: return x'
    own = 'File "/home/me/model.py", line 7, in forward: return self.head(x)'
    cause = Cause("logits", "medium", ("8.00 GiB = 4 x 2 x 1", long, frame, own, "third"), "so")
    page = _page(replace(FOUND, causes=(cause, FOUND.causes[1])))
    assert "Evidence     model.py:7 in forward: return self.head(x)\n             third\n" in page
    assert "Less likely  other process (medium)" in page
    assert page.count("8.00 GiB = 4 x 2 x 1") == 1 and "figures" not in page
    assert "figures" in _page(replace(FOUND, causes=(cause,)), verbose=True)
    killed = replace(FOUND, numbers=Numbers(), message="Killed", tensors=())
    page = _page(replace(killed, causes=(Cause("host_memory", "high", ("Killed",)),)))
    assert "Evidence     Killed\n" in page


def test_slurm_has_its_own_section() -> None:
    page = _page(FOUND, warnings=(Warn("slurm", "job 1: FAILED"), Warn("log", "torn")))
    assert "Slurm\n  job 1: FAILED\n\nWarnings\n  torn\n" in page


def test_line_tensor_oddities_needs_and_assumptions() -> None:
    page = _page(FOUND, verbose=True)
    for text in (
        "train.py:12 in main: loss = model(x).loss",
        "8.00 GiB = 4 x 2 x 1 (high likelihood)",
        "something is odd",
        "weights 1 x 2 bytes = 2 B",
        "Assumptions  weights in bfloat16",
    ):
        assert text in page


def test_no_match_is_said() -> None:
    assert "no tensor of this model" in _page(replace(FOUND, tensors=()), verbose=True)
    assert "Add --model MODEL --seq-len N" in _page(replace(FOUND, tensors=(), assumed=()))
    assert "Add --model" not in _page(FOUND)


def test_remedies_have_effect_and_the_line_of_the_library() -> None:
    page = _page(FOUND)
    assert "  2.  change 1: frees 1.00 GiB; not enough alone\n        A(1)\n" in page
    assert "  5.  change 4: frees 4.00 GiB\n        A(4)\n" in page
    assert "B(1)" not in page and "C(1)" not in page
    assert "6.  change" not in page and "2 more" in page


def test_verbose_has_everything() -> None:
    page = _page(FOUND, verbose=True)
    assert "7.  change 6" in page and "trl           B(1)" in page
    assert "  2.  change 1: frees 1.00 GiB; not enough alone\n      computed: 8 -> 0\n" in page
    assert "other process (medium): others hold 16 GiB" in page
    assert page.count("a frame") == 1


def test_more_than_the_card_is_not_freed() -> None:
    huge = replace(FOUND, remedies=(Remedy("less", 200 * GIB, "arithmetic", {}, "a"),))
    assert "Needs 200 GiB less." in _page(huge)


def test_look_alike_and_nothing() -> None:
    page = _page(NOT_MEMORY)
    assert page.startswith("Not a memory failure: shapes.\nDo this first: compare the shapes\n")
    nothing = replace(NOT_MEMORY, look_alike=None, short_answer=None, evidence=(),
                      verdict="no memory failure found")  # fmt: skip
    assert _page(nothing).startswith("No memory failure found.\nIf the run died silently")


def test_several_failures_of_one_log() -> None:
    page = _page(FOUND, replace(FOUND, line_number=7, verdict="another one"))
    assert "Also in this log (1)" in page and "line 7  another one" in page


def test_several_logs_are_one_table() -> None:
    page = _page(FOUND, NOT_MEMORY)
    lines = page.splitlines()
    assert lines[0] == "1 of 2 logs ended with an out-of-memory error"
    rows = [line for line in lines if line.startswith(("train.log", "other.log"))]
    assert len(rows) == 2
    assert "out of GPU memory" in rows[0] and "logits (high)" in rows[0]
    assert "other error" in rows[1] and "compare the shapes" in rows[1]
    assert "Do this first" not in page
    assert "Do this first" in _page(FOUND, NOT_MEMORY, verbose=True)


@pytest.mark.parametrize("width", [40, 60, 80, 100, 140])
def test_a_terminal_of_any_width_gets_every_word(width: int) -> None:
    page = _page(FOUND, NOT_MEMORY, terminal=True, width=width)
    for text in ("train.log", "other.log", "logits (high)", "compare the shapes"):
        assert " ".join(text.split()) in " ".join(page.split())


@pytest.mark.parametrize("format", format_names())
@pytest.mark.parametrize("terminal", [True, False])
@pytest.mark.parametrize("verbose", [True, False])
def test_nothing_of_a_log_reaches_the_terminal(format: str, terminal: bool, verbose: bool) -> None:
    evil = replace(
        FOUND,
        source=EVIL,
        message=EVIL,
        where=Frame(EVIL, 1, EVIL, EVIL),
        causes=(Cause("logits", "high", (EVIL,), EVIL),),
        evidence=(EVIL,),
        verdict=EVIL,
        assumed=(EVIL,),
        oddities=(EVIL,),
        remedies=(Remedy(EVIL, None, "rule", {"shell": EVIL}, EVIL, EVIL),),
    )
    for found in ((evil,), (evil, NOT_MEMORY)):
        page = _page(
            *found, format=format, terminal=terminal, verbose=verbose, width=90,
            warnings=(Warn("x", EVIL),), errors=(Fault("x", EVIL, EVIL),), next_commands=(EVIL,),
        )  # fmt: skip
        for character in ("\x1b", "\x9b", "\x07", "\u202e"):
            assert character not in page
        if format != "json":
            assert "[red]" in page or "\\[red" in page  # shown as it is, never as markup


def test_colours_are_only_ours() -> None:
    page = _page(FOUND, NOT_MEMORY, terminal=True, color=True)
    assert "\x1b[" in page
    assert "\x1b[" not in _page(FOUND, NOT_MEMORY, terminal=True)


def test_json_is_the_contract() -> None:
    document = json.loads(_page(FOUND, format="json"))
    schema_file = Path(__file__).parents[3] / "oomdoctor" / "data" / "report.schema.json"
    jsonschema.validate(document, json.loads(schema_file.read_text()))
    found = document["diagnoses"][0]
    assert {"source", "is_oom", "resource", "dialect", "phase", "rank"} <= set(found)
    assert {"numbers", "where", "tensor", "causes", "remedies"} <= set(found)
    assert set(found["where"]) == {"file", "line", "function", "code"}
    assert {"cause", "confidence", "evidence"} <= set(found["causes"][0])
    assert {"change", "frees_bytes", "basis", "lines"} <= set(found["remedies"][0])
    assert found["numbers"]["requested_bytes"] == 8 * GIB


def test_csv_has_a_row_a_diagnosis() -> None:
    rows = list(csv.DictReader(io.StringIO(_page(FOUND, NOT_MEMORY, format="csv"))))
    assert [row["source"] for row in rows] == ["train.log", "other.log"]
    assert rows[0]["requested_bytes"] == str(8 * GIB)
    assert (rows[0]["is_oom"], rows[1]["is_oom"]) == ("true", "false")
    assert rows[1]["cause"] == ""


def test_csv_is_no_formula() -> None:
    text = _page(replace(FOUND, source="=cmd()"), format="csv")
    assert "\n'=cmd()," in text


def test_stdin_keeps_its_name_in_csv() -> None:
    assert "\n-,true" in _page(replace(FOUND, source="-"), format="csv")


def test_markdown() -> None:
    page = _page(FOUND, format="markdown")
    assert "### Other remedies" in page and "```text" in page
