"""What torch.compile makes of operators: chains become one kernel, and little is written."""

from __future__ import annotations

import pytest

from oomdoctor.analysis.speed.memory_bound import COMPILED, SUM_OVER_ROWS
from oomdoctor.records.job.costs import OpCost
from oomdoctor.worker.simulating.compiled_kernels import Access, Bytes, compiled

FORWARD, BACKWARD = 1, 2
# Blocks of memory.
INPUT, MIDDLE, RESULT, OUTPUT, GRADIENT = range(5)


def access(
    name: str, reads: Bytes, writes: Bytes, *, window: int = FORWARD, over_rows: bool = False
) -> Access:
    fusible = name != "mm"
    cost = OpCost(name, "elementwise" if fusible else "matmul", "bfloat16", 0.0, 1.0)
    return Access((None, window), cost, fusible, over_rows, reads, writes)


def kernels(*accesses: Access) -> list[tuple[str, float]]:
    return [(each.cost.name, each.cost.bytes_moved) for each in compiled(accesses)]


def test_a_chain_reads_its_input_and_writes_what_others_read() -> None:
    chain = [
        access("silu", {INPUT: 100}, {MIDDLE: 100}),
        access("mul", {MIDDLE: 100}, {RESULT: 100}),
    ]
    product = access("mm", {RESULT: 100}, {OUTPUT: 100})
    assert kernels(*chain, product) == [(COMPILED, 200), ("mm", 1)]


def test_an_input_of_two_operators_is_read_once() -> None:
    chain = [
        access("silu", {INPUT: 100}, {MIDDLE: 100}),
        access("mul", {MIDDLE: 100, INPUT: 100}, {}),
    ]
    assert kernels(*chain)[0] == (COMPILED, 100)


def test_the_backward_pass_computes_again_what_only_it_reads() -> None:
    cast = access("_to_copy", {INPUT: 100}, {MIDDLE: 200})
    product = access("mm", {INPUT: 100}, {RESULT: 100})
    back = access("mul", {MIDDLE: 200, RESULT: 100}, {GRADIENT: 100}, window=BACKWARD)
    # The cast writes nothing, and the backward pass reads the input instead of its 200 bytes.
    assert kernels(cast, product, back) == [(COMPILED, 100), ("mm", 1), (COMPILED, 300)]


def test_what_costs_more_to_compute_again_is_written() -> None:
    many = access("add", {INPUT: 1000, OUTPUT: 1000}, {MIDDLE: 10})
    product = access("mm", {INPUT: 100}, {RESULT: 100})
    back = access("mul", {MIDDLE: 10}, {GRADIENT: 10}, window=BACKWARD)
    assert kernels(many, product, back) == [(COMPILED, 2010), ("mm", 1), (COMPILED, 20)]


def test_a_gradient_that_nothing_reads_is_written() -> None:
    assert kernels(access("mul", {INPUT: 100}, {GRADIENT: 50})) == [(COMPILED, 150)]


def test_what_is_updated_in_place_is_read_and_written() -> None:
    assert kernels(access("add_", {INPUT: 100, MIDDLE: 100}, {INPUT: 100})) == [(COMPILED, 300)]


def test_sums_over_rows_read_the_inputs_again() -> None:
    back = access("native_layer_norm_backward", {INPUT: 100}, {GRADIENT: 100}, over_rows=True)
    assert kernels(back) == [(COMPILED, 200), (SUM_OVER_ROWS, 100)]


def test_what_is_written_twice_is_read_where_it_is_still_read() -> None:
    # As the shifted labels of a seq2seq model: zeros that are filled by later kernels.
    product = access("mm", {INPUT: 100}, {OUTPUT: 100})
    filled = access("fill_", {}, {MIDDLE: 10})
    copied = access("copy_", {OUTPUT: 10}, {MIDDLE: 10})
    used = access("add", {MIDDLE: 10}, {RESULT: 10}, window=BACKWARD)
    called = access("mm", {RESULT: 10}, {GRADIENT: 10})
    costs = kernels(filled, product, copied, product, used, called)
    assert costs == [(COMPILED, 0), ("mm", 1), (COMPILED, 20), ("mm", 1), (COMPILED, 10), ("mm", 1)]


@pytest.mark.parametrize("place", [((0, 1), FORWARD), (None, BACKWARD)])
def test_a_chain_ends_at_another_layer_and_at_the_backward_pass(
    place: tuple[tuple[int, int] | None, int],
) -> None:
    first, second = (
        access("add", {INPUT: 1}, {RESULT: 1}),
        access("mul", {OUTPUT: 1}, {GRADIENT: 1}),
    )
    assert len(kernels(first, second)) == 1
    moved = Access(place, second.cost, True, False, second.reads, second.writes)
    assert [each.region for each in compiled([first, moved])] == [None, place[0]]
