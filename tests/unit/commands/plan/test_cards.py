"""Cards by name and size, what a plan has to simulate for them, what it picks, where it crosses."""

from __future__ import annotations

from dataclasses import replace

import pytest
from analysis_make import request as survey_request
from plan_make import measured

from oomdoctor.analysis.search.ladder import Context, SkipRung
from oomdoctor.analysis.verdict import conclude
from oomdoctor.commands.devices.cards import card_named, cards_of
from oomdoctor.commands.ladder.ledger import sweep_within_limits
from oomdoctor.commands.plan.findings import Findings
from oomdoctor.commands.plan.picks import card_plan
from oomdoctor.commands.plan.plan_report import sweep_answer
from oomdoctor.commands.plan.run_plan import _card_warnings
from oomdoctor.commands.plan.tasks import shown, tasks_of
from oomdoctor.records.configuration.config import Recipe, Rung, TrainConfig
from oomdoctor.records.job.costs import Calibration
from oomdoctor.records.job.model import ModelRef, ModelSpec, ParameterCounts
from oomdoctor.records.job.result import Attempt, Inspection
from oomdoctor.records.report.plan import CardPicks, PlanRequest, Sweep
from oomdoctor.records.report.searched import GpuRange
from oomdoctor.system.store.calibration import Learned, remember
from oomdoctor.units import GIB, MIB

COUNTS = ParameterCounts(10**9, 8 * 10**8, 10**8, 10**8, 0)
RUNG = Rung("full", TrainConfig(effective_batch_size=4, sequence_length=512))


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("RTX 4090", "NVIDIA GeForce RTX 4090"),
        ("4090", "NVIDIA GeForce RTX 4090"),
        ("nvidia a10g", "NVIDIA A10G"),
        ("24GiB", "24.0 GiB"),
        ("24", "24.0 GiB"),
        ("16", "16.0 GiB"),  # a size, though a card has 16 in its name
        ("1080", "NVIDIA GeForce GTX 1080"),
        ("94GB", "87.5 GiB"),  # a size, though one card has 94GB in its name
    ],
)
def test_a_name_or_a_size(text, name):
    assert card_named(text, 0.0).name == name


@pytest.mark.parametrize("text", ["", "x9999", "RTX", "24Gi", "0GiB"])
def test_neither(text):
    with pytest.raises(ValueError, match=r"neither a known card nor a size"):
        card_named(text, 0.0)


def test_a_number_that_may_be_mib_is_asked_back():
    with pytest.raises(ValueError, match=r"24576 what\? Write 24576MiB"):
        card_named("24576", 0.0)


def test_the_nearest_names_are_told():
    with pytest.raises(ValueError, match="A100-SXM4-40GB"):
        card_named("A100 SXM6", 0.0)


def test_of_several_variants_the_smallest_is_taken_and_the_others_are_told():
    card = card_named("A100", 0.0)
    assert card.name == "NVIDIA A100-SXM4-40GB"
    assert card.asked_as == "A100"
    assert "NVIDIA A100 80GB PCIe" in card.variants
    assert card_named("NVIDIA A100 80GB PCIe", 0.0).variants == ()


def test_what_probe_learned_of_a_card_takes_the_place_of_what_others_measured(
    tmp_path, monkeypatch
):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    before = card_named("L4", 0.0)
    versions = {"torch": "2.11.0"}
    remember(Learned("NVIDIA L4", "550.54", 300 * MIB, Calibration(compute=1.2), 1), versions)
    remember(Learned("NVIDIA L40", "550.54", 999 * MIB, Calibration(), 1), versions)
    after = card_named("L4", 0.0)
    assert after.context.likely == after.target().overhead_bytes == 300 * MIB
    assert after.target().calibration == Calibration(compute=1.2)
    assert "550.54" in after.context.source
    assert before.target().calibration is None
    assert before.context.likely != 300 * MIB


