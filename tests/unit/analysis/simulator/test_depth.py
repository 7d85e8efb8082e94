"""A tape of few layers, extended, is the tape of many layers."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest

from oomdoctor.analysis.simulator.depth import IrregularError, extend
from oomdoctor.analysis.simulator.tape import Region, Tape, TapeBlock

MIB = 1024**2


@dataclass
class Step:
    """Writes the tape of a training step of a made-up model with `layers` layers."""

    layers: int
    tape: Tape = field(default_factory=Tape)
    odd: int | None = None  # a layer that keeps one block more than the others

    def birth(self, size: int, name: str, layer: int | None, category: str = "activations") -> int:
        region: Region | None = None if layer is None else (0, layer)
        return self.tape.born(TapeBlock(size, category, name, name, region), region)

    def death(self, block: int, layer: int | None) -> None:
        self.tape.died(block, None if layer is None else (0, layer))

    def run(self) -> Tape:
        tape = self.tape
        tape.enter("load", "load")
        weights = [self.birth(3 * MIB, "weight", layer, "weights") for layer in range(self.layers)]
        tape.enter("first", "forward")
        hidden = self.birth(MIB, "embedding", None)
        saved: list[list[int]] = []
        for layer in range(self.layers):
            normed = self.birth(MIB // 2, "norm", layer)
            out = self.birth(MIB, "add", layer)
            kept = [normed, hidden]
            if layer == self.odd:
                kept.append(self.birth(7, "odd", layer))
            temporary = self.birth(5 * MIB, "gate", layer)
            self.death(temporary, layer)
            saved.append(kept)
            hidden = out
        loss = self.birth(4, "loss", None)
        tape.enter("first", "backward")
        gradient = self.birth(MIB, "seed", None, "temporary")
        gradients: list[int] = []
        for layer in reversed(range(self.layers)):
            gradients.append(self.birth(3 * MIB, "mm", layer, "gradients"))
            below = self.birth(MIB, "mm", layer, "temporary")
            self.death(gradient, layer)
            for block in saved[layer]:
                self.death(block, layer)
            gradient = below
        self.death(gradient, None if self.layers == 0 else 0)
        self.death(hidden, None)
        tape.enter("first", "optimizer")
        for layer, _ in enumerate(weights):
            self.birth(6 * MIB, "zeros_like", layer, "optimizer")
        roots = [self.birth(3 * MIB, "sqrt", layer, "temporary") for layer in range(self.layers)]
        for layer, root in enumerate(roots):
            self.death(root, layer)
        for position, block in enumerate(gradients):
            self.death(block, self.layers - 1 - position)
        self.death(loss, None)
        return tape


def written(events: list[int], blocks: list[TapeBlock], origin: list[int]) -> list[int]:
    """Sizes with their sign: what an allocator sees."""
    return [(1 if event > 0 else -1) * blocks[origin[abs(event) - 1]].size for event in events]


@pytest.mark.parametrize("layers", [5, 6, 9, 33])
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
