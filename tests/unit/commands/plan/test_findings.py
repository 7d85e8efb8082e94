"""What a plan keeps of each simulation, and that its request, rungs and contexts agree."""

from __future__ import annotations

from dataclasses import replace

import pytest
from analysis_make import request as survey_request

from oomdoctor.analysis.advice import next_commands
from oomdoctor.analysis.dataset_distribution import Tally
from oomdoctor.commands.devices import emulated
from oomdoctor.commands.devices.cards import cards_of
from oomdoctor.commands.jobs.simulators import Ended
from oomdoctor.commands.plan.changes import _with_unsloth
from oomdoctor.commands.plan.findings import Findings
from oomdoctor.commands.plan.tasks import Task, tasks_of
from oomdoctor.errors import ExitCode, OomDoctorError
from oomdoctor.records.configuration.config import Recipe, Rung, TrainConfig
from oomdoctor.records.job.dataset import LengthsRequest
from oomdoctor.records.job.model import ModelRef, ModelSpec, ParameterCounts
from oomdoctor.records.job.result import Attempt, Inspection
from oomdoctor.records.report.plan import PlanRequest, Sweep
from oomdoctor.records.report.user_training import YOURS

SPEC = ModelSpec("m", "local", "M", "m", "causal-lm", {})
RUNG = Rung("lora", TrainConfig(method="lora", sequence_length=512, effective_batch_size=4))


def inspection(parameters: int = 10**9, positions: int | None = None) -> Inspection:
    counts = ParameterCounts(parameters, parameters, 0, 0, 0)
    return Inspection("M", counts, positions, {}, None, None, None, None)


def findings(*rungs: Rung, plan: PlanRequest | None = None, rows: bool = False) -> Findings:
    plan = plan or PlanRequest(("L4",))
    request = survey_request(
        model=ModelRef("m"),
        recipe=Recipe("r", "", rungs or (RUNG,), "command line"),
        device="cuda",
        headroom=0.0,
        sequence_length=512,
        effective_batch_size=4,
        rung_limit_s=60.0,
        plan=plan,
        lengths=LengthsRequest("rows.jsonl") if rows else None,
    )
    return Findings(request, SPEC, cards_of(plan, 0.0))


def failed(reason: str | None) -> Ended:
    attempt = Attempt(RUNG.config.with_micro_batch(1), "unsupported", None, None, None, reason, 2.0)
    return Ended(0, attempt, None)


def test_a_failed_simulation_leaves_its_reason_and_a_lower_bound() -> None:
    known = findings()
    known.set_limits(inspection())
    known.take(Task(RUNG, (1,), known.cards), known.cards[0], failed("needs Liger kernels"))
    (row,) = known.rows(known.cards[0])
    assert (row.outcome, row.missed_by_bytes) == ("unsupported", None)
    assert row.reason == "needs Liger kernels; lower bound 1.86 GiB"


def test_a_failed_simulation_of_a_rung_above_the_card_is_an_answer() -> None:
    known = findings()
    known.set_limits(inspection(20 * 10**9))
    known.take(Task(RUNG, (1,), known.cards), known.cards[0], failed("needs Liger kernels"))
    (row,) = known.rows(known.cards[0])
    assert row.outcome == "skipped"
    assert row.missed_by_bytes is not None
    assert row.reason is not None
    assert row.reason.startswith("needs at least 37.3 GiB, short by ")
    assert row.reason.endswith("; not simulated: needs Liger kernels")


def test_a_rung_with_settings_that_contradict_each_other_is_not_simulated() -> None:
    wrong = Rung("wrong", replace(RUNG.config, method="full", quantization="nf4"))
    known = findings(wrong)
    known.set_limits(inspection())
    assert known.supported(Task(wrong, (1,), known.cards)) is None
    (row,) = known.rows(known.cards[0])
    assert row.outcome == "unsupported"
    assert row.reason
    task = Task(RUNG, (1,), known.cards)
    assert known.supported(task) == task


def test_rows_and_positions_change_request_rungs_and_shapes_together() -> None:
    tally = Tally()
    tally.add(1, 4000, "text")
    counted = tally.counted("rows.jsonl", "bytes/4", approximate=True, elapsed_s=0.0)
    known = findings(rows=True)
    found = inspection(positions=2048)
    known.take_inspection(found)
    known.take_rows(counted)
    known.set_limits(found)
    assert {rung.config.sequence_length for rung in known.rungs} == {2048}
    assert known.request.sequence_length == 2048
    assert {shape.tokens for shape in known.shapes} == {2048}
    assert list(known.contexts) == [known.cards[0].name]


def test_rows_beyond_computed_positions_stay_as_asked_and_are_warned_about() -> None:
    known = findings()
    known.set_limits(replace(inspection(), positions=256))
    assert {rung.config.sequence_length for rung in known.rungs} == {512}
    assert [warning.code for warning in known.warnings] == ["beyond_positions"]


def test_a_sweep_beyond_the_positions_ends_there_in_the_plan_of_the_request() -> None:
    plan = PlanRequest(("L4",), sweep=Sweep("sequence_length", (512, 4096)))
    known = findings(plan=plan)
    known.set_limits(inspection(positions=2048))
    assert known.plan.sweep == Sweep("sequence_length", (512, 2048))
    assert known.request.plan is known.plan
    assert len(known.rows(known.cards[0])) == 2