def test_a_card_says_which_run_corrected_its_speeds(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    learned = Learned(
        "NVIDIA L4", "550.54", 300 * MIB, Calibration(compute=1.2), 1, "run-7", "2026"
    )
    remember(learned, {})
    card = card_named("L4", 0.0)
    assert (card.calibrated_by.run, card.calibrated_by.date) == ("run-7", "2026")
    assert card_named("T4", 0.0).calibrated_by is None


def test_a_stored_speed_beyond_the_card_is_not_used(tmp_path, monkeypatch):
    """An emulated GPU once taught 473 % of an H100."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    bad = Calibration(0.2, 0.2, 0.2)
    remember(Learned("NVIDIA H100 80GB HBM3", "580", 300 * MIB, bad, 1), {})
    card = card_named("NVIDIA H100 80GB HBM3", 0.0)
    assert card.target().calibration is None
    assert card.calibrated_by is None
    assert card.context.likely != 300 * MIB
    assert card.ignored.speed == bad


def test_the_headroom_is_taken_from_what_pytorch_reports():
    card = card_named("RTX 4090", 0.1)
    assert card.total_bytes < card.memory_bytes == 24 * GIB
    assert card.usable_bytes == card.total_bytes - round(card.total_bytes * 0.1)
    target = card.target()
    assert target.usable_bytes == card.usable_bytes
    assert target.overhead_bytes == card.context.likely > 0


def test_cards_come_by_memory_and_once():
    cards = cards_of(PlanRequest(("A10G", "8GiB", "NVIDIA A10G", "T4")), 0.02)
    assert [card.name for card in cards] == ["8.00 GiB", "Tesla T4", "NVIDIA A10G"]
    every = cards_of(PlanRequest((), all_gpus=True), 0.02)
    assert len(every) > 45
    assert {card.facts.vendor for card in every if card.facts} == {"NVIDIA"}
    assert [card.memory_bytes for card in every] == sorted(card.memory_bytes for card in every)


def tasks(plan: PlanRequest, *rungs: Rung, usable: int | None = None):
    cards = cards_of(plan, 0.02)
    contexts = {
        card.name: Context("cuda", usable_bytes=usable or card.usable_bytes, counts=COUNTS)
        for card in cards
    }
    ladders = dict.fromkeys(contexts, rungs or (RUNG,))
    return tasks_of(plan, ladders, cards, contexts)


def test_all_cards_share_a_simulation():
    (found,) = tasks(PlanRequest(("3090", "4090", "A100-SXM4-80GB", "24GiB")))
    assert len(found.cards) == 4


def test_the_smallest_size_is_enough_where_nothing_can_fit():
    plan = PlanRequest(("4090",))
    assert tasks(plan)[0].sizes == (1, 2, 4)
    assert tasks(plan, usable=GIB)[0].sizes == (1,)


def test_a_sweep_of_lengths_is_a_simulation_each_at_one_size():
    plan = PlanRequest(("4090",), sweep=Sweep("sequence_length", (512, 1024)))
    found = tasks(plan)
    assert [task.rung.config.sequence_length for task in found] == [512, 1024]
    assert {task.sizes for task in found} == {(1,)}
    assert shown(found[1], plan).label == "full at 1,024 tokens"
    fixed = Rung("full", replace(RUNG.config, micro_batch_size=2))
    assert {task.sizes for task in tasks(plan, fixed)} == {(2,)}


def test_a_sweep_of_micro_batches_is_one_simulation():
    plan = PlanRequest(("4090",), sweep=Sweep("micro_batch_size", (1, 4)))
    assert [task.sizes for task in tasks(plan)] == [(1, 4)]


def picks(*rungs: tuple[str, float | None, float | None]) -> CardPicks:
    """Of LoRA rungs on a card of 10 GiB: each simulated to need so much, or lacking at least."""
    plan = PlanRequest(("10GiB",))
    (card,) = cards_of(plan, 0.0)
    request = survey_request(
        model=ModelRef("m"),
        recipe=Recipe("none", "", (), "command line"),
        device="cuda",
        headroom=0.0,
        sequence_length=512,
        effective_batch_size=4,
        tokens=1,
        python="python3",
        plan=plan,
    )
    rows = []
    for rank, (label, needed, bound) in enumerate(rungs, 1):
        config = TrainConfig(
            method="lora",
            lora_rank=rank,
            effective_batch_size=4,
            sequence_length=512,
            micro_batch_size=1,
        )
        rung = Rung(label, config)
        attempts, skip = (), None
        if needed is not None:
            outcome = "fits" if needed <= 10 else "oom"
            peak = measured(round(needed * GIB))
            attempts = (Attempt(config, outcome, peak, None, None, None, 0.0),)
        else:
            skip = SkipRung(rung, "not simulated", None if bound is None else round(bound * GIB))
        context = Context("cuda", usable_bytes=card.usable_bytes, counts=COUNTS)
        rows.append(conclude(rung, attempts, skip, context, request, "predicted"))
    return card_plan(card, tuple(rows), request).picks


def test_what_was_simulated_to_lack_goes_before_a_lower_bound():
    pick = picks(("bound", None, 1.0), ("far", 19.0, None), ("near", 15.0, None)).lora
    assert (pick.label, pick.missed_by_bytes, pick.by_formula) == ("near", 5 * GIB, False)


def test_a_lower_bound_is_told_as_one_where_there_is_nothing_else():
    pick = picks(("nothing", None, None), ("far", None, 3.0), ("near", None, 2.0)).lora
    assert (pick.label, pick.missed_by_bytes, pick.by_formula) == ("near", 2 * GIB, True)
    assert picks(("nothing", None, None)).lora is None


def test_what_fits_lacks_nothing():
    pick = picks(("bound", None, 1.0), ("fits", 9.0, None)).lora
    assert (pick.label, pick.fits, pick.by_formula) == ("fits", True, False)
    assert picks(("fits", 9.0, None)).qlora is None


KEPT = 1 << 20  # what the allocator keeps beside the tensors


def test_a_borderline_rung_is_no_pick_while_another_surely_fits():
    plan = PlanRequest(("10GiB",))
    (card,) = cards_of(plan, 0.0)
    request = survey_request(
        model=ModelRef("m"), recipe=Recipe("none", "", (), "command line"), device="cuda",
        sequence_length=512, effective_batch_size=4, plan=plan,
    )  # fmt: skip
    context = Context("cuda", usable_bytes=card.usable_bytes, counts=COUNTS)
    rows = []
    for rank, near in ((1, True), (2, False)):
        config = TrainConfig(
            method="lora", lora_rank=rank, effective_batch_size=4, sequence_length=512,
            micro_batch_size=1,
        )  # fmt: skip
        attempt = Attempt(config, "fits", measured(9 * GIB), None, None, None, 0.0)
        attempt = replace(attempt, borderline="borderline: by 2%" if near else None)
        rung = Rung(f"rank {rank}", config)
        rows.append(conclude(rung, (attempt,), None, context, request, "predicted"))
    both = card_plan(card, tuple(rows), request)
    assert both.picks.lora is not None and both.picks.lora.label == "rank 2"
    assert (both.fitting, both.borderline) == (1, 1)
    alone = card_plan(card, tuple(rows[:1]), request)
    assert alone.picks.lora is not None
    assert (alone.picks.lora.fits, alone.picks.lora.borderline) == (False, True)


def lines(
    sweep: Sweep,
    needed: dict[int, tuple[float, bool] | None],
    crossed: int | None = None,
    near: int = 0,
):
    """The line of one rung whose peaks in GiB, and whether they fit, are given by length."""
    plan = PlanRequest(("10GiB",), sweep=sweep)
    (card,) = cards_of(plan, 0.0)
    attempts = {}
    for value, told in needed.items():
        config = replace(RUNG.config, sequence_length=value, micro_batch_size=1)
        key = card.name, config.with_micro_batch("auto").key()
        if told is None:
            attempt = Attempt(config, "unsupported", None, None, None, "aten::nonzero", 0.0)
        else:
            size, fits = told
            outcome = "fits" if fits else "oom"
            attempt = Attempt(
                config, outcome, measured(round(size * GIB), kept=KEPT), None, None, None, 0.0
            )
            if value == near:
                attempt = replace(attempt, borderline="borderline: by 2%")
        attempts[key] = (attempt,)
    request = replace(survey_request(), plan=plan, recipe=Recipe("t", "", (RUNG,), "test"))
    known = Findings(request, ModelSpec("m", "local", "M", "m", "causal-lm", {}), (card,))
    known.attempts = attempts
    known.crossings = {(card.name, RUNG.config.key()): crossed} if crossed else {}
    answer = sweep_answer(known)
    assert answer is not None
    return answer.lines[0]


LENGTHS = Sweep("sequence_length", (512, 1024, 2048))


def test_the_limit_is_the_one_that_was_searched_for():
    line = lines(LENGTHS, {512: (4, True), 1024: (8, True), 2048: (16, False)}, 1408)
    assert (line.largest_fitting, line.crossed_at) == (1024, 1408)
    assert [peak.fits for peak in line.peaks] == [True, True, False]
    assert line.micro_batch_size == 1


def test_the_largest_value_of_a_sweep_surely_fits():
    line = lines(LENGTHS, {512: (4, True), 1024: (9.9, True), 2048: (16, False)}, near=1024)
    assert line.largest_fitting == 512
    assert [(peak.fits, peak.borderline) for peak in line.peaks][1] == (True, True)


def test_a_limit_that_nothing_was_searched_for():
    assert lines(LENGTHS, {512: (4, True), 1024: (5, True), 2048: (6, True)}).crossed_at is None
    none = lines(LENGTHS, {512: (14, False), 1024: (15, False), 2048: (16, False)})
    assert (none.largest_fitting, none.crossed_at) == (None, None)


def test_a_sweep_has_the_peak_of_the_device_and_the_lower_bound():
    line = lines(LENGTHS, {512: (4, True), 1024: (8, True), 2048: (16, False)})
    assert [peak.peak_device_bytes for peak in line.peaks] == [4 * GIB, 8 * GIB, 16 * GIB]
    assert [peak.least_bytes for peak in line.peaks] == [size * GIB - KEPT for size in (4, 8, 16)]


def test_what_cannot_be_simulated_says_why():
    line = lines(LENGTHS, dict.fromkeys(LENGTHS.values))
    assert {peak.least_bytes for peak in line.peaks} == {None}
    assert {peak.peak_device_bytes for peak in line.peaks} == {None}
    assert (line.crossed_at, line.reason) == (None, "aten::nonzero")


def inspection(longest: int | None, positions: int | None = None) -> Inspection:
    counts = ParameterCounts(1, 1, 0, 0, 0)
    rest = {"positions": positions or longest}
    return Inspection("M", counts, longest, {}, None, None, None, None, **rest)


def test_a_sweep_ends_with_the_positions_of_the_model():
    plan = PlanRequest(("L4",), sweep=LENGTHS)
    assert sweep_within_limits(plan, "m", inspection(2048)) == (plan, [])
    assert sweep_within_limits(plan, "m", inspection(None)) == (plan, [])
    lowered, (warning,) = sweep_within_limits(plan, "m", inspection(1500))
    assert lowered.sweep == Sweep("sequence_length", (512, 1024, 1500))
    assert "1,500 positions" in warning.message
    ended, _ = sweep_within_limits(plan, "m", inspection(1024))
    assert ended.sweep == Sweep("sequence_length", (512, 1024))


def test_a_sweep_beyond_positions_that_are_computed_goes_on_and_says_so():
    plan = PlanRequest(("L4",), sweep=LENGTHS)
    same, (warning,) = sweep_within_limits(plan, "m", inspection(None, positions=1024))
    assert (same, warning.code) == (plan, "beyond_positions")


@pytest.mark.parametrize(
    ("plan", "ranked"),
    [
        (PlanRequest(("12GiB",)), True),
        (PlanRequest(("12GiB",), solve="sequence_length"), False),
        (PlanRequest(("12GiB",), sweep=Sweep("sequence_length", (16, 32))), False),
    ],
)
def test_a_size_says_how_rungs_are_ranked_only_if_they_are(plan: PlanRequest, ranked: bool) -> None:
    request = survey_request(plan=plan)
    (warning,) = _card_warnings(cards_of(plan, 0.0), request)
    assert warning.code == "no_card"
    assert ("ranked by peak memory" in warning.message) is ranked


def test_a_plan_for_one_gpu_of_a_machine_says_so() -> None:
    plan = PlanRequest(("g5.12xlarge", "g5.xlarge"))
    cards = cards_of(plan, 0.0)
    (warning,) = _card_warnings(cards, survey_request(plan=plan))
    assert warning.message.startswith("g5.12xlarge has 4 GPUs, and this plan is for one of them;")
    assert _card_warnings(cards, survey_request(plan=plan, gpus=4)) == []
    fewest = replace(plan, fewest=GpuRange(1, 8))
    assert _card_warnings(cards, survey_request(plan=fewest)) == []
