"""The work of a step, from notes of what was launched."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from oomdoctor.analysis.simulator.launched import LaunchedStep, last_step
from oomdoctor.analysis.speed.hosts import EAGER
from oomdoctor.records.job.costs import TF32, OpCost
from oomdoctor.records.job.launches import Launch, LaunchKind

MM = OpCost("mm", "matmul", "bfloat16", 2.0 * 8 * 4 * 2, 112.0, shape=(1, 8, 4, 2))
ADD = OpCost("add", "elementwise", "bfloat16", 0.0, 96.0)
CUSTOM = OpCost("custom", "elementwise", "bfloat16", 0.0, 64.0)
COSTS = [MM, ADD, None, CUSTOM]


def note(kind: LaunchKind, *numbers: int, name: str | None = None, call: int = 0) -> Launch:
    dtype = "bfloat16" if kind == "product" else None
    direction = "to_device" if kind == "copy" else None
    return Launch(kind, 0.0, 1, call, 0, name, numbers, dtype, direction=direction)


def mark(phase: str | None, step: int = 0) -> Launch:
    return note("mark", step, name=phase)


def product(call: int = 0) -> Launch:
    return note("product", 1, 8, 4, 2, name="cublasGemmEx", call=call)


def kernel(call: int = 0) -> Launch:
    return note("kernel", 1, 1, 1, 32, 1, 1, name="kernel", call=call)


def returned(call: int, line: int) -> Launch:
    return note("call", line, 1, call=call)


def step_of(*launches: Launch, costs: Sequence[OpCost | None] = COSTS) -> LaunchedStep:
    """The step after one in which nothing but a kernel was launched."""
    before = mark("load"), kernel(), mark("forward"), kernel(), mark(None, 1)
    return last_step([*before, *launches, mark(None, 2)], costs)


def test_operators_count_by_their_calls_in_the_phase_in_which_they_ran() -> None:
    step = step_of(
        *(mark("forward"), product(1), returned(1, 0), mark("loss"), kernel(2), returned(2, 1)),
        *(mark("backward"), product(3), returned(3, 0), mark("update"), kernel(4), returned(4, 1)),
        *(mark("optimizer"), kernel(5), kernel(5), returned(5, 1)),
    )
    (micro,) = step.micro_steps
    assert (step.number, micro.forward, micro.backward) == (2, [MM, ADD], [MM])
    assert step.update == [ADD, ADD]  # two kernels of one operator are one operator
    assert dict(step.kinds) == {"product": 2, "kernel": 4}
    assert dict(step.products) == {((1, 8, 4, 2), "bfloat16"): 2}
    assert not step.unknown


def test_each_forward_pass_after_a_backward_pass_is_of_another_micro_step() -> None:
    one = mark("forward"), product(), mark("backward"), product(), mark("update")
    step = step_of(*one, *one, kernel(4), returned(4, 1), mark("optimizer"))
    assert len(step.micro_steps) == 2
    assert all(len(m.forward) == len(m.backward) == 1 for m in step.micro_steps)
    assert step.update == [ADD]


def test_the_passes_for_another_optimizer_are_micro_steps_too() -> None:
    passes = mark("forward"), product(), mark("backward"), product(), mark("update")
    update = mark("optimizer"), kernel(4), returned(4, 1)
    step = step_of(*passes, *update, *passes, mark("optimizer"), kernel(5), returned(5, 1))
    assert [len(m.forward) + len(m.backward) for m in step.micro_steps] == [2, 2]
    assert step.update == [ADD, ADD]


def test_what_runs_between_the_last_backward_pass_and_the_update_is_no_micro_step() -> None:
    step = step_of(
        *(mark("forward"), product(), mark("backward"), product(), mark("update")),
        *(mark("eval"), kernel(4), returned(4, 1), mark("optimizer"), kernel(5), returned(5, 1)),
    )
    assert len(step.micro_steps) == 1
    assert step.update == [ADD, ADD]


def test_launches_outside_of_operators_count_by_their_own_numbers() -> None:
    step = step_of(mark("forward"), product(), note("copy", 64), note("fill", 32))
    multiplied, copied, filled = step.micro_steps[0].forward
    assert (multiplied.shape, multiplied.flops, multiplied.bytes_moved) == (MM.shape, MM.flops, 112)
    assert (copied.kind, copied.bytes_moved) == ("copy", 64)
    assert (filled.kind, filled.bytes_moved) == ("elementwise", 32)


@pytest.mark.parametrize("call", [0, 9])
def test_a_kernel_whose_cost_is_not_known_takes_no_time(call: int) -> None:
    step = step_of(mark("forward"), kernel(call), *([returned(9, 2)] if call else []))
    assert step.micro_steps[0].forward == []
    assert dict(step.unknown) == {("kernel", (1, 1, 1, 32, 1, 1)): 1}


def test_products_in_an_operator_that_is_not_known_to_multiply_count_by_their_shapes() -> None:
    step = step_of(mark("forward"), product(1), kernel(1), returned(1, 3))
    multiplied, rest = step.micro_steps[0].forward
    assert (multiplied.shape, rest) == (MM.shape, CUSTOM)


def test_products_of_float32_take_tf32_where_cublas_was_told_so() -> None:
    plain = replace(MM, dtype="float32")
    short = replace(product(1), dtype=TF32)
    step = step_of(mark("forward"), short, returned(1, 0), costs=[plain])
    assert step.micro_steps[0].forward == [replace(MM, dtype=TF32)]
    alone = step_of(mark("forward"), replace(product(), dtype=TF32)).micro_steps[0].forward
    assert [(cost.dtype, cost.bytes_moved) for cost in alone] == [(TF32, 2 * 112)]


@pytest.mark.parametrize(
    ("kind", "whole"),
    [("all_reduce", 64), ("all_gather", 4 * 64), ("reduce_scatter", 4 * 64),
     ("all_to_all", 4 * 64), ("broadcast", 64), ("send", 64)],
)  # fmt: skip
def test_collectives_are_noted_with_the_size_of_the_whole_tensor(kind: str, whole: float) -> None:
    step = step_of(mark("backward"), note("collective", 64, 4, name=kind))
    (transfer,) = step.micro_steps[0].transfers
    assert (transfer.kind, transfer.size_bytes, transfer.ranks) == (kind, whole, 4)
    assert (transfer.hidden_by, transfer.calls, step.ranks) == ("backward", 1, 4)
    step = step_of(mark("optimizer"), note("collective", 64, 4, name=kind))
    (transfer,) = step.update_transfers
    assert (transfer.size_bytes, transfer.hidden_by) == (whole, "nothing")


def test_who_receives_sends_nothing() -> None:
    step = step_of(mark("backward"), note("collective", 64, 4, name="receive"))
    assert (step.micro_steps[0].transfers, step.ranks) == ([], 4)


def graph(what: int, first: int = 0, second: int = 0) -> Launch:
    return note("graph", what, first, second)


def test_a_cuda_graph_launches_what_was_captured_each_time_that_it_runs() -> None:
    captured = (
        *(mark("forward"), product(1), returned(1, 0), mark("backward"), product(), mark("update")),
        *(mark("optimizer"), kernel(2), returned(2, 1)),
    )
    made = graph(1), *captured, graph(2, 70), graph(3, 80, 70)
    before = step_of(*made, kernel(3), returned(3, 1))
    assert dict(before.kinds) == {"kernel": 1}  # nothing of it has run yet
    step = step_of(*made, mark(None, 2), graph(4, 80), graph(4, 80))
    first, second = step.micro_steps
    assert first.forward == second.forward == [MM]
    assert step.update == [ADD, ADD]
    assert dict(step.kinds) == {"graph": 2, "product": 4, "kernel": 2}
    assert (first.replayed, first.host().share) == (2, 0.0)
    assert not step.unknown


def test_the_host_launches_what_is_not_in_a_graph() -> None:
    made = graph(1), product(), graph(2, 70), graph(3, 80, 70)
    step = step_of(*made, mark(None, 2), mark("forward"), product(), product(), graph(4, 80))
    (micro,) = step.micro_steps
    assert len(micro.forward) == 3
    assert micro.host().share == pytest.approx(2 / 3)
    assert step_of(mark("forward"), product()).micro_steps[0].host() is EAGER


def test_a_graph_whose_capture_was_not_noted_takes_no_time() -> None:
    step = step_of(mark("forward"), graph(4, 80))
    assert (sum(step.unknown.values()), step.has_costs()) == (1, False)


def test_the_first_step_begins_once_the_model_is_loaded() -> None:
    launches = mark("load"), kernel(), mark("forward"), product(), mark(None, 1), product()
    step = last_step(launches, COSTS)
    assert (step.number, dict(step.kinds)) == (1, {"product": 1})


def test_without_a_step_all_launches_count() -> None:
    step = last_step([mark("load"), kernel(), mark("eval"), product()], COSTS)
    assert (step.number, dict(step.kinds)) == (None, {"product": 1})
