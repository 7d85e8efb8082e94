"""What the table of a report says; tests/data/golden has each whole."""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from drawn_tables import plain, table, whole
from example_gpu import gpu_report
from example_many_gpus import MANY_GPUS
from example_plans import PLANS
from example_reports import REPORTS, cpu_report, interrupted_report
from example_runs import RUNS

from oomdoctor.records.job.costs import CalibratedBy, LearnedFactors
from oomdoctor.records.job.dataset import LengthsRequest, TrainingTime
from oomdoctor.records.job.result import Failure
from oomdoctor.records.report.report import Picks, Warn
from oomdoctor.render import render_report
from oomdoctor.render.formats import Style, format_names
from oomdoctor.render.text import tone

ROOT = Path(__file__).parents[3]
GOLDEN = ROOT / "tests" / "data" / "golden"
NO_PICKS = Picks(None, None, None)


def _goldens() -> dict[str, str]:
    path = ROOT / "scripts" / "update_goldens.py"
    spec = importlib.util.spec_from_file_location("update_goldens", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return dict(module.goldens())


def test_goldens() -> None:
    made = _goldens()
    kept = {path.name: path.read_text(encoding="utf-8") for path in GOLDEN.iterdir()}
    assert made.keys() == kept.keys(), "run scripts/update_goldens.py and read the diff"
    for name, text in made.items():
        assert text == kept[name], f"{name}: run scripts/update_goldens.py and read the diff"


@pytest.mark.slow
def test_any_changed_value_of_a_report_changes_its_golden() -> None:
    """What a short golden leaves out is what its base, or the schema's defaults, say."""
    _goldens()  # finds the scripts
    from golden_reports import short, whole

    reports = {name: make() for name, make in {**REPORTS, **RUNS}.items()}
    for name, base in (("cpu", None), ("interrupted", "cpu"), ("run-real", "run-killed")):
        told = whole(reports[name]) if base is None else short(reports, name, base)
        for changed in _changed(reports[name]):
            made = {**reports, name: changed}
            assert told != (whole(changed) if base is None else short(made, name, base))


def _changed(record: Any) -> Iterator[Any]:
    """The record with one value changed, for each value anywhere in it."""
    if isinstance(record, tuple):
        for index, item in enumerate(record[:1]):
            yield from ((*record[:index], new, *record[index + 1 :]) for new in _changed(item))
        yield record[:-1] if record else ("one",)
    elif is_dataclass(record) and not isinstance(record, type):
        for field in fields(record):
            for new in _changed(getattr(record, field.name)):
                yield replace(record, **{field.name: new})
    elif isinstance(record, Mapping):
        yield {**record, "more": 1}
        for key, value in record.items():
            yield from ({**record, key: new} for new in _changed(value))
    else:
        yield "something else" if record is None else None


def test_borderline_rungs_are_a_group_of_their_own() -> None:
    """They stood among those that fit, the first of them at rank 1, in green."""
    report = PLANS["plan"]()
    text = plain(report)
    assert "2 of 5 configs fit, 1 borderline, 1 not simulated" in text
    fits, near, misses = (text.index(f"\n{word}") for word in ("Fits in", "Borderline", "Does not"))
    assert fits < near < misses
    assert "borderline, " in text[near:misses] and "fits, " not in text[near:misses]
    assert "May or may not fit: predictions like this are off by up to 2.0%." in text[near:misses]
    assert tone("borderline, 99%") == tone("short by 1 GiB") != tone("fits, 98%")


def test_a_method_with_borderline_rungs_alone_says_so() -> None:
    report = PLANS["plan"]()
    near = next(row for row in report.results if row.borderline)
    method = near.config.method
    rows = tuple(r for r in report.results if r.config.method != method or r.borderline)
    text = plain(replace(report, results=rows, picks=replace(report.picks, **{method: None})))
    assert f"none fits for certain; borderline: {near.label}" in " ".join(text.split())


def test_borderline_rungs_with_other_errors_say_which() -> None:
    report = PLANS["plan"]()
    full, close, near, liger, far = report.results
    other = replace(
        far, borderline=True, notes=("borderline: predictions like this are off by up to 9.0%",)
    )
    text = plain(replace(report, results=(full, close, near, liger, other)))
    assert f"  {far.label} may or may not fit: predictions like this are off by up to 9.0%." in text
    assert (
        f"  {near.label} may or may not fit: predictions like this are off by up to 2.0%." in text
    )


def test_ranks_that_differ_by_less_than_the_error_are_told_once() -> None:
    report = PLANS["plan"]()
    rows = {row.key: replace(row, speed_state="estimated") for row in report.results}
    first, second = report.ranking
    assert "too close to call" not in plain(report)
    rows[second] = replace(rows[second], tokens_per_s=(rows[first].tokens_per_s or 0.0) * 0.9)
    text = plain(replace(report, results=tuple(rows.values())))
    assert (
        "+- is the error of the estimate; ranks 1 and 2 are too close to call, so more free memory "
        "goes first."
    ) in text


def test_the_cpu_page_says_how_memory_is_counted() -> None:
    text = whole(cpu_report())
    assert "memory is tensor bytes, counted by a trace" in text
    assert "RSS 2.40 GiB" in text
    assert "limits memory, not speed" not in text
    assert "driver" not in text


def test_a_cap_does_not_limit_the_speed() -> None:
    assert "the cap limits memory, not speed" in whole(gpu_report())
    report = gpu_report()
    assert report.budget is not None
    free = whole(replace(report, budget=replace(report.budget, cap_bytes=None)))
    assert "not speed" not in free
    assert "usable = 138 GiB free - 492 MiB headroom" in free
    above = whole(replace(report, budget=replace(report.budget, free_bytes=2**34)))
    assert "usable = 16.0 GiB free" in above and "(--vram)" not in above


def test_relative_speed_is_of_the_fastest_in_any_order() -> None:
    report = gpu_report()
    turned = whole(replace(report, ranking=report.ranking[::-1]))
    first = next(line for line in turned.splitlines() if line.lstrip().startswith("1  "))
    assert "qlora-nf4" in first
    assert "0.58x" in first


def test_a_speed_that_did_not_settle_stands_apart_without_a_place() -> None:
    report = gpu_report()
    before, _, apart = plain(report).partition("Fits, speed not settled\n")
    assert "qlora-int8" not in before
    row = next(line for line in apart.splitlines() if "qlora-int8" in line)
    assert row.split()[:1] == ["qlora-int8-r16+ckpt"]
    assert "1,200" in row
    assert "speed not settled: only 1 timed step" in row
    assert "13 min" not in row  # no time is derived from it
    by_memory = replace(report, ranking=tuple(r.key for r in report.results[2:5]))
    assert "Fits, speed not settled" not in plain(by_memory)


def test_a_speed_that_is_not_believable_is_not_shown() -> None:
    report = gpu_report()
    broken = replace(
        report.results[2], mfu=4.73, tokens_per_s=None, speed_state="not_believable", notes=()
    )
    alone = replace(report, results=(broken, report.results[3]), ranking=(), picks=NO_PICKS)
    text = whole(alone)
    assert "Fits, speed not believable" in text
    assert "473" not in text
    assert "MFU" not in text.partition("Fits, speed not believable")[2].partition("\n\n")[0]
    assert f"LoRA   not ranked by speed; {broken.label} fits" in text


def test_an_old_report_shows_no_utilization_above_one() -> None:
    report = gpu_report()
    old = tuple(replace(result, mfu=4.73) for result in report.results)
    assert "473" not in plain(replace(report, results=old))
    assert "473" not in table(replace(report, results=old), width=120, verbose=True)


def test_a_fitting_rung_that_the_ranking_leaves_out_has_no_place() -> None:
    report = gpu_report()
    text = plain(replace(report, ranking=report.ranking[:1]))
    assert re.search(r"^  -  qlora-nf4", text, re.MULTILINE)


def test_speeds_that_do_not_compare_are_not_ranked_by() -> None:
    report = PLANS["plan"]()
    fast, other = [row for row in report.results if row.surely_fits][:2]
    known = whole(replace(report, results=(fast, other)))
    assert "ranked by throughput" in known and "vs fastest" in known
    unknown = whole(replace(report, results=(fast, replace(other, tokens_per_s=None))))
    assert "ranked by memory" in unknown
    assert "tokens/s" in unknown and "vs fastest" not in unknown


def test_a_simulation_without_host_memory_is_not_a_rung_that_does_not_fit() -> None:
    report = PLANS["plan"]()
    fast = next(row for row in report.results if row.outcome == "fits")
    ended = replace(fast, outcome="host_oom", reason="host memory ran out in load")
    text = plain(replace(report, results=(ended,), ranking=()))
    assert "0 of 1 config fits, 1 not simulated" in text
    assert "Not simulated\n" in text and "Does not fit" not in text


def test_a_method_of_a_run_that_goes_on_is_not_tried_yet() -> None:
    report = PLANS["plan"]()
    waiting = tuple(
        replace(
            row,
            outcome="skipped",
            failure=Failure("not_reached", "not tried yet"),
            reason="not tried yet",
            config=replace(row.config, method="qlora"),
        )
        for row in report.results[1:]
        if not row.borderline
    )
    some = replace(report, results=(report.results[0], *waiting), picks=NO_PICKS)
    assert "QLoRA             not reached" in whole(some)
    assert "QLoRA             not tried yet" in whole(replace(some, status="running"))


def test_an_unknown_number_of_parameters_is_left_out() -> None:
    report = gpu_report()
    assert report.model is not None
    text = whole(replace(report, model=replace(report.model, parameters=None)))
    assert (
        f"{report.model.architecture}, " in text
        and "parameters" not in text.partition("Model")[2].splitlines()[0]
    )


def test_unknown_is_a_dash() -> None:
    report = gpu_report()
    bare = replace(report.results[2], tokens_per_s=None, tokens_time_s=None, peak_phase=None)
    text = whole(replace(report, results=(bare,), ranking=(bare.key,), budget=None))
    row = next(line for line in text.splitlines() if line.lstrip().startswith("1  lora"))
    assert re.search(r"22.9 GiB\s+fits\s+-\s+-\s+-\s+-\s+largest micro-batch 8", row)


def test_warnings_are_those_of_the_report() -> None:
    report = replace(gpu_report(), warnings=(Warn("a", "python3 holds memory"), Warn("b", "2nd")))
    assert "\nWarnings\n  python3 holds memory\n  2nd\n" in plain(report)
    assert "Warnings" not in plain(replace(report, warnings=()))


def test_what_was_not_reached_is_named() -> None:
    text = plain(interrupted_report())
    assert "interrupted after 61.0 s; so far 0 of 1 config fits, 1 not measured" in text
    assert "Not reached: full-bf16, lora-r16+ckpt," in text
    assert "oomdoctor probe --resume latest" in text


def test_the_best_of_each_method() -> None:
    text = whole(gpu_report())
    assert re.search(r"Full fine-tuning\s+none fits", text)
    assert re.search(r"LoRA\s+lora-r16\+ckpt, 5,310 tokens/s \(\+-0.6%\)", text)


def test_a_ladder_of_one_method_has_no_best_of_each() -> None:
    assert "Best of each method" not in whole(cpu_report())


def test_the_tokens_of_the_request_name_the_column() -> None:
    report = gpu_report()
    assert report.request is not None
    for tokens, name in ((2_500_000_000, "2.5B tokens"), (100_000_000, "100M tokens")):
        asked = replace(report, request=replace(report.request, tokens=tokens))
        assert name in whole(asked)


def test_verbose_shows_everything_about_a_rung() -> None:
    text = plain(gpu_report(), verbose=True)
    for text_part in (
        "method=lora, weights_dtype=bfloat16, autocast_dtype=bfloat16",
        "the most tokens/s",
        "3 allocation retries",
        "600 MiB of it for the CUDA context and libraries",
        "first untraced step 3.10 s; 2 warm-up and 10 timed steps",
        "stopped at the time limit",
        "num_alloc_retries=0",
        "attn_output = self.o_proj(attn_output)",
        "Loading 100%|##########|",
        "bitsandbytes 0.47.0, flash-attn -",
        "signal      SIGSEGV",
        "micro-step 421 ms +-0.4%",
    ):
        assert text_part in text, text_part
    assert "Loading  10%" not in text
    assert "attn_output" not in plain(gpu_report())


def test_a_reason_that_holds_for_some_cards_names_them() -> None:
    report = PLANS["plan-sweep"]()
    assert report.sweep is not None
    assert "full-bf16 was not simulated: aten::nonzero" in plain(report)
    first, *others = report.sweep.lines[1::2]
    lines = (*report.sweep.lines[::2], first, *(replace(line, reason="b") for line in others))
    text = plain(replace(report, sweep=replace(report.sweep, lines=lines)))
    assert "full-bf16 was not simulated for L4: aten::nonzero" in text
    assert "full-bf16 was not simulated for RTX 4090: b" in text


def test_why_leaves_out_what_is_negligible() -> None:
    text = plain(PLANS["plan-why"]())
    head = next(line for line in text.splitlines() if line.lstrip().startswith("phase  "))
    assert head.split()[-2:] == ["activations", "logits"]  # not the 96 KiB of inputs


def test_all_examples_end_with_one_newline() -> None:
    for make in (*REPORTS.values(), *PLANS.values(), *MANY_GPUS.values()):
        for format in format_names():
            text = render_report(make(), format, Style(width=80, verbose=True))
            assert text.endswith("\n") and not text.endswith("\n\n")


@pytest.mark.parametrize(
    ("failure", "why"),
    [
        (Failure("error", "X", exit_code=0, last_phase="load"), "ValueError: X; phase load"),
        (Failure("error", "Y", exit_code=7), "ValueError: X; Y; exit code 7"),
    ],
)
def test_why_says_nothing_twice(failure: Failure, why: str) -> None:
    report = cpu_report()
    failed = replace(report.results[0], outcome="failed", reason="ValueError: X", failure=failure)
    text = plain(replace(report, results=(failed,), ranking=()))
    assert text.count("X") == 1
    assert any(line.endswith(f"  failed: {why}") for line in text.splitlines())


def test_the_head_says_which_run_calibrated_the_speeds() -> None:
    report = PLANS["plan"]()
    by = CalibratedBy("run-7", "2026-01-02T03:04:05+00:00", "NVIDIA L4", None, LearnedFactors())
    cards = tuple(replace(card, calibrated_by=by) for card in report.cards)
    assert "calibrated" not in whole(report)
    text = whole(replace(report, cards=cards))
    assert "and calibrated by run run-7 of 2026-01-02 on this card" in text
    old = replace(by, run=None, date=None, cap_bytes=24 << 30)
    cards = tuple(replace(card, calibrated_by=old) for card in report.cards)
    text = whole(replace(report, cards=cards))
    assert "and calibrated by an earlier probe on this card, capped to 24.0 GiB" in text
    several = PLANS["plan-cards"]()
    first, *others = several.cards
    text = whole(replace(several, cards=(replace(first, calibrated_by=by), *others)))
    assert f"and calibrated by run run-7 of 2026-01-02 on {first.name}" in text


def test_the_head_says_when_single_operators_were_measured() -> None:
    report = PLANS["plan"]()
    at = "2026-02-03T04:05:06+00:00"

    def head(by: CalibratedBy) -> str:
        cards = tuple(replace(card, calibrated_by=by) for card in report.cards)
        return whole(replace(report, cards=cards))

    by = CalibratedBy(None, None, "NVIDIA L4", None, LearnedFactors(), at)
    assert "and calibrated by probe --calibrate of 2026-02-03 on this card" in head(by)
    relative = replace(by, relative=True)
    assert "of 2026-02-03 on NVIDIA L4, of the same architecture" in head(relative)
    both = replace(by, run="run-7", factors=LearnedFactors(compute=1.2))
    assert "of 2026-02-03 on this card; run run-7 on this card" in head(both)


@pytest.mark.parametrize(
    ("lengths", "said"),
    [
        (None, "4,875 optimizer steps. Each row counts as 4,096 tokens."),
        (LengthsRequest("f"), "padded to its longest row; rows are drawn at random."),
        (LengthsRequest("f", packed_tokens=2048), "Rows are packed to 2,048 tokens."),
    ],
)
def test_what_is_assumed_about_the_own_data_is_said_below_the_table(
    lengths: LengthsRequest | None, said: str
) -> None:
    report = gpu_report()
    assert report.request is not None
    own = TrainingTime(52_000, 3.0, 4875, 10**9, 26_280.0, 0.01)
    results = tuple(replace(result, training_time=own) for result in report.results)
    request = replace(report.request, lengths=lengths)
    text = plain(replace(report, results=results, request=request))
    assert "Your data: 52,000 rows x 3 epochs" in text
    assert said in text
    assert "7 h 18 min" in text
    assert "1M tokens" not in text
