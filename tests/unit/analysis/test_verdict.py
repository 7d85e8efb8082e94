"""A row of the report from the attempts at a rung."""

from __future__ import annotations

from dataclasses import replace

import pytest
from analysis_make import (
    COUNTS,
    GIB,
    MODEL_CONFIG,
    ended,
    fit,
    gpu_facts,
    measurement,
    oom_event,
    ran_out,
    request,
    rung,
    timing,
)

from oomdoctor.analysis.search.ladder import Context, SkipRung
from oomdoctor.analysis.speed_verdict import speed_warnings
from oomdoctor.analysis.verdict import conclude, fits, missed_by
from oomdoctor.records.codec import from_json, to_json
from oomdoctor.records.job.measurement import Load
from oomdoctor.records.job.result import Attempt, ProbeResult

RUNG = rung("bf16", sequence_length=1000)
CONTEXT = Context(
    usable_bytes=10 * GIB,
    device_type="cuda",
    counts=COUNTS,
    model_config=MODEL_CONFIG,
    gpu=gpu_facts(bf16_flops=1e15),
)


def row(*attempts, skip=None, which=RUNG, context=CONTEXT, evidence="measured", **values):
    return conclude(which, attempts, skip, context, request(which, **values), evidence)


def test_what_leaves_the_headroom_fits():
    assert fits(measurement(10 * GIB), 10 * GIB) == ("fits", None)
    assert fits(measurement(11 * GIB), 10 * GIB) == (
        "oom",
        "it ran, but its peak of 11.0 GiB exceeds the usable 10.0 GiB by 1.00 GiB",
    )


def test_tensor_bytes_decide_where_there_is_no_device_use():
    on_cpu = measurement(
        GIB, peak_device_bytes=None, peak_reserved_bytes=None, peak_allocated_bytes=5
    )
    assert fits(on_cpu, 5)[0] == "fits"
    assert fits(on_cpu, 4)[0] == "oom"


def test_the_fastest_size_that_fits_is_the_answer():
    result = row(
        fit(RUNG.config, 1, 3 * GIB, times=timing(0.5, 0.1)),
        fit(RUNG.config, 8, 6 * GIB, times=timing(1.0, 0.1)),
        fit(RUNG.config, 16, 9 * GIB, times=timing(4.0, 0.1)),
        tokens=2_000_000,
    )
    assert (result.outcome, result.evidence) == ("fits", "measured")
    assert (result.micro_batch_size, result.gradient_accumulation_steps) == (8, 2)
    assert (result.fastest_micro_batch_size, result.max_micro_batch_size) == (8, 16)
    assert result.config == RUNG.config.with_micro_batch(8)
    assert result.key == RUNG.config.key()
    assert result.peak_device_bytes == 6 * GIB
    assert result.tokens_per_s == pytest.approx(16_000 / 2.1)
    assert result.samples_per_s == pytest.approx(16 / 2.1)
    assert result.tokens_time_s == pytest.approx(2_000_000 * 2.1 / 16_000)
    assert 0 < result.mfu < 1
    assert result.elapsed_s == 6.0
    assert [(t.micro_batch_size, t.outcome, t.peak_bytes) for t in result.tries] == [
        (1, "fits", 3 * GIB),
        (8, "fits", 6 * GIB),
        (16, "fits", 9 * GIB),
    ]
    assert (result.reason, result.failure, result.oom, result.missed_by_bytes) == (None,) * 4


def test_a_size_that_did_not_fit_is_never_the_answer():
    fast = measurement(12 * GIB, times=timing(0.001, 0.001))
    over = Attempt(RUNG.config.with_micro_batch(16), "oom", fast, None, None, "over", 1.0)
    result = row(fit(RUNG.config, 8, 6 * GIB), over)
    assert (result.micro_batch_size, result.max_micro_batch_size) == (8, 8)


def test_running_out_is_told_by_the_smallest_size():
    event = oom_event(requested_bytes=3 * GIB, free_bytes=GIB)
    result = row(ran_out(RUNG.config, 1, event))
    assert result.outcome == "oom"
    assert (result.micro_batch_size, result.gradient_accumulation_steps) == (1, 16)
    assert (result.oom, result.peak_phase) == (event, "backward")
    assert result.missed_by_bytes == 2 * GIB
    assert result.reason == ("ran out of memory in phase backward, with 1.00 GiB free")
    assert result.tokens_per_s is None
    assert result.fastest_micro_batch_size is None


