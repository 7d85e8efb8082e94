"""From recorded operators to times: what a later optimizer step does, and at full depth."""

from __future__ import annotations

from dataclasses import replace

import pytest

from oomdoctor.analysis.simulator.recorded import Cost
from oomdoctor.analysis.simulator.timing import (
    costs_between,
    estimated_timing,
    grow_evenly,
    work_of,
)
from oomdoctor.analysis.speed.hosts import Host
from oomdoctor.analysis.speed.roofline import RAMP_S, efficiency_of, estimate
from oomdoctor.records.job.costs import OpCost, OpKind
from oomdoctor.records.job.machine import GpuFacts
from oomdoctor.records.job.measurement import Timing
from oomdoctor.system.catalogue import find_gpu, speed_errors

WINDOWS = [(0, "load", "load"), (0, "first", "forward"), (0, "first", "optimizer")]
DEPTHS = {0: (3, 32)}
HUGE = 1e13  # bytes: seconds of work, so that ramps and the host do not matter


def card(name: str) -> GpuFacts:
    found = find_gpu(name)
    assert found is not None
    return found


A100 = card("A100-SXM4-80GB")


def entry(
    name: str, window: int, moved: float, unit: int | None = None, *, kind: OpKind = "elementwise"
) -> Cost:
    region = None if unit is None else (0, unit)
    return Cost(region, window, OpCost(name, kind, "bfloat16", 0.0, moved))


def timing(*costs: Cost, gpu: GpuFacts = A100) -> Timing:
    work = work_of([entry("add", 1, HUGE), *costs], WINDOWS, DEPTHS)
    found = estimated_timing(work, gpu, None, speed_errors())
    assert found is not None
    return found


def seconds(moved: float) -> float:
    efficiency = efficiency_of(A100)
    assert efficiency is not None
    assert A100.bandwidth_bytes_per_s is not None
    return moved / (efficiency.bandwidth * A100.bandwidth_bytes_per_s)


def test_the_bound_is_what_takes_most_of_a_micro_step() -> None:
    assert timing().bound == "bandwidth" and timing().bound_s == timing().micro_step_s
    product = OpCost("mm", "matmul", "bfloat16", 1e18, 1.0, shape=(1, 4096, 4096, 4096))
    assert timing(Cost(None, 1, product)).bound == "compute"
    # The ramps of small kernels belong to them, as long as the host is ahead.
    small = [entry("add", 1, 1e7) for _ in range(1000)]
    many = estimate([(each.cost, 1) for each in small], A100, host=Host(1e-6))
    assert many is not None and many.bound_by["launch"] > 0.2
    assert many.kernels_bound_by == {"compute": 0.0, "bandwidth": pytest.approx(1.0)}


def test_what_a_middle_layer_does_happens_in_each_of_them() -> None:
    update = [entry("mul_", 2, HUGE, unit) for unit in (0, 1, 2)]
    assert timing(*update).optimizer_step_s == pytest.approx(seconds(32 * HUGE), rel=1e-3)


def test_states_are_made_in_the_first_step_only() -> None:
    update = entry("mul_", 2, HUGE)
    made = [entry("zeros_like", 2, HUGE, unit) for unit in (0, 1, 2)]
    assert timing(update, *made).optimizer_step_s == timing(update).optimizer_step_s


def test_an_operator_over_lists_of_parameters_grows_to_the_full_depth() -> None:
    made = [entry("zeros_like", 2, 1e6, unit) for unit in (0, 1, 2)]
    outside = entry("zeros_like", 2, 8e6)
    lists = entry("_foreach_mul_", 2, HUGE)
    found = timing(lists, *made, outside).optimizer_step_s
    assert found == pytest.approx(seconds(HUGE * (32 + 8) / (3 + 8)), rel=1e-3)


def test_an_operator_over_the_parameters_of_one_layer_grows_only_with_the_layers() -> None:
    made = [entry("zeros_like", 2, 1e6, unit) for unit in (0, 1, 2)]
    lists = entry("_foreach_mul_", 2, HUGE, 1)
    assert timing(lists, *made).optimizer_step_s == pytest.approx(seconds(30 * HUGE), rel=1e-3)


