"""The tape of a training step of a made-up model with as many layers as wanted."""

from __future__ import annotations

from dataclasses import dataclass, field

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