FOLLOWS = Rung("lora", replace(RUNG.config, autocast_dtype="bfloat16"), follows_card=True)


def test_each_card_has_the_rungs_of_its_16_bit_type() -> None:
    known = findings(FOLLOWS, plan=PlanRequest(("T4", "L4", "V100-SXM2-16GB", "20GiB")))
    known.set_limits(inspection())
    labels = {card.name: [rung.label for rung in known.ladder(card)] for card in known.cards}
    assert labels == {
        "Tesla T4": ["lora-fp16"],
        "Tesla V100-SXM2-16GB": ["lora-fp16"],
        "NVIDIA L4": ["lora"],
        "20.0 GiB": ["lora"],
    }
    (warning,) = known.warnings
    assert warning.code == "float16_rungs"
    assert known.rungs == (FOLLOWS,)
    planned = tasks_of(known.plan, known.ladders, known.cards, known.contexts)
    shared = {task.rung.label: sorted(card.name for card in task.cards) for task in planned}
    assert shared == {
        "lora-fp16": ["Tesla T4", "Tesla V100-SXM2-16GB"],
        "lora": ["20.0 GiB", "NVIDIA L4"],
    }


def test_rungs_that_are_float16_for_all_cards_are_those_of_the_request() -> None:
    known = findings(FOLLOWS, plan=PlanRequest(("T4",)))
    known.set_limits(inspection())
    assert [rung.label for rung in known.request.recipe.rungs] == ["lora-fp16"]
    assert known.rungs == known.request.recipe.rungs


def test_bfloat16_that_was_asked_for_stays_with_a_warning() -> None:
    asked = replace(FOLLOWS, label="mine", follows_card=False)
    known = findings(asked, plan=PlanRequest(("T4", "L4")))
    known.set_limits(inspection())
    assert {rung for ladder in known.ladders.values() for rung in ladder} == {asked}
    (warning,) = known.warnings
    assert warning.code == "bfloat16_emulated"
    assert warning.message.startswith("Tesla T4 emulates bfloat16")
    assert "mine" in warning.message


def test_attention_that_a_card_cannot_run_is_unsupported_there() -> None:
    flash = Rung("flash", replace(RUNG.config, attention="flash_attention_2"))
    known = findings(flash, plan=PlanRequest(("T4", "L4", "20GiB")))
    known.set_limits(inspection())
    task = known.supported(Task(flash, (1,), known.cards))
    assert task is not None
    assert [card.name for card in task.cards] == ["20.0 GiB", "NVIDIA L4"]
    turing = next(card for card in known.cards if card.name == "Tesla T4")
    (row,) = known.rows(turing)
    assert (row.outcome, row.reason) == (
        "unsupported",
        "flash_attention_2 needs compute capability 8.0 or higher; this card has 7.5; use sdpa",
    )


def test_lora_names_its_layers_where_peft_does_not_take_all() -> None:
    """The user's own configuration stays, and so does one that names layers."""
    named = Rung("named", replace(RUNG.config, lora_targets=("in_proj",)))
    known = findings(Rung("full", TrainConfig()), RUNG, named, Rung(YOURS, RUNG.config))
    assert known.inspected() == RUNG.config
    known.take_inspection(replace(inspection(), lora_targets=("in_proj", "x_proj")))
    targets = [rung.config.lora_targets for rung in known.rungs]
    assert targets == ["all-linear", ("in_proj", "x_proj"), ("in_proj",), "all-linear"]
    assert [rung.label for rung in known.rungs] == ["full", "lora", "named", YOURS]
    assert known.request.recipe.rungs == known.rungs
    assert [one.code for one in known.warnings] == ["lora_targets"]


@pytest.mark.parametrize(
    ("gpu", "runs", "experts", "reason"),
    [
        ("L4", False, 28 * 10**9, "needs at least 14.4 GiB, not simulated; give --python"),
        ("L4", True, 28 * 10**9, "needs at least 14.4 GiB, not simulated"),
        ("T4", True, 32 * 10**9, None),  # the weights alone are too large
        ("MI300X", True, 28 * 10**9, None),  # no such card is emulated
    ],
)
def test_unsloth_is_offered_where_its_weights_leave_room(
    gpu: str, runs: bool, experts: int, reason: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = TrainConfig(
        method="qlora", quantization="nf4", sequence_length=512, effective_batch_size=4
    )
    known = findings(Rung("own", own), plan=PlanRequest((gpu,)))
    linear = 2 * 10**9
    counts = ParameterCounts(linear + experts, linear, 0, experts, 0, experts, 128, 8)
    known.set_limits(Inspection("M", counts, None, {}, None, None, None, None))
    (card,), (rung,) = known.cards, known.rungs
    known.take(Task(rung, (1,), known.cards), card, failed("short"))
    why = None if runs else OomDoctorError("no_cuda", "no CUDA build", None, ExitCode.MACHINE_UNFIT)
    monkeypatch.setattr(emulated, "why_not", lambda python: why)
    offered = _with_unsloth(known, card, known.rows(card)[0])
    assert [remedy.basis for remedy in offered] == ["bound"] * (reason is not None)
    for remedy in offered:
        assert str(remedy.reason).startswith(str(reason))
        assert (remedy.rung is not None) == runs
        line, *_ = next_commands((), known.request, None, remedies=offered)
        assert ("library=unsloth" in line) == runs
