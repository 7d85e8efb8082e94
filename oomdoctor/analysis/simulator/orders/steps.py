"""Steps that were not recorded, made from the one that was.

`with_second_micro_step` adds gradient accumulation to a tape. `with_steady_step` appends the step
in which the optimizer states already exist to an order. `with_inputs` adds the inputs of the other
micro-batches: a Trainer moves all of them to the device before the first micro-step.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType

from oomdoctor.analysis.memory.curve import spans
from oomdoctor.analysis.simulator.tape import EMPTIED, Order, Tape, TapeBlock
from oomdoctor.records.facts.categories import GRADIENTS, INPUTS, OPTIMIZER, TEMPORARY


def with_second_micro_step(tape: Tape, taken: Mapping[int, int]) -> Tape:
    """The tape of a step with two micro-steps, from a tape with one.

    The second does what the first did, but its gradients are added to the existing ones: `taken`
    has, for the block of each gradient, the event before which it is added and dies. A copy of a
    block that outlives the micro-step dies with the original; a block that is never freed is not
    copied, unless it is carried over: then the second micro-step frees the original.
    """
    windows = [span for span in spans(tape.windows, len(tape.events)) if span[2] == "first"]
    start, end = windows[0][0], windows[1][1]
    deaths = {-event for event in tape.events if event < 0}
    due: dict[int, list[int]] = {}
    for block, position in taken.items():
        due.setdefault(position, []).append(block + 1)
    double = Tape(blocks=list(tape.blocks), carried=dict(tape.carried))
    left_in = {left: begun for begun, left in tape.carried.items()}
    copies: dict[int, int] = {}  # event of a birth -> index of the copy
    entered: dict[int, list[tuple[str, str]]] = {}
    for position, step, phase in tape.windows:
        entered.setdefault(position, []).append((step, phase))

    def second() -> None:
        for position in range(start, end + 1):
            for birth in due.get(position, ()):
                if birth in copies:
                    double.died(copies.pop(birth), tape.blocks[birth - 1].region)
            if position == end:
                return
            for step, phase in entered.get(position, ()):
                if step == "first":  # a window without events may begin there too
                    double.enter(step, phase)
            event, region = tape.events[position], tape.regions[position]
            if event < 0:
                if -event in copies:
                    double.died(copies.pop(-event), region)
                elif -event - 1 in tape.carried:
                    double.died(tape.carried[-event - 1], region)
            elif event - 1 in left_in:
                left = double.born(tape.blocks[event - 1], region)
                double.carried[left_in[event - 1]] = left
            elif event - 1 in taken:
                copied = replace(tape.blocks[event - 1], category=TEMPORARY)
                copies[event] = double.born(copied, region)
            elif event in deaths:
                copies[event] = double.born(tape.blocks[event - 1], region)

    for position, (event, region) in enumerate(zip(tape.events, tape.regions, strict=True)):
        if position == end:
            second()
        for window in entered.get(position, ()):
            double.enter(*window)
        double.events.append(event)
        double.regions.append(region)
        if position >= end and -event in copies:
            double.died(copies.pop(-event), region)
    return double


_BATCH = "batch"  # the window in which a step makes what its first micro-step needs


def with_steady_step(
    order: Order, blocks: list[TapeBlock], carried: Mapping[int, int] = MappingProxyType({})
) -> Order:
    """The order, followed by its training step again, now with existing optimizer states.

    A block that is never freed is not made again, except gradients, which `zero_grad` frees, and
    what is carried over (`Tape.carried`): the steady step frees what the first one left. What a
    step makes before its first micro-step is in the phase before it, as in a measurement: the load,
    or the end of the first step.
    """
    src = order.origin
    immortal = set(range(1, len(src) + 1)).difference([-e for e in order.events if e < 0])
    again = [blocks[source].category != OPTIMIZER for source in range(len(blocks))]
    made = [False, *map(again.__getitem__, src)]  # by block: whether it is made again
    for block in immortal:
        source = src[block - 1]
        kept = blocks[source].category == GRADIENTS or source in carried.values()
        made[block] = made[block] and kept
    left = {source: block for block, source in enumerate(src, 1) if source in carried.values()}
    heirs = [left.get(carried.get(source, -1), 0) for source in src]
    for block, heir in enumerate(heirs, 1):
        made[block] = made[block] and not heir
    events, origin = list(order.events), list(src)
    load = order.windows[0][1:]
    windows = [(w[0], *(load if w[1] in (_BATCH, EMPTIED) else w[1:])) for w in order.windows]
    emptied = [start for start, step, _ in order.windows if step == EMPTIED]
    repeats = list(order.repeats)
    renamed = [0] * (len(src) + 1)

    def repeat(start: int, end: int) -> None:
        for event in order.events[start:end]:
            if event < 0:
                freed = renamed[-event] or heirs[-event - 1]
                if freed:
                    events.append(-freed)
            elif made[event]:
                origin.append(src[event - 1])
                renamed[event] = len(origin)
                events.append(len(origin))

    for start, end, step, phase in spans(order.windows, len(order.events)):
        if step not in (_BATCH, "first"):
            continue
        window = order.windows[-1][1:] if step == _BATCH else ("steady", phase)
        windows.append((len(events), *window))
        for first, length, times in order.repeats:
            if not start <= first < end:
                continue
            repeat(start, first)
            before, start = len(events), first + length * times
            repeat(first, start)
            repeats.append((before, (len(events) - before) // times, times))
        repeat(start, end)
    return Order(events, origin, windows, repeats, emptied)


def with_inputs(order: Order, blocks: Sequence[TapeBlock], micro_batches: int) -> Order:
    """The order with the inputs of so many micro-batches, held until the end.

    The new blocks have the highest numbers.
    """
    births = [
        position
        for position, event in enumerate(order.events)
        if event > 0 and blocks[order.origin[event - 1]].category == INPUTS
    ]
    more = micro_batches - 1
    if not births or more < 1:
        return order
    sources = [order.origin[order.events[position] - 1] for position in births]
    at, first = births[-1] + 1, len(order.origin) + 1
    count = more * len(sources)

    def moved(position: int) -> int:
        return position + count if position >= at else position

    events = [*order.events[:at], *range(first, first + count), *order.events[at:]]
    windows = [(moved(start), step, phase) for start, step, phase in order.windows]
    repeats = [(moved(start), length, times) for start, length, times in order.repeats]
    repeats = sorted([*repeats, (at, len(sources), more)])
    emptied = [moved(start) for start in order.emptied]
    return Order(events, order.origin + sources * more, windows, repeats, emptied)
