"""Storages are born once, die once, and add up at every event."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from oomdoctor.explain.reading.parse import parse_oom
from oomdoctor.records.facts.categories import GRADIENTS, OPTIMIZER, WEIGHTS
from oomdoctor.worker.tracing.steps import (
    OTHERS,
    Freed,
    Lasting,
    OnHost,
    Passing,
    Result,
    Step,
    with_workspaces,
)
from oomdoctor.worker.tracing.trace import AllocationTrace
from oomdoctor.worker.tracing.whereabouts import Whereabouts

KIB = 1024


def test_views_in_place_results_and_deaths_are_counted_by_storage() -> None:
    trace = AllocationTrace("cpu")
    with trace.recording():
        a = torch.empty(1024)
        view = a.view(32, 32)[1:]
        a.add_(1.0)
        assert trace.live == 4 * KIB
        b = a + 1.0
        assert trace.live == 8 * KIB
        del a
        assert trace.live == 8 * KIB  # the view keeps the storage
        del view
        assert trace.live == 4 * KIB
        del b
    assert trace.live == 0
    assert trace.peak == 8 * KIB


def test_what_outlives_a_step_that_is_forgotten_is_no_part_of_the_next() -> None:
    trace = AllocationTrace("cpu")
    with trace.recording():
        left = torch.empty(256)
        trace.cut(0, 0)
        made = torch.empty(256)  # the number of a block that was forgotten
        del left
        assert [block.size for block in trace.tape.blocks] == [KIB]
        assert trace.tape.events == [1]
        del made
    assert trace.tape.events == [1, -1]
    assert trace.live == 0


def test_a_resized_storage_changes_by_the_difference() -> None:
    trace = AllocationTrace("cpu")
    with trace.recording():
        a = torch.empty(256)
        a.resize_(1024)
        assert trace.live == 4 * KIB
        del a
    assert trace.live == 0


def test_saved_tensors_live_until_backward_frees_them() -> None:
    trace = AllocationTrace("cpu")
    weight = torch.randn(64, 64, requires_grad=True)
    x = torch.randn(64, 64)
    trace.adopt([weight, x], WEIGHTS)
    before = trace.live
    with trace.recording():
        trace.enter("first", "forward")
        y = (x @ weight).relu().sum()
        assert trace.live - before >= 64 * 64 * 4
        trace.enter("first", "backward")
        y.backward()
        del y
    assert weight.grad is not None
    trace.adopt([weight.grad], GRADIENTS)
    assert trace.live - before == weight.grad.untyped_storage().nbytes()


def test_the_peak_moment_is_broken_down_without_remainder() -> None:
    trace = AllocationTrace("cpu")
    weight = torch.randn(128, 128, requires_grad=True)
    trace.adopt([weight], WEIGHTS)
    with trace.recording():
        trace.enter("first", "forward")
        loss = (torch.randn(16, 128) @ weight).exp().sum()
        trace.enter("first", "backward")
        loss.backward()
    parts = trace.breakdown()
    assert sum(parts.values()) == trace.peak
    assert parts["weights"] == 128 * 128 * 4


def modules_of(trace: AllocationTrace, category: str) -> list[str]:
    return [block.module for block in trace.tape.blocks if block.category == category]


@pytest.mark.parametrize("foreach", [True, False])
def test_everything_of_a_parameter_has_the_module_of_the_parameter(foreach: bool) -> None:
    where = Whereabouts()
    trace = AllocationTrace("cpu", where=where)
    with trace.recording():
        model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Linear(16, 4))
        for name, parameter in model.named_parameters():
            trace.adopt([parameter], WEIGHTS, module=name.rpartition(".")[0])
        where.follow(model, {})
        optimizer = torch.optim.AdamW(model.parameters(), foreach=foreach)
        for phase in ("forward", "backward", "optimizer"):
            trace.enter("first", phase)
            if phase == "forward":
                loss = model(torch.randn(2, 8)).sum()
            elif phase == "backward":
                loss.backward()
                trace.adopt((p.grad for p in model.parameters()), GRADIENTS)
            else:
                optimizer.step()
                states = (state.values() for state in optimizer.state.values())
                trace.adopt((tensor for values in states for tensor in values), OPTIMIZER)
    assert modules_of(trace, WEIGHTS) == ["0", "0", "1", "1"]
    assert sorted(modules_of(trace, GRADIENTS)) == ["0", "0", "1", "1"]
    moments = [b for b in trace.tape.blocks if b.category == OPTIMIZER and b.size > 4]
    assert [block.module for block in moments] == ["0"] * 4 + ["1"] * 4  # the counters are 4 bytes
    copies = [b for b in trace.tape.blocks if b.operator.startswith("aten::_foreach_sqrt")]
    assert [block.module for block in copies] == (["0", "0", "1", "1"] if foreach else [])


def test_crossing_the_limit_raises_the_message_that_the_parser_reads() -> None:
    trace = AllocationTrace("cpu", limit=10 * KIB)
    with pytest.raises(torch.OutOfMemoryError) as raised, trace.recording():
        kept = [torch.empty(512) for _ in range(6)]
        del kept
    event = parse_oom(str(raised.value), "forward")
    assert event is not None
    assert event.requested_bytes == 2 * KIB
    assert event.capacity_bytes == 10 * KIB
    assert event.free_bytes == 0
    assert event.allocated_bytes == 10 * KIB


def test_after_the_limit_was_crossed_the_count_is_still_right() -> None:
    trace = AllocationTrace("cpu", limit=10 * KIB)
    with trace.recording():
        kept = torch.empty(1024)
        with pytest.raises(torch.OutOfMemoryError):
            torch.empty(4096)
        assert trace.live == 4 * KIB
        del kept
    assert trace.live == 0


@settings(max_examples=60)
@given(
    st.lists(
        st.tuples(st.sampled_from(["new", "view", "copy", "drop"]), st.integers(1, 300)),
        max_size=40,
    )
)
def test_live_bytes_equal_the_distinct_storages_alive(steps: list[tuple[str, int]]) -> None:
    trace = AllocationTrace("cpu")
    alive: list[torch.Tensor] = []
    with trace.recording():
        for action, number in steps:
            if action == "new" or not alive:
                alive.append(torch.empty(number))
            elif action == "view":
                alive.append(alive[number % len(alive)].view(-1))
            elif action == "copy":
                alive.append(alive[number % len(alive)].clone())
            else:
                del alive[number % len(alive)]
            storages = {t.untyped_storage()._cdata: t.untyped_storage().nbytes() for t in alive}
            assert trace.live == sum(storages.values())
    assert trace.peak >= trace.live


def test_the_mask_of_dropout_is_allocated_before_its_output() -> None:
    trace = AllocationTrace("cpu")
    with trace.recording():
        kept = torch.native_dropout(torch.ones(256), 0.5, True)
    sizes = [trace.tape.blocks[event - 1].size for event in trace.tape.events if event > 0]
    assert sizes == [KIB, 256, KIB]  # the input, the mask, the output
    assert len(kept) == 2


def recorded(*steps: Step) -> AllocationTrace:
    trace = AllocationTrace("cpu")
    trace.steps_of = lambda *_: steps
    with trace.recording():
        result = torch.ones(256)
    trace.finish()
    del result
    return trace


def test_what_a_kernel_takes_first_is_older_than_its_results_and_dies_after_them() -> None:
    trace = recorded(100, 200, Result(OTHERS))
    assert trace.tape.events == [1, 2, 3, -2, -1]
    assert [block.size for block in trace.tape.blocks] == [100, 200, KIB]
    assert trace.live == KIB
    assert trace.peak == KIB + 300


def test_the_steps_of_a_kernel_are_recorded_in_order() -> None:
    assert recorded(100).tape.events == [1, 2, -2]  # after the results, if no step says otherwise
    assert recorded(100, 200, Result(0), Freed(0), 300).tape.events == [1, 2, 3, -1, 4, -4, -2]
    assert recorded(OnHost(0)).tape.events == []
    lasting = with_workspaces((100, Result(0), Freed(0)), [Lasting("workspace", 50)])
    trace = recorded(*lasting)
    assert trace.tape.events == [1, 2, 3, -1]
    assert trace.live == KIB + 50
    passing = with_workspaces((100, Result(0), Freed(0)), [Passing("workspace", 50)])
    trace = recorded(*passing)
    assert trace.tape.events == [1, 2, 3, -3, -1]
    assert trace.tape.blocks[2].operator == "workspace"
