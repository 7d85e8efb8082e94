"""The inputs of all micro-batches of a step, from an order with those of one.

A Trainer moves all of them to the device before the first micro-step, one after the other.
"""

from __future__ import annotations

from collections.abc import Sequence

from oomdoctor.analysis.simulator.tape import Order, TapeBlock


def with_inputs(
    order: Order, blocks: Sequence[TapeBlock], inputs: str, micro_batches: int
) -> Order:
    """The order with the inputs of so many micro-batches, held until the end.

    `inputs` is the category of the blocks that each of them has. The new blocks have the highest
    numbers.
    """
    births = [
        position
        for position, event in enumerate(order.events)
        if event > 0 and blocks[order.origin[event - 1]].category == inputs
    ]
    more = micro_batches - 1
    if not births or more < 1:
        return order
    sources = [order.origin[order.events[position] - 1] for position in births]
    at, first = births[-1] + 1, len(order.origin) + 1
    count = more * len(sources)

    def moved(position: int) -> int:
        return position + count if position >= at else position

    return Order(
        [*order.events[:at], *range(first, first + count), *order.events[at:]],
        order.origin + sources * more,
        [(moved(start), step, phase) for start, step, phase in order.windows],
        sorted(
            [
                *((moved(start), length, times) for start, length, times in order.repeats),
                (at, len(sources), more),
            ]
        ),
        [moved(start) for start in order.emptied],
    )
