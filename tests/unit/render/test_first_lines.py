"""What people ask is answered in the first three lines of a screen of 80 columns."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from example_diagnoses import EXPLAINED
from example_gpu import gpu_report
from example_many_gpus import fewest_report
from example_plans import cards_report, plan_report, solve_report
from example_runs import RUNS, fits
from example_slurm import triage_report
from example_snapshots import grows, ran_out

from oomdoctor.records.report.plan import PlanRemedy
from oomdoctor.records.report.report import Report
from oomdoctor.records.report.run import SmallestGpu
from oomdoctor.records.report.user_training import YourChange, YourRung
from oomdoctor.render import render_report
from oomdoctor.render.formats import Style
from oomdoctor.units import GIB


def own_report(*, fits: bool) -> Report:
    """A plan with the user's own rung: it fits, or does with a change."""
    report = plan_report()
    own = next(row for row in report.results if row.surely_fits is fits and not row.borderline)
    change = YourChange("micro-batch size 1", "method=lora", (), 1, 16, 8 << 30, None, None)
    aim = "faster" if fits else "fits"
    return replace(report, yours=YourRung(own.key, "yours", aim, (change,), (), None))


@pytest.mark.parametrize(
    ("asked", "report", "answers"),
    [
        ("which one, and how fast?", gpu_report, ("Best: lora-r16+ckpt, 4 x 8", "5,310 tokens/s")),
        ("does it fit?", lambda: own_report(fits=True), ("Yours fits: 22.8 of 23.0 GiB",)),
        ("by how much not?", lambda: own_report(fits=False), ("does not fit: short by 52.4 GiB",)),
        ("what to change?", lambda: own_report(fits=False), ("fits with micro-batch size 1",)),
        ("which card?", cards_report, ("Smallest card: RTX 4090 (24 GiB)",)),
        ("how long?", solve_report, ("Largest sequence length: 131,072",)),
        ("how many?", fewest_report, ("Fewest GPUs: 9 x H100",)),
        ("what ran out?", RUNS["run-oom"], ("Out of GPU memory",)),
        ("does my script fit?", fits, ("Fits on ",)),
        ("what ran out?", EXPLAINED["explain-gpu"], ("Out of GPU memory", "4.00 GiB more than")),
        ("what to change first?", EXPLAINED["explain-gpu"], ("Do this first: ",)),
        ("why did my jobs die?", triage_report, ("2 of 4 jobs", "ran out of memory")),
        ("why does it grow?", grows, ("3.00 MiB",)),
        ("what ran out, by a snapshot?", ran_out, ("tried to allocate 64.0 MiB",)),
    ],
)
def test_the_answer_stands_first(
    asked: str, report: Callable[[], Report], answers: tuple[str, ...]
) -> None:
    text = render_report(report(), "table", Style(terminal=True, width=80))
    first = " ".join(line.strip() for line in text.splitlines()[:3])
    assert [answer for answer in answers if answer not in first] == [], (asked, first)


def test_a_long_ladder_is_short() -> None:
    """14 rungs in at most 24 lines, if there is nothing to say but their memory and speed."""
    report = plan_report()
    one = next(row for row in report.results if row.surely_fits)
    rows = [replace(one, key=f"{number}", label=f"rung-{number}", notes=()) for number in range(8)]
    missed = [
        replace(row, key=f"m{row.key}", outcome="oom", missed_by_bytes=1 << 30) for row in rows[:6]
    ]
    assert report.request is not None
    request = replace(report.request, recipe=replace(report.request.recipe, rungs=()))
    ranked = tuple(row.key for row in rows)
    picks = replace(report.picks, lora=ranked[0])
    long = replace(
        report, results=(*rows, *missed), ranking=ranked, picks=picks, request=request,
        warnings=(), cards=(),
    )  # fmt: skip
    text = render_report(long, "table", Style(terminal=True, width=80))
    assert len(text.splitlines()) <= 24, text


def test_the_smallest_card_is_that_in_any_order() -> None:
    report = cards_report()
    turned = replace(report, cards=report.cards[::-1])
    assert _first_line(turned) == _first_line(report)


def test_engines_that_take_a_share_of_the_card_are_named_with_the_smallest() -> None:
    report = fits()
    for size, said in ((24, "there, less"), (141, "there, more")):
        card = SmallestGpu("X", size * GIB, ("vLLM",))
        text = render_report(replace(report, smallest_gpu=card), "table", Style())
        assert f"vLLM takes a share of the card: {said} than was counted here" in text


def test_a_smallest_card_below_what_was_needed_says_why() -> None:
    """It needs 8 GiB on this device, and a card with less would do: CUDA takes less there.

    If torch alone reserved more than the card has, that is not why: the replay released cache.
    """
    need, reserved = 8 * GIB, 7 * GIB
    rank = replace(fits().ranks[0], peak_reserved_bytes=reserved, peak_device_bytes=need)
    report = replace(fits(), ranks=(rank,))
    context, cache = ": CUDA itself takes less there", ": PyTorch would release cached memory there"
    for size, why in ((need, ""), (need - 1, context), (reserved, context), (reserved - 1, cache)):
        text = render_report(replace(report, smallest_gpu=SmallestGpu("X", size)), "table", Style())
        told = " ".join(text.split())
        assert f"would do{why}" in told
        assert [reason for reason in (context, cache) if reason in told] == [why] * bool(why)


def test_that_none_fits_is_said_only_where_all_were_tried() -> None:
    report = plan_report()
    far = next(row for row in report.results if row.missed_by_bytes is not None)
    open_ = replace(far, key="o", outcome="unsupported", missed_by_bytes=None, reason="needs X")
    other = replace(far, key="f", label="other", missed_by_bytes=far.missed_by_bytes * 2)
    nothing = replace(report, results=(far, other), ranking=(), cards=())
    assert _first_line(nothing).startswith(f"Nothing fits; {far.label} comes nearest: ")
    helps = PlanRemedy(
        "lora", "k", "lora-r16", "4-bit experts (axolotl)", GIB, GIB, "simulated", "", None
    )
    (card,) = report.cards
    for remedy, first in (
        (helps, "Nothing fits unchanged; lora-r16 fits with 4-bit experts (axolotl)"),
        (replace(helps, reason="borderline"), "Nothing fits; "),
        (replace(helps, basis="arithmetic"), "Nothing fits; "),
        (replace(helps, basis="bound", reason="needs at least 15.5 GiB"), "Nothing fits; "),
    ):
        helped = replace(nothing, cards=(replace(card, remedies=(remedy,)),))
        assert _first_line(helped).startswith(first)
    some = replace(nothing, results=(far, other, open_))
    assert _first_line(some).startswith("Nothing that could be tried fits; ")
    alone = replace(nothing, results=(far,))
    assert _first_line(alone).startswith(f"{far.label} does not fit: short by ")
    unknown = replace(nothing, results=(open_,))
    assert "fits" not in _first_line(unknown).partition(":")[0]


def _first_line(report: Report) -> str:
    return render_report(report, "table", Style(width=200)).splitlines()[0]
