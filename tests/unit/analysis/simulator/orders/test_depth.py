"""A tape of few layers, extended, is the tape of many layers."""

from __future__ import annotations

import pytest
from layered_step import Step

from oomdoctor.analysis.simulator.orders.depth import IrregularError, extend
from oomdoctor.analysis.simulator.tape import TapeBlock


def written(events: list[int], blocks: list[TapeBlock], origin: list[int]) -> list[int]:
    """Sizes with their sign: what an allocator sees."""
    return [(1 if event > 0 else -1) * blocks[origin[abs(event) - 1]].size for event in events]


@pytest.mark.parametrize("layers", [5, 6, 7, 8, 9, 10, 33])
@pytest.mark.parametrize("simulated", [4, 5])
def test_the_extended_tape_is_the_deep_tape(layers: int, simulated: int) -> None:
    shallow, deep = Step(simulated).run(), Step(layers).run()
    order = extend(shallow, {0: (simulated, layers)})
    assert written(order.events, shallow.blocks, order.origin) == written(
        deep.events, deep.blocks, list(range(len(deep.blocks)))
    )
    assert order.windows == deep.windows


def test_each_death_is_of_the_block_that_dies_there_in_the_deep_tape() -> None:
    order = extend(Step(4).run(), {0: (4, 8)})
    # Blocks are numbered in the order of their birth, as on a tape: the same events, exactly.
    assert order.events == Step(8).run().events


def test_an_odd_middle_layer_is_noticed() -> None:
    with pytest.raises(IrregularError, match="differ"):
        extend(Step(4, odd=2).run(), {0: (4, 9)})


@pytest.mark.parametrize("odd", [0, 3])
def test_the_first_and_the_last_layer_may_be_odd(odd: int) -> None:
    order = extend(Step(4, odd=odd).run(), {0: (4, 9)})
    assert order.events == Step(9, odd=0 if odd == 0 else 8).run().events


def test_a_block_of_the_whole_model_that_dies_within_a_middle_layer_is_noticed() -> None:
    tape = Step(4).run()
    place = next(
        i
        for i, (event, region) in enumerate(zip(tape.events, tape.regions, strict=True))
        if region == (0, 1) and tape.blocks[abs(event) - 1].operator == "mm"
    )
    loss = next(i for i, block in enumerate(tape.blocks) if block.operator == "loss")
    last = tape.events.index(-(loss + 1))
    del tape.events[last], tape.regions[last]
    tape.events.insert(place, -(loss + 1))
    tape.regions.insert(place, (0, 1))
    with pytest.raises(IrregularError, match="outside the layers"):
        extend(tape, {0: (4, 9)})


def test_births_in_some_middle_layers_only_are_noticed() -> None:
    tape = Step(4).run()
    tape.born(TapeBlock(9, "temporary", "late", "", (0, 2)), (0, 2))
    with pytest.raises(IrregularError, match="only some"):
        extend(tape, {0: (4, 9)})


def test_a_stack_at_its_real_depth_is_left_as_it_is() -> None:
    tape = Step(4).run()
    assert extend(tape, {0: (4, 4)}).events == tape.events
