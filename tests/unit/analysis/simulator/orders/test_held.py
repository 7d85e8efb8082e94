"""What a step holds beside its own: what the one before left, and the inputs of all of it."""

from __future__ import annotations

from alive_blocks import made_of

from oomdoctor.analysis.simulator.orders.outline import outline_of
from oomdoctor.analysis.simulator.orders.steps import (
    with_inputs,
    with_second_micro_step,
    with_steady_step,
)
from oomdoctor.analysis.simulator.tape import Order, Tape, TapeBlock, plain_order

FOUND, LOSS = 3, 4


def step() -> Tape:
    """Two inputs and weights; a step that frees the loss that it finds, and leaves its own."""
    tape = Tape(carried={FOUND: LOSS})
    tape.enter("load", "load")
    tape.born(TapeBlock(100, "weights"), None)
    for size in (8, 4):
        tape.born(TapeBlock(size, "inputs"), None)
    tape.enter("batch", "load")
    tape.born(TapeBlock(0, "temporary", "found"), None)
    tape.enter("first", "forward")
    tape.born(TapeBlock(1, "activations", "loss"), None)
    tape.enter("first", "backward")
    tape.died(FOUND, None)
    tape.born(TapeBlock(30, "gradients"), None)
    tape.enter("first", "optimizer")
    tape.died(5, None)
    return tape


def losses_alive(order: Order, blocks: list[TapeBlock]) -> list[int]:
    """How many losses are alive after each event."""
    sizes = [block.size for block in blocks]
    counts = []
    for position in range(len(order.events)):
        alive = made_of(order, sizes, blocks, position)
        counts.append(sum(n for source, n in alive.items() if blocks[source].operator == "loss"))
    return counts


def with_steps(tape: Tape) -> Order:
    return with_steady_step(plain_order(tape), tape.blocks, tape.carried)


def test_a_step_frees_what_the_one_before_left_when_it_has_its_own() -> None:
    tape = step()
    order = with_steps(tape)
    counts = losses_alive(order, tape.blocks)
    assert max(counts[: len(tape.events)]) == 1  # the first step finds none
    steady = next(start for start, moment, _ in order.windows if moment == "steady")
    assert counts[steady:] == [2, 1, 1, 1]  # born, the one before freed, gradient, its end
    assert len(set(order.events)) == len(order.events)  # nothing is freed twice


def test_so_does_a_second_micro_step() -> None:
    double = with_second_micro_step(step(), {5: 7})
    left = double.carried[FOUND]
    assert left != LOSS and double.blocks[left].operator == "loss"
    order = with_steps(double)
    counts = losses_alive(order, double.blocks)
    assert max(counts) == 2
    assert counts[-1] == 1
    deaths = [-event for event in order.events if event < 0]
    assert len(set(deaths)) == len(deaths)


def test_the_inputs_of_all_micro_batches_are_held_from_the_load_to_the_end() -> None:
    tape = step()
    sizes = [block.size for block in tape.blocks]
    one = with_steps(tape)
    many = with_inputs(one, tape.blocks, 5)
    assert with_inputs(one, tape.blocks, 1) == one
    before, after = (outline_of(order).peaks(sizes) for order in (one, many))
    assert {at: peak.size for at, peak in after.items()} == {
        at: peak.size + 4 * 12 for at, peak in before.items()
    }
    born = [many.origin[event - 1] for event in many.events if event > 0][1:11]
    assert born == [1, 2] * 5  # one micro-batch after the other
    assert [(moment, phase) for _, moment, phase in many.windows] == [
        (moment, phase) for _, moment, phase in one.windows
    ]
    final = made_of(many, sizes, tape.blocks, len(many.events) - 1)
    assert final[1] == final[2] == 5
