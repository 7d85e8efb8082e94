"""What follows from a tape without running a model again."""

from __future__ import annotations

from alive_blocks import made_of

from oomdoctor.analysis.simulator.card import RowSum, scratch_bytes
from oomdoctor.analysis.simulator.orders.steps import with_second_micro_step, with_steady_step
from oomdoctor.analysis.simulator.playback import RecordedRung
from oomdoctor.analysis.simulator.tape import (
    EMPTIED,
    Between,
    Order,
    Tape,
    TapeBlock,
    grows_evenly,
    in_canonical_order,
    plain_order,
    same_structure,
    sizes_between,
)


def block(size: int, category: str = "activations", name: str = "op") -> TapeBlock:
    return TapeBlock(size, category, name)


def step(batch: int = 1) -> Tape:
    """Weights; a micro-step with one activation, a gradient and a loss; states and temporaries."""
    tape = Tape()
    tape.enter("load", "load")
    tape.born(block(100, "weights"), None)
    tape.enter("first", "forward")
    tape.born(block(3, name="cache"), None)
    activation = tape.born(block(10 * batch, name="act"), None)
    loss = tape.born(block(1, name="loss"), None)
    tape.enter("first", "backward")
    gradient = tape.born(block(100, "gradients"), None)
    tape.died(activation, None)
    tape.enter("first", "optimizer")
    tape.born(block(200, "optimizer"), None)
    temporary = tape.born(block(50, "temporary"), None)
    tape.died(temporary, None)
    tape.died(gradient, None)
    tape.died(loss, None)
    return tape


CARD = (8, 0)
GRADIENT_TAKEN = {4: 5}  # the gradient becomes the parameter's before the activation dies


def sizes(tape: Tape) -> list[int]:
    return [entry.size for entry in tape.blocks]


def window_peaks(order: Order, sizes: list[int]) -> dict[tuple[str, str], int]:
    """The highest sum of living blocks within each (step, phase), in bytes without rounding."""
    peaks: dict[tuple[str, str], int] = {}
    live = 0
    ends = [window[0] for window in order.windows[1:]] + [len(order.events)]
    for (start, step, phase), end in zip(order.windows, ends, strict=True):
        peak = live
        for event in order.events[start:end]:
            if event > 0:
                live += sizes[order.origin[event - 1]]
                if live > peak:
                    peak = live
            else:
                live -= sizes[order.origin[-event - 1]]
        peaks[step, phase] = max(peak, peaks.get((step, phase), 0))
    return peaks


def test_window_peaks_are_the_highest_sums() -> None:
    tape = step()
    assert window_peaks(plain_order(tape), sizes(tape)) == {
        ("load", "load"): 100,
        ("first", "forward"): 114,
        ("first", "backward"): 214,
        ("first", "optimizer"): 454,
    }


def test_a_second_micro_step_adds_to_the_gradients_that_are_there() -> None:
    tape = with_second_micro_step(step(), GRADIENT_TAKEN)
    assert [phase for _, _, phase in tape.windows] == [
        "load",
        *("forward", "backward") * 2,
        "optimizer",
    ]
    peaks = window_peaks(plain_order(tape), sizes(tape))
    assert peaks["first", "forward"] == 215  # weights, gradients, cache, two losses, activation
    assert peaks["first", "backward"] == 315  # and the second gradient, which dies at once
    assert peaks["first", "optimizer"] == 455
    final = made_of(plain_order(tape), sizes(tape), tape.blocks, len(tape.events) - 1)
    assert sorted(tape.blocks[source].size for source in final) == [3, 100, 200]


def test_the_second_gradient_dies_where_it_is_added() -> None:
    tape = with_second_micro_step(step(), GRADIENT_TAKEN)
    second = next(i for i, entry in enumerate(tape.blocks) if i > 6 and entry.size == 100)
    position = tape.events.index(second + 1)
    assert tape.blocks[second].category == "temporary"
    assert tape.events[position + 1] == -(second + 1)


def test_the_steady_step_has_states_from_its_beginning_and_none_are_born() -> None:
    tape = step()
    order = with_steady_step(plain_order(tape), tape.blocks)
    peaks = window_peaks(order, sizes(tape))
    assert peaks["steady", "forward"] == 314
    assert peaks["steady", "backward"] == 414
    assert peaks["steady", "optimizer"] == 454
    final = made_of(order, sizes(tape), tape.blocks, len(order.events) - 1)
    assert sorted(tape.blocks[source].size for source in final) == [3, 100, 200]


def test_what_a_step_makes_before_its_first_micro_step_is_in_the_phase_before_it() -> None:
    tape = step()
    forward = next(i for i, window in enumerate(tape.windows) if window[1] == "first")
    tape.windows.insert(forward, (tape.windows[forward][0] - 1, "batch", "load"))
    order = with_steady_step(plain_order(tape), tape.blocks)
    names = [(moment, phase) for _, moment, phase in order.windows]
    assert names == [
        ("load", "load"),
        ("load", "load"),
        ("first", "forward"),
        ("first", "backward"),
        ("first", "optimizer"),
        ("first", "optimizer"),
        ("steady", "forward"),
        ("steady", "backward"),
        ("steady", "optimizer"),
    ]