def test_a_list_that_begins_in_the_first_layer_grows_like_one_outside_of_the_layers() -> None:
    """That of LoRA does: only layers have adapters. Its update once took that of three layers."""
    made = [entry("zeros_like", 2, 1e6, unit) for unit in (0, 1, 2)]
    found = timing(entry("_fused_adamw_", 2, HUGE, 0), *made).optimizer_step_s
    assert found == pytest.approx(seconds(HUGE * 32 / 3), rel=1e-3)


def test_an_operator_over_one_tensor_outside_of_the_layers_does_not_grow() -> None:
    made = [entry("zeros_like", 2, 1e6, unit) for unit in (0, 1, 2)]
    assert timing(entry("mul_", 2, HUGE), *made).optimizer_step_s == pytest.approx(
        seconds(HUGE), rel=1e-3
    )


def test_the_load_takes_no_part() -> None:
    assert timing(entry("copy_", 0, HUGE)).micro_step_s == timing().micro_step_s


def test_the_spread_is_at_least_the_recorded_error_and_that_of_kernels() -> None:
    known = {(r.compute_capability, r.slower): r.p95 for r in speed_errors()}
    moving = timing(entry("mul_", 2, HUGE))
    assert moving.micro_step_spread == moving.optimizer_step_spread == pytest.approx(0.33, rel=1e-3)
    bad = [replace(r, p95=0.6) for r in speed_errors()]
    found = estimated_timing(work_of([entry("add", 1, HUGE)], WINDOWS, DEPTHS), A100, None, bad)
    assert found is not None and found.micro_step_spread == 0.6
    waiting = timing(entry("mul_", 2, 1.0)).optimizer_step_spread
    elsewhere = timing(gpu=card("H100 SXM")).micro_step_spread
    assert waiting is not None and elsewhere is not None
    assert waiting > known["8.0", "host"] > known["8.0", "device"]
    assert elsewhere > 0.33


def test_a_card_without_facts_has_no_times() -> None:
    work = work_of([entry("add", 1, 1.0)], WINDOWS, {})
    assert estimated_timing(work, card("MI300X"), None, ()) is None


def test_costs_between_two_sizes_lie_on_a_line() -> None:
    low = [Cost(None, 1, OpCost("gemm_4bit", "quantised", "bfloat16", 10.0, 7.0, 5.0))]
    high = [Cost(None, 1, OpCost("gemm_4bit", "quantised", "bfloat16", 30.0, 9.0, 5.0))]
    (found,) = costs_between(low, 1, high, 3, 2)
    assert found.cost == OpCost("gemm_4bit", "quantised", "bfloat16", 20.0, 8.0, 5.0)
    assert costs_between(low, 2, high, 2, 2) is low


def test_shapes_lie_on_the_line_too() -> None:
    def costs(rows: int) -> list[Cost]:
        shape = (1, 512 * rows, 64, 32)
        cost = OpCost("mm", "matmul", "bfloat16", 1e6 * rows, 1e3 * rows, shape=shape)
        return [Cost(None, 1, cost)]

    assert grow_evenly(costs(2), costs(61), 59)
    assert costs_between(costs(2), 2, costs(61), 61, 7) == costs(7)
    crooked = replace(costs(61)[0].cost, shape=(1, 31233, 64, 32))
    assert not grow_evenly(costs(2), [Cost(None, 1, crooked)], 59)


def test_costs_grow_evenly_if_all_amounts_grow_by_whole_numbers_a_row() -> None:
    def costs(flops: float, moved: float, name: str = "mm") -> list[Cost]:
        return [Cost(None, 1, OpCost(name, "matmul", "bfloat16", flops, moved))]

    assert grow_evenly(costs(10.0, 7.0), costs(187.0, 7.0), 59)
    assert not grow_evenly(costs(10.0, 7.0), costs(186.0, 7.0), 59)
    assert not grow_evenly(costs(10.0, 7.0), costs(10.0, 8.0), 59)
    assert not grow_evenly(costs(10.0, 7.0), costs(10.0, 7.0, "bmm"), 59)
    assert not grow_evenly(costs(10.0, 7.0), [], 59)


def test_ramps_of_all_operators_count() -> None:
    assert timing(*[entry("mul_", 2, 1.0)] * 10).optimizer_step_s > 10 * RAMP_S
