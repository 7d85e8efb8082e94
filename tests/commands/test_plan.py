"""A whole plan of a tiny model, with real simulations; and what becomes of those that fail."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from analysis_make import request as survey_request
from tiny_models import tiny_folder
from weekly_rows import weekly

from oomdoctor.commands.events import SurveyEvent
from oomdoctor.commands.plan.run_plan import run_plan
from oomdoctor.errors import ExitCode
from oomdoctor.records.codec import loads
from oomdoctor.records.configuration.config import Recipe, Rung, TrainConfig
from oomdoctor.records.job.model import ModelRef
from oomdoctor.records.report.plan import PlanRequest, Sweep, SweptKey
from oomdoctor.records.report.report import Report, SurveyRequest
from oomdoctor.records.report.user_training import UserTraining
from oomdoctor.system import catalogue
from oomdoctor.system.store import run_folders

pytestmark = pytest.mark.usefixtures("one_simulator")
RUNGS = (
    Rung("full", TrainConfig(sequence_length=32, effective_batch_size=4)),
    Rung("contradiction", TrainConfig(method="qlora", sequence_length=32, effective_batch_size=4)),
)

TRAINING = Path(__file__).parents[1] / "data" / "stacks" / "user_training.json"


@pytest.fixture
def ask(tmp_path: Path, misbehaving_python: str) -> Callable[..., SurveyRequest]:
    """A request for rungs of a tiny model on a card; with `breaks` the worker fails by label."""
    model = tiny_folder(tmp_path / "model")

    def request(plan: PlanRequest, *rungs: Rung, breaks: bool = False) -> SurveyRequest:
        return survey_request(
            model=ModelRef(str(model)),
            recipe=Recipe("tiny", "", rungs or RUNGS, "command line"),
            device="cuda",
            sequence_length=32,
            effective_batch_size=4,
            rung_limit_s=60.0,
            python=misbehaving_python if breaks else sys.executable,
            plan=plan,
        )

    return request


def plan(
    request: SurveyRequest, stop: Callable[[], ExitCode | None] = lambda: None
) -> tuple[Report, list[SurveyEvent]]:
    events: list[SurveyEvent] = []
    folder = run_folders.create("tiny")
    report = run_plan(request, folder, on_event=events.append, stop=stop)
    assert folder.read_report() == report
    return report, events


@pytest.mark.slow
def test_a_plan_for_one_card_is_a_survey_without_the_card(
    ask: Callable[..., SurveyRequest],
) -> None:
    report, events = plan(ask(PlanRequest(("RTX 4090",))))
    full, contradiction = report.results
    assert (report.command, report.status, report.exit_code) == ("plan", "ok", 0)
    assert (full.outcome, full.evidence) == ("fits", "predicted")
    assert full.peak_device_bytes == (full.peak_reserved_bytes or 0) + (
        report.cards[0].context.likely
    )
    assert full.tokens_per_s is not None
    assert {attempt.micro_batch_size for attempt in full.tries} == {1, 2, 4}
    assert contradiction.outcome == "unsupported"
    assert "quantization" in (contradiction.reason or "")
    assert report.machine is not None and report.budget is not None
    assert report.machine.gpu_name == "NVIDIA GeForce RTX 4090"
    assert report.budget.usable_bytes == report.cards[0].usable_bytes
    assert report.ranking == (full.key,)
    kinds = [event.kind for event in events]
    told = ["inspecting", "bounded", "bounded", "simulating", "predicted", "searching", "done"]
    assert kinds == told
    assert all((event.message or "").startswith("needs at least ") for event in events[1:3])


@pytest.mark.parametrize("model", ["meta-llama/Llama-3.1-8B", "folder"])
def test_a_plan_that_ends_at_once_still_has_lower_bounds(
    ask: Callable[..., SurveyRequest], tmp_path: Path, model: str
) -> None:
    if model == "folder":  # known from its config.json alone
        known = next(m for m in catalogue.models() if m.id == "meta-llama/Llama-3.1-8B")
        (tmp_path / "model" / "config.json").write_text(json.dumps(dict(known.config)))
        model = str(tmp_path / "model")
    rungs = (Rung("full", TrainConfig()), Rung("lora", TrainConfig(method="lora")))
    request = replace(ask(PlanRequest(("RTX 4090",)), *rungs), model=ModelRef(model))
    report, _ = plan(request, stop=lambda: ExitCode.INTERRUPTED)
    full, lora = report.results
    assert (report.status, report.exit_code) == ("interrupted", ExitCode.INTERRUPTED)
    assert (full.outcome, full.failure) == ("skipped", None)
    assert full.missed_by_bytes is not None
    assert "needs at least" in (full.reason or "") and "gradients" in (full.reason or "")
    assert lora.failure is not None and lora.failure.code == "not_reached"
    assert (lora.reason or "").startswith("not reached; lower bound ")
    assert report.next_commands


def test_without_torch_a_plan_has_lower_bounds_and_the_line_to_install(
    ask: Callable[..., SurveyRequest], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LACKING", "torch")
    rungs = (Rung("full", TrainConfig()), Rung("lora", TrainConfig(method="lora")))
    request = ask(PlanRequest(("RTX 4090",)), *rungs, breaks=True)
    report, _ = plan(replace(request, model=ModelRef("meta-llama/Llama-3.1-8B")))
    assert (report.status, report.exit_code) == ("partial", ExitCode.MACHINE_UNFIT)
    assert "needs at least 59.8 GiB" in (report.results[0].reason or "")
    assert "lower bound 15.0 GiB" in (report.results[1].reason or "")
    (fault,) = report.errors
    assert "pip install torch" in (fault.hint or "")


@pytest.mark.slow
def test_several_cards_have_a_row_each_and_no_speed_without_a_card(
    ask: Callable[..., SurveyRequest],
) -> None:
    report, _ = plan(ask(PlanRequest(("L4", "1MiB", "1GiB")), RUNGS[0]))
    assert report.results == ()
    small, sized, card = report.cards
    assert small.picks.full is not None and not small.picks.full.fits
    assert small.picks.full.missed_by_bytes
    assert sized.picks.full is not None and sized.picks.full.fits
    assert sized.picks.full.tokens_per_s is None
    assert card.picks.full is not None and card.picks.full.tokens_per_s
    assert card.picks.lora is None
    assert "no_card" in [warning.code for warning in report.warnings]
    assert report.exit_code == 0


@pytest.mark.slow
def test_a_rung_without_a_speed_does_not_lose_to_a_slow_one(
    ask: Callable[..., SurveyRequest],
) -> None:
    both = {
        dtype: Rung(dtype, replace(RUNGS[0].config, weights_dtype=dtype, autocast_dtype="none"))
        for dtype in ("float32", "bfloat16")
    }
    report, _ = plan(ask(PlanRequest(("A10G",)), *both.values()))  # no rate is published for bf16
    slow, unknown = report.results
    assert slow.tokens_per_s is not None and unknown.tokens_per_s is None
    peaks = {row.key: row.deciding_peak_bytes() or 0 for row in report.results}
    first = report.ranking[0]
    assert peaks[first] == min(peaks.values())
    assert report.ranking_reasons[first].startswith("the lowest peak of 2: ")
    (warning,) = (w for w in report.warnings if w.code == "speed_unknown")
    assert (
        "A10G: too few figures are published to estimate the speed of bfloat16" in warning.message
    )
    report, _ = plan(ask(PlanRequest(("L4",)), *both.values()))
    assert "speed_unknown" not in [warning.code for warning in report.warnings]


@pytest.mark.slow
def test_a_sweep_grows(ask: Callable[..., SurveyRequest]) -> None:
    sweep = Sweep("sequence_length", (16, 32, 64))
    report, _ = plan(ask(PlanRequest(("L4",), sweep=sweep), RUNGS[0]))
    assert report.sweep is not None
    (line,) = report.sweep.lines
    sizes = [peak.least_bytes or 0 for peak in line.peaks]
    assert sizes == sorted(sizes) and sizes[0] < sizes[-1]
    assert line.largest_fitting == 64


@pytest.mark.slow
@pytest.mark.parametrize("card", ["L4", weekly("420MiB")])  # the second has no room for any
def test_a_rung_has_the_same_peak_in_every_view(
    ask: Callable[..., SurveyRequest], card: str
) -> None:
    lora = Rung("lora", replace(RUNGS[0].config, method="lora"))
    rungs = (RUNGS[0], lora)
    by_length = Sweep("sequence_length", (16, 48))
    by_size = Sweep("micro_batch_size", (1, 2, 4))
    for sweep in (by_length, by_size):
        report, _ = plan(ask(PlanRequest((card,), sweep=sweep), *rungs))
        assert report.sweep is not None
        for number, value in enumerate(sweep.values):
            at = {sweep.key: value, "micro_batch_size": 1} | {sweep.key: value}
            fixed = [Rung(rung.label, replace(rung.config, **at)) for rung in rungs]
            table, _ = plan(ask(PlanRequest((card,)), *fixed))
            for line, row in zip(report.sweep.lines, table.results, strict=True):
                peak = line.peaks[number]
                assert peak.fits is (row.outcome == "fits") is (card == "L4")
                assert peak.peak_device_bytes == row.peak_device_bytes
                reserved = row.peak_reserved_bytes
                assert reserved is not None
                assert row.peak_device_bytes == reserved + table.cards[0].context.likely
    why, _ = plan(ask(PlanRequest((card,), why="lora"), fixed[1]))
    assert why.why is not None
    assert why.why.peak_device_bytes == table.results[1].peak_device_bytes


@pytest.mark.slow
def test_the_largest_length_that_fits_is_confirmed_by_simulations(
    ask: Callable[..., SurveyRequest],
) -> None:
    lora = Rung("lora", replace(RUNGS[0].config, method="lora"))
    report, _ = plan(ask(PlanRequest(("420MiB", "450MiB"), solve="sequence_length"), *RUNGS, lora))
    assert report.solve is not None and report.results == ()
    for line in report.solve.lines:
        if line.label == "contradiction":
            assert line.largest is None and "quantization" in (line.reason or "")
            continue
        assert line.largest is not None or line.next_value == 128, line
        for value, peak in (
            (line.largest, line.peak_device_bytes),
            (line.next_value, line.next_peak_device_bytes),
        ):
            if value is None:
                continue
            rung = next(rung for rung in (*RUNGS, lora) if rung.label == line.label)
            config = replace(rung.config, sequence_length=value, micro_batch_size=1)
            again, _ = plan(ask(PlanRequest((line.card,)), Rung(rung.label, config)))
            (row,) = again.results
            assert (row.outcome == "fits") is (value == line.largest)
            assert row.peak_device_bytes == peak


@pytest.mark.slow
@pytest.mark.parametrize(
    ("key", "values"), [("sequence_length", (128, 16_384)), ("micro_batch_size", (1, 4096))]
)
def test_a_sweep_finds_the_limit_that_is_solved_for(
    ask: Callable[..., SurveyRequest], tmp_path: Path, key: SweptKey, values: tuple[int, ...]
) -> None:
    # Room for the largest context of a bare size, above which a rung surely fits.
    cards = ("1000MiB", "1040MiB")
    file = tmp_path / "model" / "config.json"
    config = json.loads(file.read_text()) | {"max_position_embeddings": values[-1]}
    file.write_text(json.dumps(config))
    swept, _ = plan(ask(PlanRequest(cards, sweep=Sweep(key, values)), RUNGS[0]))
    solved, _ = plan(ask(PlanRequest(cards, solve=key), RUNGS[0]))
    assert swept.sweep is not None and solved.solve is not None
    limits = [line.crossed_at for line in swept.sweep.lines]
    assert limits == [line.largest for line in solved.solve.lines]
    assert None not in limits


@pytest.mark.slow
def test_a_rank_is_solved_for_adapters_only(ask: Callable[..., SurveyRequest]) -> None:
    lora = Rung("lora", replace(RUNGS[0].config, method="lora"))
    report, _ = plan(ask(PlanRequest(("L4",), solve="lora_rank"), RUNGS[0], lora))
    assert report.solve is not None
    full, found = report.solve.lines
    assert full.largest is None and (full.reason or "").startswith("not applicable")
    assert found.next_value is None and "width" in (found.limited_by or "")
    assert f"lora_rank={found.largest}" in (found.rung or "")
    assert report.exit_code == 0


@pytest.mark.slow
def test_a_remedy_fits(ask: Callable[..., SurveyRequest]) -> None:
    long = Rung("full", replace(RUNGS[0].config, sequence_length=512, attention="eager"))
    report, _ = plan(ask(PlanRequest(("430MiB",)), long))
    assert report.results[0].outcome == "oom"
    remedies = report.cards[0].remedies
    assert {remedy.method for remedy in remedies} == {"full"}
    simulated = [remedy for remedy in remedies if remedy.basis == "simulated"]
    assert simulated or remedies[0].reason
    for remedy in simulated:
        assert (remedy.peak_device_bytes or 0) <= report.cards[0].usable_bytes
        assert remedy.rung and remedy.frees_bytes


@pytest.mark.slow
def test_several_gpus_get_the_same_search(ask: Callable[..., SurveyRequest]) -> None:
    """On two cards, a plan of which nothing fits once ended without any advice."""
    config = replace(
        RUNGS[0].config,
        sequence_length=512,
        attention="eager",
        micro_batch_size=512,
        effective_batch_size=1024,
        world_size=2,
        sharding="ddp",
    )
    report, _ = plan(
        replace(
            ask(PlanRequest(("2GiB",)), Rung("full", config)), gpus=2, effective_batch_size=1024
        )
    )
    assert report.results[0].outcome == "oom"
    (remedy,) = report.cards[0].remedies
    assert (remedy.method, remedy.basis) == ("full", "simulated")
    assert (remedy.peak_device_bytes or 0) <= report.cards[0].usable_bytes
    assert "sharding" in (remedy.rung or "")


@pytest.mark.slow
def test_a_package_that_is_missing_does_not_end_the_search(
    ask: Callable[..., SurveyRequest],
) -> None:
    """Micro-batch size 1 is enough; without liger-kernel, a plan once said that nothing is."""
    config = TrainConfig(method="lora", activation_checkpointing="full", sequence_length=8192,
                         micro_batch_size=8)  # fmt: skip
    request = replace(
        ask(PlanRequest(("RTX 4090",)), Rung("lora", config)),
        model=ModelRef("Qwen/Qwen2.5-1.5B"),
        sequence_length=8192,
        effective_batch_size=16,
        micro_batch_size=8,
    )
    report, _ = plan(request)
    (remedy,) = report.cards[0].remedies
    assert (remedy.change, remedy.basis) == ("micro-batch size 1", "simulated")
    assert any(f"--rung {remedy.rung}" in line for line in report.next_commands)


@pytest.mark.slow
def test_another_effective_batch_is_part_of_the_answer(ask: Callable[..., SurveyRequest]) -> None:
    """Weights and gradients of 8B parameters are above the card, so gradients must not stay."""
    config = TrainConfig(activation_checkpointing="full", optimizer="paged_adamw_8bit")
    request = replace(
        ask(PlanRequest(("RTX 4090",)), Rung("full", config)),
        model=ModelRef("meta-llama/Llama-3.1-8B"),
        sequence_length=2048,
        effective_batch_size=16,
    )
    report, _ = plan(request)
    (remedy,) = report.cards[0].remedies
    assert remedy.change == "the optimizer in the backward pass (effective batch size 1)"
    assert round((remedy.peak_device_bytes or 0) / 2**30, 1) == 20.0
    assert "effective_batch_size=1" in (remedy.rung or "")


@pytest.mark.slow
def test_a_plan_of_only_the_users_rung_answers_once(ask: Callable[..., SurveyRequest]) -> None:
    """A plan once said that the rung fits with a change, and below that no change is enough."""
    own = TrainConfig(micro_batch_size=4, sequence_length=512, attention="eager",
                      effective_batch_size=4)  # fmt: skip
    training = loads(UserTraining, TRAINING.read_text())
    request = replace(
        ask(PlanRequest(("430MiB",)), Rung("yours", own)),
        user_training=replace(training, config=own),
        sequence_length=512,
    )
    report, _ = plan(request)
    assert report.cards[0].remedies == ()
    assert report.yours is not None and report.yours.aim == "fits"
    assert report.yours.changes or report.yours.reason
    for change in report.yours.changes:
        assert (change.peak_device_bytes or 0) <= report.cards[0].usable_bytes


@pytest.mark.slow
def test_why_adds_up_to_the_peak(ask: Callable[..., SurveyRequest]) -> None:
    report, _ = plan(ask(PlanRequest(("L4",), why="full"), RUNGS[0]))
    assert report.why is not None
    assert report.why.micro_batch_size == report.results[0].micro_batch_size
    for phase in report.why.phases:
        assert sum(phase.by_category.values()) == phase.peak_allocated_bytes
    assert report.why.formula.terms[0].name == "weights"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("settings", "waits"),
    [
        ({}, False),
        weekly({"sharding": "fsdp", "world_size": 2}, False),  # hidden behind the computation
        ({"sharding": "zero2", "world_size": 2, "offload": "optimizer"}, True),
    ],
)
def test_why_adds_up_to_the_time_of_the_step_in_the_table(
    ask: Callable[..., SurveyRequest], settings: dict[str, Any], waits: bool
) -> None:
    config = replace(RUNGS[0].config, micro_batch_size=1, **settings)
    report, _ = plan(ask(PlanRequest(("L4",), why="full"), Rung("full", config)))
    (row,) = report.results
    assert report.why is not None and report.why.step is not None and row.tokens_per_s is not None
    step, tokens = report.why.step, config.effective_batch_size * config.sequence_length
    assert step.seconds == pytest.approx(tokens / row.tokens_per_s)
    assert sum(part.seconds for part in step.parts) == pytest.approx(step.seconds)
    assert ("communication" in [part.part for part in step.parts]) == waits
    assert report.why.mfu == row.mfu


@pytest.mark.slow
def test_why_ranks_what_would_make_the_configuration_faster(
    ask: Callable[..., SurveyRequest],
) -> None:
    config = replace(RUNGS[0].config, activation_checkpointing="full", weights_dtype="float32")
    report, _ = plan(ask(PlanRequest(("L4",), why="full"), Rung("full", config)))
    (row,) = report.results
    assert report.why is not None and report.why.faster is not None and row.tokens_per_s
    faster = report.why.faster
    assert "no activation checkpointing" in [change.change for change in faster.changes]
    assert len(faster.tried) >= len(faster.changes)
    for change in faster.changes:
        assert change.speedup == pytest.approx(change.tokens_per_s / row.tokens_per_s)
        assert change.speedup > 1 and (change.peak_device_bytes or 0) <= report.usable_bytes


def test_what_cannot_be_simulated_is_told_with_the_formula(
    ask: Callable[..., SurveyRequest],
) -> None:
    labels = ("unsupported", "exception", "segfault")
    rungs = tuple(
        Rung(label, replace(RUNGS[0].config, lora_rank=i)) for i, label in enumerate(labels, 1)
    )
    report, _ = plan(ask(PlanRequest(("L4",)), *rungs, breaks=True))
    assert [row.outcome for row in report.results] == ["unsupported", "failed", "crashed"]
    for row in report.results:
        assert "; lower bound " in (row.reason or "")
    assert (report.status, report.exit_code) == ("partial", ExitCode.INCONCLUSIVE)


def test_the_formula_alone_can_say_no(ask: Callable[..., SurveyRequest]) -> None:
    rung = Rung("unsupported", RUNGS[0].config)
    report, _ = plan(ask(PlanRequest(("1KiB",)), rung, breaks=True))
    (row,) = report.results
    assert row.outcome == "skipped"
    assert row.missed_by_bytes
    assert "needs a GPU" in (row.reason or "")
    assert report.exit_code == ExitCode.NO


def test_a_signal_ends_a_plan_with_what_is_known(ask: Callable[..., SurveyRequest]) -> None:
    rungs = (
        Rung("unsupported", RUNGS[0].config),
        Rung("hang", replace(RUNGS[0].config, lora_rank=3)),
    )
    seen: list[bool] = []

    def stop() -> ExitCode | None:
        seen.append(True)
        return ExitCode.INTERRUPTED if len(seen) > 20 else None

    report, _ = plan(ask(PlanRequest(("L4",)), *rungs, breaks=True), stop)
    assert (report.status, report.exit_code) == ("interrupted", ExitCode.INTERRUPTED)
    assert report.results[1].failure is not None
    assert report.results[1].failure.code == "not_reached"
    assert report.next_commands[0].startswith("oomdoctor plan")
