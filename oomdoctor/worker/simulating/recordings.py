"""The recordings of a rung by micro-batch size, for cards that need the same ones."""

from __future__ import annotations

from collections.abc import Sequence

from oomdoctor.analysis.simulator.playback import NewStructureError, RecordedRung
from oomdoctor.worker.simulating.cuda.card import Card
from oomdoctor.worker.simulating.cuda.choices import workspaces
from oomdoctor.worker.simulating.recorded import Recorded
from oomdoctor.worker.simulating.recorder import Recorder


class Recordings:
    """Recordings made for `card`, which also hold for the cards in `alike`."""

    def __init__(self, rung: RecordedRung, recorder: Recorder, card: Card) -> None:
        self.rung, self.recorder, self.card = rung, recorder, card
        self.by_size: dict[int, Recorded] = {}
        self.alike = set(recorder.choices.cards)
        self.record(recorder.first_size())

    def cards_alike(self, cards: Sequence[Card]) -> tuple[Card, ...]:
        """The first of `cards` that these recordings hold for, and those with equal workspaces."""
        held = [card for card in cards if card in self.alike]
        return tuple(card for card in held if workspaces(card) == workspaces(held[0]))

    def record(self, size: int) -> None:
        """Record a size that has not been recorded."""
        if size in self.by_size:
            return
        made = self.recorder.record(size, self.card)
        self.by_size[size] = made
        self.alike &= made.alike
        self.rung.add(size, made.tape, made.taken)

    def line(self, size: int) -> tuple[int, int]:
        """The two recordings that predict a size; it is recorded itself if they cannot."""
        try:
            return self.rung.line(size)
        except NewStructureError:
            self.record(size)
            return size, size
