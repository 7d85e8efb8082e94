"""Rungs in a plan that run, by engines that answer from a formula: several GPUs, and Unsloth."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest
from analysis_make import request as survey_request
from plan_make import measured

from oomdoctor.commands.devices import emulated
from oomdoctor.commands.devices.cards import cards_of
from oomdoctor.commands.events import SurveyEvent
from oomdoctor.commands.jobs.launch import Stopped
from oomdoctor.commands.jobs.simulators import Ended, Simulators
from oomdoctor.commands.ladder.assemble import Course
from oomdoctor.commands.plan import engine_ladder as ladder
from oomdoctor.commands.plan.engine_ladder import run_ladder
from oomdoctor.commands.plan.engines import (
    Engines,
    engine_cards,
    inexact_warnings,
    route_warnings,
    runs_on_card_only,
)
from oomdoctor.commands.plan.fewest import at_gpus, find_fewest
from oomdoctor.commands.plan.findings import Findings
from oomdoctor.commands.plan.plan_report import report as finished_report
from oomdoctor.commands.plan.tasks import Task
from oomdoctor.errors import machine_error
from oomdoctor.records.configuration.config import Recipe, Rung, TrainConfig
from oomdoctor.records.configuration.keys import label_of
from oomdoctor.records.job.measurement import Timing
from oomdoctor.records.job.model import ModelRef, ModelSpec, ParameterCounts
from oomdoctor.records.job.result import Attempt, Inspection, ProbeJob
from oomdoctor.records.report.plan import PlanRequest, Sweep
from oomdoctor.records.report.searched import GpuRange
from oomdoctor.system.store.run_folders import RunFolder
from oomdoctor.units import GIB

SPEC = ModelSpec("m", "local", "M", "m", "causal-lm", {})
FSDP = TrainConfig(sharding="fsdp", world_size=8, sequence_length=512, effective_batch_size=64)
PEAK = Callable[[TrainConfig], int]


def findings(*configs: TrainConfig, **changes: Any) -> Findings:
    plan = changes.pop("plan", None) or PlanRequest(("24GiB",))
    rungs = tuple(Rung(label_of(config), config) for config in configs)
    asked = survey_request(
        model=ModelRef("m"),
        recipe=Recipe("r", "", rungs, "command line"),
        device="cuda",
        headroom=0.0,
        sequence_length=512,
        effective_batch_size=64,
        plan=plan,
    )
    known = Findings(replace(asked, **{"gpus": 8} | changes), SPEC, cards_of(plan, 0.0))
    known.take_inspection(
        Inspection("M", ParameterCounts(10**10, 10**10, 0, 0, 0), None, {}, None, None, None, None)
    )
    known.set_limits(known.inspection)  # type: ignore[arg-type]
    return known


class FakeEngines:
    """Runs rungs by a formula for their peak, in bytes; keeps what was asked."""

    def __init__(self, peak: PEAK, outcome: str | None = None, stop_after: int = 99) -> None:
        self.peak, self.outcome, self.stop_after = peak, outcome, stop_after
        self.asked: list[TrainConfig] = []

    def run(self, rungs: Sequence[Rung], usable: int, on_start: Any = None) -> Iterator[Ended]:
        for number, rung in enumerate(rungs):
            if len(self.asked) >= self.stop_after:
                raise Stopped
            self.asked.append(rung.config)
            needs = self.peak(rung.config)
            outcome = self.outcome or ("fits" if needs <= usable else "oom")
            found = None if self.outcome else measured(needs)
            reason = "DeepSpeed is not installed" if self.outcome else None
            yield Ended(number, Attempt(rung.config, outcome, found, None, None, reason, 1.0), None)  # type: ignore[arg-type]


def run(known: Findings, engines: FakeEngines) -> list[SurveyEvent]:
    events: list[SurveyEvent] = []
    run_ladder(known, known.cards[0], cast("Engines", engines), events.append)
    return events


def test_a_rung_gets_the_largest_size_that_its_engine_fits() -> None:
    known = findings(FSDP)
    engines = FakeEngines(lambda config: (8 + 3 * int(config.micro_batch_size)) * GIB)
    (event,) = [one for one in run(known, engines) if one.kind == "predicted"]
    (row,) = known.rows(known.cards[0])
    assert (row.outcome, row.evidence, row.micro_batch_size) == ("fits", "emulated", 4)
    assert row.peak_device_bytes == 20 * GIB
    assert [config.micro_batch_size for config in engines.asked] == [1, 8, 4]
    assert (event.index, event.total) == (1, 1)


def test_what_an_engine_ran_is_judged_with_generation_next_to_vllm() -> None:
    known = findings(
        replace(
            FSDP, objective="grpo", vllm_gpu_memory_utilization=0.9, vllm_enable_sleep_mode=True
        )
    )
    run(known, FakeEngines(lambda config: 10 * GIB))
    (row,) = known.rows(known.cards[0])
    assert row.measurement is not None and row.measurement.peak_phase == "generate"
    assert row.peak_device_bytes > 0.9 * 24 * GIB


def test_what_an_engine_ran_is_not_simulated_again() -> None:
    known = findings(FSDP, replace(FSDP, sharding="ddp"))
    run(known, FakeEngines(lambda config: 30 * GIB))
    rungs = known.ladder(known.cards[0])
    assert [known.supported(Task(rung, (1,), known.cards)) for rung in rungs] == [None, None]
    short, by_bound = known.rows(known.cards[0])
    assert (short.outcome, short.evidence, short.missed_by_bytes) == ("oom", "emulated", 6 * GIB)
    assert (by_bound.outcome, by_bound.evidence) == ("skipped", "predicted")


def test_an_engine_that_is_missing_leaves_its_rung_to_the_simulation() -> None:
    known = findings(replace(FSDP, sharding="zero3"))
    run(known, FakeEngines(lambda config: 0, outcome="unsupported"))
    (rung,) = known.ladder(known.cards[0])
    task = Task(rung, (1,), known.cards)
    assert known.supported(task) == task


def fewest(known: Findings, engines: FakeEngines) -> None:
    simulators = FakeSimulators()
    both = cast("Engines", engines), cast("Simulators", simulators)
    find_fewest(known, known.cards[0], *both, lambda event: None)
    assert not simulators.jobs


def shared(config: TrainConfig) -> int:
    return 4 * GIB + (10**10 * 14) // config.world_size


def test_the_fewest_gpus_and_what_one_fewer_is_short_of() -> None:
    plan = PlanRequest(("24GiB",), fewest=GpuRange(2, 8))
    known = findings(FSDP, plan=plan)
    fewest(known, FakeEngines(shared))
    assert known.fewest is not None
    (line,) = known.fewest.lines
    assert (line.gpus, line.fewer, line.evidence) == (7, 6, "emulated")
    assert line.peak_device_bytes == shared(replace(FSDP, world_size=7))
    assert line.fewer_missed_by_bytes == shared(replace(FSDP, world_size=6)) - 24 * GIB
    assert line.effective_batch_size == 70
    (row,) = known.rows(known.cards[0])
    assert (row.outcome, row.config.world_size) == ("fits", 7)


def test_a_rung_is_counted_and_called_by_the_gpus_that_it_trains_on() -> None:
    """--min counted the buffers of NCCL of all GPUs in its range on one, and called it +fsdpx8."""
    known = findings(FSDP, plan=PlanRequest(("24GiB",), fewest=GpuRange(1, 8)))
    (card,) = known.cards
    sizes = {gpus: replace(FSDP, world_size=gpus) for gpus in (1, 2, 8)}
    outside = {n: known.target(card, one).overhead_bytes for n, one in sizes.items()}
    alone = findings(replace(FSDP, sharding="none", world_size=1), gpus=1)
    assert outside[1] == alone.target(alone.cards[0], alone.rungs[0].config).overhead_bytes
    assert outside[1] < outside[2] < outside[8]
    fewest(known, FakeEngines(lambda config: 20 * GIB))
    assert known.fewest is not None
    (line,) = known.fewest.lines
    (row,) = known.rows(card)
    assert line.gpus == row.config.world_size
    assert line.label == row.label == label_of(replace(row.config, micro_batch_size="auto"))


def test_a_bound_above_every_number_needs_no_engine() -> None:
    known = findings(
        replace(FSDP, sharding="ddp"), plan=PlanRequest(("24GiB",), fewest=GpuRange(1, 8))
    )
    engines = FakeEngines(shared)
    fewest(known, engines)
    assert known.fewest is not None
    (line,) = known.fewest.lines
    assert (line.gpus, line.fewer, engines.asked) == (None, 8, [])
    assert line.fewer_missed_by_bytes is not None
    assert str(line.reason).startswith("on 8 GPUs, each needs at least")


def test_a_search_that_is_cut_short_keeps_what_it_has() -> None:
    known = findings(FSDP, plan=PlanRequest(("24GiB",), fewest=GpuRange(2, 8)))
    with pytest.raises(Stopped):
        fewest(known, FakeEngines(shared, stop_after=1))
    assert known.fewest is not None
    (line,) = known.fewest.lines
    assert (line.gpus, line.reason, len(line.tries)) == (None, "the search was interrupted", 1)


def test_the_batch_is_rounded_up_to_the_gpus_and_one_gpu_needs_no_engine() -> None:
    request = replace(findings(FSDP).request, effective_batch_size=60)
    config = replace(FSDP, effective_batch_size=64)  # as the recipe was read for 8 GPUs
    batches = [at_gpus(config, gpus, 1, request).effective_batch_size for gpus in (1, 7, 8, 16)]
    assert batches == [60, 63, 64, 64]
    assert at_gpus(config, 1, 1, request).sharding == "none"
    own = replace(FSDP, effective_batch_size=32)
    assert at_gpus(own, 16, 1, request).effective_batch_size == 32


def test_engines_run_where_the_interpreter_and_the_card_allow_it(monkeypatch) -> None:
    monkeypatch.setattr(emulated, "is_emulating", lambda: False)
    monkeypatch.setattr(emulated, "why_not", lambda python: None)
    known = findings(FSDP)
    assert engine_cards(known) == known.cards
    assert route_warnings(known) == ()
    assert engine_cards(findings(replace(FSDP, sharding="none", world_size=1))) == ()
    swept = PlanRequest(("24GiB",), sweep=Sweep("micro_batch_size", (1, 2)))
    assert engine_cards(findings(FSDP, plan=swept)) == ()
    assert engine_cards(findings(FSDP, plan=PlanRequest(("MI300X",)))) == ()
    refused = machine_error("no_cuda", "torch has no CUDA build", "install one")
    monkeypatch.setattr(emulated, "why_not", lambda python: refused)
    assert engine_cards(known) == ()
    (warning,) = route_warnings(known)
    assert warning.code == "engines_not_run" and "torch has no CUDA build" in warning.message


class FakeSimulators:
    """Answers each job with nothing but an attempt."""

    def __init__(self) -> None:
        self.jobs: list[ProbeJob] = []

    def run(self, jobs: Sequence[ProbeJob], on_start: Any = None) -> Iterator[Ended]:
        for number, job in enumerate(jobs):
            self.jobs.append(job)
            yield Ended(number, Attempt(job.config, "fits", None, None, None, None, 1.0), None)


def test_what_fits_by_its_engine_is_simulated_for_its_time(monkeypatch) -> None:
    known = findings(FSDP, replace(FSDP, sharding="zero3"), plan=PlanRequest(("L40S",)))
    peaks = {"fsdp": 10 * GIB, "zero3": 99 * GIB}
    run(known, FakeEngines(lambda config: peaks[config.sharding]))
    timing = Timing(0.5, 0.2, 1.0, 0.2, 1.5, 0, 0, "estimated")
    simulated = replace(measured(11 * GIB), timing=timing)
    found = Attempt(FSDP.with_micro_batch(8), "fits", simulated, None, None, None, 1.0)
    monkeypatch.setattr(known, "attempts_on", lambda *_: (found,))
    simulators = FakeSimulators()
    ladder.estimate_times(known, known.cards[0], cast("Simulators", simulators), lambda event: None)
    assert [job.config.micro_batch_size for job in simulators.jobs] == [8]
    fits, short = known.rows(known.cards[0])
    assert (fits.evidence, fits.peak_device_bytes, fits.speed_state) == (
        "emulated",
        10 * GIB,
        "estimated",
    )
    assert fits.tokens_per_s is not None and short.tokens_per_s is None


def test_settings_that_contradict_each_other_are_not_run() -> None:
    known = findings(replace(FSDP, bucket_elements=10))
    engines = FakeEngines(lambda config: GIB)
    run(known, engines)
    (row,) = known.rows(known.cards[0])
    assert (row.outcome, engines.asked) == ("unsupported", [])
    assert "FSDP has no buckets" in str(row.reason)


@pytest.mark.parametrize(("size", "named"), [(None, []), (200 * GIB, []), (10 * GIB, ["fsdp"])])
def test_what_needs_more_host_memory_than_the_plan_names(
    size: int | None, named: list[str], tmp_path: Path
) -> None:
    known = findings(FSDP, plan=PlanRequest(("24GiB",), host_memory_bytes=size))
    run(known, FakeEngines(lambda config: 10 * GIB))
    (row,) = known.rows(known.cards[0])
    assert row.host_peak_bytes is not None and 10 * GIB < row.host_peak_bytes < 200 * GIB
    made = finished_report(known, Course(RunFolder(tmp_path), "", 0.0, None))
    found = [warning.message for warning in made.warnings if warning.code == "host_memory"]
    assert [row.label in text and "10.0 GiB of --host-memory" in text for text in found] == (
        [True] * len(named)
    )


UNSLOTH = TrainConfig(
    library="unsloth", method="lora", sequence_length=512, effective_batch_size=16
)


def run_unsloth(known: Findings, engines: FakeEngines) -> None:
    nothing = cast("Any", lambda event: None)
    run_ladder(known, known.cards[0], cast("Engines", engines), nothing, runs_on_card_only)


def test_it_gets_the_largest_size_that_fits_and_is_not_simulated() -> None:
    plain = replace(UNSLOTH, library="transformers")
    known = findings(UNSLOTH, plain, FSDP, gpus=1)
    engines = FakeEngines(lambda config: (20 + int(config.micro_batch_size)) * GIB)
    run_unsloth(known, engines)
    own, *others = known.ladder(known.cards[0])
    row = known.row(known.cards[0], own)
    assert (row.outcome, row.evidence, row.micro_batch_size) == ("fits", "emulated", 4)
    assert {config.library for config in engines.asked} == {"unsloth"}
    assert known.supported(Task(own, (1,), known.cards)) is None
    for rung in others:
        assert known.supported(Task(rung, (1,), known.cards)) is not None


def test_where_the_package_is_missing_the_row_says_so() -> None:
    known = findings(UNSLOTH, gpus=1)
    run_unsloth(known, FakeEngines(lambda config: 0, outcome="unsupported"))
    (row,) = known.rows(known.cards[0])
    assert (row.outcome, row.reason) == ("unsupported", "DeepSpeed is not installed")


def test_it_runs_in_plain_plans_where_a_card_can_be_emulated(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(emulated, "is_emulating", lambda: False)
    monkeypatch.setattr(emulated, "why_not", lambda python: None)
    known = findings(UNSLOTH, gpus=1)
    assert engine_cards(known, runs_on_card_only) == known.cards
    assert engine_cards(known) == ()
    swept = PlanRequest(("24GiB",), sweep=Sweep("micro_batch_size", (1, 2)))
    assert engine_cards(findings(UNSLOTH, gpus=1, plan=swept), runs_on_card_only) == ()


def test_no_time_is_simulated_for_it() -> None:
    known = findings(UNSLOTH, gpus=1, plan=PlanRequest(("L40S",)))
    run_unsloth(known, FakeEngines(lambda config: GIB))

    class Refuses:
        def run(self, jobs: Sequence[Any], on_start: Any = None) -> Any:
            raise AssertionError(jobs)

    ladder.estimate_times(known, known.cards[0], cast("Any", Refuses()), lambda event: None)


@pytest.mark.parametrize("verify", [False, True])
def test_what_was_not_exact_in_any_engine_is_one_warning(tmp_path: Path, verify: bool) -> None:
    known = findings(FSDP, plan=PlanRequest(("24GiB",), verify=verify))
    folder = RunFolder(tmp_path)
    assert inexact_warnings(known, folder) == []
    for name, noted in (
        ("engines-0", "cusolver"),
        ("engines-1", "cufft\ncusolver"),
        (".", "cudnn_rnn"),
    ):
        (tmp_path / name).mkdir(exist_ok=True)
        (tmp_path / name / "inexact").write_text(f"{noted}\n")
    (told,) = inexact_warnings(known, folder)
    assert (told.message.count("cuSOLVER"), told.message.count("cuFFT")) == (1, 1)
    assert (
        "RNNs" in told.message
    ) == verify  # else only simulations, which compute nothing, saw it


@pytest.mark.parametrize(("rungs", "hosts"), [(1, 1), (2, 2), (3, 2)])
def test_no_more_hosts_start_than_there_are_rungs(
    rungs: int, hosts: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A host takes seconds to start, and a rung never runs at two sizes at a time."""
    started: list[Path] = []

    class Host:
        def __init__(self, python: str, environment: dict[str, str], folder: Path) -> None:
            self.folder = folder

        def __enter__(self) -> Host:
            return self

        def __exit__(self, *_: object) -> None:
            pass

        def start(self) -> None:
            started.append(self.folder)

    monkeypatch.setattr("oomdoctor.commands.plan.engines.WorkerHost", Host)
    monkeypatch.setattr(emulated, "emulating", lambda *_, **__: nullcontext({}))
    monkeypatch.setattr("os.sched_getaffinity", lambda _: {0, 1, 2, 3})
    configs = [replace(FSDP, lora_rank=2**number) for number in range(rungs)]
    known = findings(*configs)
    with Engines(known, known.cards[0], RunFolder(tmp_path), lambda: False, lambda: None):
        assert len(started) == hosts