def test_a_step_that_ran_above_the_budget_shows_its_figures():
    over = Attempt(
        RUNG.config.with_micro_batch(1), "oom", measurement(12 * GIB), None, None, "over", 1.0
    )
    result = row(over)
    assert result.missed_by_bytes == 2 * GIB
    assert (result.peak_device_bytes, result.peak_phase) == (12 * GIB, "backward")
    assert result.reason == "over"
    assert result.tokens_per_s is None


def test_missed_by_under_a_cap_of_the_allocator():
    event = oom_event(
        requested_bytes=2 * GIB,
        free_bytes=100 * GIB,
        allowed_bytes=10 * GIB,
        allocated_bytes=8 * GIB,
        reserved_unallocated_bytes=GIB,
    )
    assert missed_by(ran_out(RUNG.config, 1, event), 10 * GIB) == GIB
    result = row(ran_out(RUNG.config, 1, event))
    assert result.reason.endswith(", with 8.00 GiB of the allowed 10.0 GiB in use")


def test_missed_by_is_unknown_where_nothing_tells_it():
    assert missed_by(ran_out(RUNG.config), GIB) is None
    fragmented = oom_event(requested_bytes=GIB, free_bytes=2 * GIB)
    assert missed_by(ran_out(RUNG.config, 1, fragmented), GIB) is None
    assert missed_by(ended(RUNG.config, "crashed"), GIB) is None


@pytest.mark.parametrize("phase", ["init", "load"])
def test_running_out_while_loading_does_not_tell_what_is_lacking(phase):
    event = replace(oom_event(requested_bytes=GIB, free_bytes=0), phase=phase)
    assert missed_by(ran_out(RUNG.config, 1, event), GIB) is None
    assert row(ran_out(RUNG.config, 1, event)).missed_by_bytes is None
    bound = SkipRung(RUNG, "too big", 5 * GIB)
    assert row(ran_out(RUNG.config, 1, event), skip=bound).missed_by_bytes == 5 * GIB


@pytest.mark.parametrize(
    ("stopped_by", "steps", "spread", "notes"),
    [
        ("spread", 3, 0.2, ()),
        ("time_limit", 3, 0.05, ()),
        ("time_limit", 3, 0.2, ("speed not settled: 3 timed steps varied by 19.5%",)),
        ("step_limit", 20, 0.2, ("speed not settled: 20 timed steps varied by 19.5%",)),
        ("step_limit", 1, None, ("speed not settled: only 1 timed step",)),
    ],
)
def test_times_that_did_not_settle_are_noted(stopped_by, steps, spread, notes):
    times = replace(timing(spread=spread), stopped_by=stopped_by, timed_steps=steps)
    fixed = rung("fixed", micro_batch_size=2)
    fitting = fit(fixed.config, 2, times=times)
    found = row(fitting, which=fixed)
    assert found.notes == notes
    assert found.speed_state == ("not_settled" if notes else "settled")
    assert found.tokens_per_s is not None
    assert row(replace(fitting, outcome="oom"), which=fixed).notes == ()


def test_times_beyond_the_card_give_no_speed_and_no_mfu():
    # 6 x 0.9e9 FLOPs x 2048 tokens in 2 ms are 473 % of 1e15 FLOP/s.
    quick = timing(micro=0.0001, optimizer=0.0001)
    fixed = rung("fixed", micro_batch_size=2)
    found = row(fit(fixed.config, 2, times=quick), which=fixed)
    assert found.speed_state == "not_believable"
    assert found.outcome == "fits"
    assert (found.tokens_per_s, found.tokens_time_s, found.mfu) == (None, None, None)
    assert found.micro_step_s == 0.0001
    assert found.tries[0].tokens_per_s is None
    assert found.notes[0].startswith("its times are not believable:")
    (warning,) = speed_warnings([found], CONTEXT)
    assert warning.code == "time_not_believable"


def test_an_emulated_card_has_no_speed():
    emulated = replace(CONTEXT, emulated=True, gpu=None)
    found = row(fit(RUNG.config, 2), context=emulated)
    assert (found.outcome, found.speed_state) == ("fits", "not_believable")
    assert found.tokens_per_s is None
    assert found.notes[0] == "no speed: the GPU is emulated"
    assert [warning.code for warning in speed_warnings([found], emulated)] == ["emulated_device"]


