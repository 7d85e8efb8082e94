"""A layout of a simulated step, small enough to follow by hand."""

from __future__ import annotations

from oomdoctor.analysis.simulator.orders.outline import outline_of
from oomdoctor.analysis.simulator.playback import Layout
from oomdoctor.analysis.simulator.tape import Tape, TapeBlock, plain_order


def layout(steps: int = 1) -> Layout:
    """A load, then steps with two layers: activations, then gradients from last to first."""
    tape = Tape()
    tape.enter("first", "load")
    tape.born(TapeBlock(1000, "weights"), None)
    tape.born(TapeBlock(7, "temporary"), None)  # a workspace that stays
    for number in range(steps):
        step = "first" if number < steps - 1 else "steady"
        tape.enter(step, "forward")
        low = tape.born(TapeBlock(100, "activations"), None)
        scratch = tape.born(TapeBlock(60, "temporary"), None)
        tape.died(scratch, None)
        high = tape.born(TapeBlock(40, "activations"), None)
        tape.enter(step, "backward")
        gradients = [tape.born(TapeBlock(20, "gradients"), None)]
        tape.died(high, None)
        scratch = tape.born(TapeBlock(10, "temporary"), None)
        tape.died(scratch, None)
        gradients.append(tape.born(TapeBlock(30, "gradients"), None))
        tape.died(low, None)
        tape.enter(step, "optimizer")
        tape.born(TapeBlock(500, "optimizer"), None)
        for block in gradients:
            tape.died(block, None)
    order = plain_order(tape)
    return Layout(order, outline_of(order), tape.blocks, [block.size for block in tape.blocks])