def test_a_cache_that_the_load_empties_is_emptied_once() -> None:
    tape = step()
    tape.windows.insert(1, (1, EMPTIED, "load"))
    order = with_steady_step(plain_order(tape), tape.blocks)
    assert order.emptied == [1]
    assert order.windows[1] == (1, "load", "load")
    assert EMPTIED not in {moment for _, moment, _ in order.windows}


def test_sizes_lie_on_the_line_through_two_tapes() -> None:
    one, two = step(1), step(2)
    assert same_structure(one, two)
    assert grows_evenly(one, two, 1)
    assert sizes_between(one, two, Between(1, 2, 16), CARD) == sizes(step(16))
    assert sizes_between(one, two, Between(1, 2, 1), CARD) == sizes(one)
    assert sizes_between(one, one, Between(1, 1, 1), CARD) == sizes(one)


def test_a_size_that_grows_by_a_part_of_a_byte_a_row_is_on_no_line() -> None:
    one, other = Tape([TapeBlock(100, "")]), Tape([TapeBlock(159, "")])
    assert grows_evenly(one, other, 59)
    other.blocks[0].size += 1
    assert not grows_evenly(one, other, 59)


def test_a_block_that_needs_many_rows_is_there_from_the_first_size_that_has_them() -> None:
    few = Tape([TapeBlock(1000, "", rows=1000)])
    many = Tape([TapeBlock(61000, "", rows=61000)])
    assert few.blocks[0].allocated == 0
    assert many.blocks[0].allocated == 61000
    places = [Between(1, 61, size) for size in (3, 4)]
    assert [sizes_between(few, many, place, CARD) for place in places] == [[0], [4000]]


def test_another_order_of_events_is_another_structure() -> None:
    one, other = step(), step()
    other.events[-1], other.events[-2] = other.events[-2], other.events[-1]
    assert not same_structure(one, other)


def test_deaths_in_a_row_across_units_come_in_the_order_of_birth() -> None:
    tape = Tape()
    blocks = [tape.born(TapeBlock(1, "", "", "", (0, unit)), None) for unit in range(3)]
    for unit in (2, 0, 1):
        tape.died(blocks[unit], (0, unit))
    tidy = in_canonical_order(tape)
    assert tidy.events == [1, 2, 3, -1, -2, -3]
    assert tidy.regions[3:] == [(0, 0), (0, 1), (0, 2)]


def with_row_sum(results: int, terms: int) -> Tape:
    tape = Tape()
    tape.born(TapeBlock(0, "", row_sum=RowSum(results, terms, 4, 2, 4)), None)
    return tape


def test_row_sums_grow_with_the_batch() -> None:
    low, high = with_row_sum(576, 1024), with_row_sum(576, 1024 + 59 * 512)
    assert grows_evenly(low, high, 59)
    for place, other, terms in ((Between(2, 61, 66), high, 33_792), (Between(2, 2, 2), low, 1024)):
        expected = scratch_bytes(RowSum(576, terms, 4, 2, 4), CARD)
        assert sizes_between(low, other, place, CARD) == [expected]
    assert scratch_bytes(RowSum(576, 33_792, 4, 2, 4), CARD) > 0
    assert not grows_evenly(low, with_row_sum(576, 1025), 59)
    assert not grows_evenly(low, with_row_sum(577, 1024), 59)


def test_parts_of_sums_over_equal_rows_are_limited_by_the_rows_of_the_table() -> None:
    def embedding(rows: int) -> Tape:
        tape = Tape()
        tape.born(TapeBlock(100 * rows, "", rows=rows, segments=5000), None)
        return tape

    low, high = embedding(4096), embedding(4096 + 59 * 2048)
    assert grows_evenly(low, high, 59)
    assert low.blocks[0].allocated == 100 * (409 + 4096)
    assert sizes_between(low, high, Between(2, 61, 3), CARD) == [100 * (614 + 5000)]
    assert embedding(3072).blocks[0].allocated == 0


def test_a_deep_order_keeps_the_deaths_as_recorded_and_falls_back_to_sorted_ones() -> None:
    def layers(*, swapped: tuple[int, ...] = ()) -> Tape:
        tape = Tape()
        tape.enter("first", "forward")
        for unit in range(4):
            pair = [tape.born(TapeBlock(size, "", region=(0, unit)), (0, unit)) for size in (1, 2)]
            for number in pair if unit in swapped else reversed(pair):
                tape.died(number, (0, unit))
        return tape

    rung = RecordedRung({0: (4, 6)})

    as_recorded = rung._extended(layers())
    sorted_ones = rung._extended(layers(swapped=(2,)))

    assert as_recorded.events[:8] == [1, 2, -2, -1, 3, 4, -4, -3]
    assert sorted_ones.events[:8] == [1, 2, -1, -2, 3, 4, -3, -4]
    assert len(as_recorded.origin) == len(sorted_ones.origin) == 12