def test_a_foreign_load_is_noted_and_warned_about():
    busy = Load(cpus=2, threads=2, own_cpus=0.8, foreign_cpus=1.1)
    found = row(fit(RUNG.config, 2, times=replace(timing(), load=busy)))
    assert found.notes[0] == "other processes used the device while it was timed"
    assert found.speed_state == "settled"
    (warning,) = speed_warnings([found, row(fit(RUNG.config, 2))], CONTEXT)
    assert warning.code == "foreign_load"
    assert "1.1 of 2 CPU cores while 1 configuration was timed" in warning.message
    assert speed_warnings([row(fit(RUNG.config, 2))], CONTEXT) == []


@pytest.mark.parametrize("outcome", ["crashed", "failed", "timed_out", "host_oom", "unsupported"])
def test_any_other_end_of_the_first_try_is_the_outcome(outcome):
    result = row(ended(RUNG.config, outcome))
    assert result.outcome == outcome
    assert result.failure.code == outcome
    assert result.reason == f"it {outcome}"
    assert result.missed_by_bytes is None


def test_running_out_on_the_host_keeps_its_figures():
    event = oom_event(requested_bytes=GIB, free_bytes=0)
    config = RUNG.config.with_micro_batch(1)
    result = row(Attempt(config, "host_oom", None, event, None, "host memory ran out", 1.0))
    assert (result.outcome, result.oom, result.reason) == ("host_oom", event, "host memory ran out")
    assert result.missed_by_bytes is None  # it says nothing about the device


def test_a_later_end_keeps_what_fits_and_is_noted():
    result = row(fit(RUNG.config, 1), fit(RUNG.config, 2), ended(RUNG.config, "timed_out", 16))
    assert (result.outcome, result.max_micro_batch_size) == ("fits", 2)
    assert result.notes == ("micro-batch size 16: timed out (it timed_out)",)
    assert result.tries[-1].reason == "it timed_out"


def test_a_search_that_was_cut_short_says_what_is_open():
    result = row(fit(RUNG.config, 1, GIB), fit(RUNG.config, 2, 2 * GIB))
    assert result.notes == ("the search ended; untried larger sizes that may fit: 4, 8",)
    finished = row(fit(RUNG.config, 4, 5 * GIB), fit(RUNG.config, 8, 10 * GIB))
    assert finished.notes == ()
    fixed = rung("fixed", micro_batch_size=2)
    assert row(fit(fixed.config, 2), which=fixed).notes == ()


def test_a_skipped_rung_has_its_reason_and_its_arithmetic():
    result = row(skip=SkipRung(RUNG, "too big", 5 * GIB))
    assert (result.outcome, result.reason, result.missed_by_bytes) == (
        "skipped",
        "too big",
        5 * GIB,
    )
    assert result.failure is None
    assert result.micro_batch_size is None
    assert result.config == RUNG.config


def test_a_rung_that_was_not_reached_says_so():
    result = row()
    assert (result.outcome, result.failure.code) == ("skipped", "not_reached")
    assert result.reason == result.failure.message


def test_a_rung_without_a_time_still_fits():
    result = row(fit(RUNG.config, 1, timing=None))
    assert (result.outcome, result.tokens_per_s, result.mfu) == ("fits", None, None)


@pytest.mark.parametrize(
    "attempts",
    [(), (fit(RUNG.config, 1),), (ran_out(RUNG.config),), (ended(RUNG.config, "crashed"),)],
)
def test_every_row_is_a_document(attempts):
    result = row(*attempts)
    assert from_json(ProbeResult, to_json(result)) == result


def test_the_host_memory_of_a_node_is_predicted_where_ranks_share_it():
    several = {"world_size": 8, "effective_batch_size": 16}
    sharded = rung(sharding="zero2", offload="optimizer", **several)
    found = row(fit(sharded.config, 1), which=sharded, evidence="predicted")
    states = 8 * 1000 / 8 * (4 + 4 + 8 + 2)
    assert 8 * (424 << 20) < found.host_peak_bytes < 8 * (424 << 20) + 2 * states
    assert any(note.startswith("host memory of a node with 8 ranks") for note in found.notes)
    alone = row(fit(RUNG.config, 1), evidence="predicted")
    assert alone.host_peak_bytes is None
    hidden = rung(sharding="fsdp", activation_checkpointing="offload", **several)
    assert row(fit(hidden.config, 1), which=hidden, evidence="predicted").host_peak_bytes is None


def test_a_measured_host_memory_is_not_replaced():
    sharded = rung(sharding="ddp", world_size=2, effective_batch_size=16)
    assert row(fit(sharded.config, 1, host_peak_bytes=5), which=sharded).host_peak_bytes == 5
