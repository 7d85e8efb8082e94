"""The recordings of a rung by micro-batch size, for cards that need the same ones.

A size that was not recorded lies on the line through two that were, one below it and one above.
That is exact: sizes of blocks and costs are products of dimensions, and the batch is at most one of
them. It is checked: the two recordings must have the same events and operators, and every number
must grow by a whole number a row. `HIGH` makes that a strong check, because `HIGH - LOW` is a
prime. The smallest size is recorded itself, because a tensor of one row is contiguous where
others are not. If the check fails, every size is recorded itself. So it is if a second row adds
many blocks: such a model does something for each row, or for each window of an image.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from oomdoctor.analysis.simulator.card import Card, workspaces
from oomdoctor.analysis.simulator.playback import NewStructureError, RecordedRung
from oomdoctor.analysis.simulator.recorded import Recorded, RungFacts, Store
from oomdoctor.analysis.simulator.timing import grow_evenly

LOW, HIGH = 2, 61
_MANY = 1.25  # times the blocks of one row; more are no matter of contiguous tensors
_HIGHER = (HIGH, LOW + 59 * 17, LOW + 59 * 17**2)  # for larger and larger batches

Record = Callable[[int, Card], Recorded]  # a micro-batch size and a card


def not_recorded(size: int, card: Card) -> Recorded:
    """Where there is no worker to record a size.

    Raises:
        NewStructureError: always.
    """
    raise NewStructureError(f"size {size} has not been recorded for {card}")


class Recordings:
    """Recordings made for `card`, which also hold for the cards in `alike`.

    Without `has_lines`, blocks grow with the square of the batch, so each size is recorded.
    """

    def __init__(
        self,
        facts: RungFacts,
        card: Card,
        recordings: Iterable[Recorded],
        record: Record,
        store: Store,
        *,
        has_lines: bool = True,
    ) -> None:
        self.facts, self.card, self._record = facts, card, record
        self.rung = RecordedRung(facts.depths)
        self.by_size: dict[int, Recorded] = {}
        self.alike: set[Card] | None = None
        self._store, self._has_lines = store, has_lines
        for recorded in recordings:
            if card in recorded.alike and recorded.size not in self.by_size:
                self._take(recorded, is_regular=True)

    def cards_alike(self, cards: Sequence[Card]) -> tuple[Card, ...]:
        """The first of `cards` that these recordings hold for, and those with equal scratch."""
        held = [card for card in cards if self.hold_for(card)]
        if self.rung.has_row_sums:
            return tuple(held[:1])
        return tuple(card for card in held if self.resized(card) == self.resized(held[0]))

    def hold_for(self, card: Card) -> bool:
        """Whether every recording is what this card would have given."""
        return card == self.card or (self.alike is not None and card in self.alike)

    def resized(self, card: Card) -> dict[str, int]:
        """Bytes of the blocks that differ from the tape, by operator."""
        facts = self.facts
        if not facts.as_cuda:
            return {}
        return dict(workspaces(card, facts.torch_release, facts.workspace_setting))

    def record(self, size: int) -> None:
        """Record a size that has not been recorded.

        Raises:
            NewStructureError: there is no worker.
        """
        if size not in self.by_size:
            self._take(self._record(size, self.card))

    def line(self, size: int) -> tuple[int, int]:
        """The two recordings that predict a size; what they need is recorded."""
        return self._known_line(size) or self._extended(size)

    def record_for(self, sizes: Sequence[int], *, for_later: bool = False) -> None:
        """Record what predicts these sizes; for three or more, or `for_later`, most others too."""
        if self._has_lines and (len(sizes) > 2 or for_later):
            for size in (1, LOW, HIGH):
                if self._has_lines:
                    self.record(size)
        for size in sizes:
            self.line(size)

    def _extended(self, size: int) -> tuple[int, int]:
        if not self._has_lines:
            self.record(size)
            return size, size
        high = next((high for high in _HIGHER if high >= size), None)
        if high is not None and LOW in self.by_size and high not in self.by_size and size > LOW:
            self.record(high)
        line = self._known_line(size)
        if line is None:
            self.record(size)
        return line or (size, size)

    def _known_line(self, size: int) -> tuple[int, int] | None:
        if size in self.by_size:
            return size, size
        if not self._has_lines:
            return None
        recorded = sorted(self.by_size)
        lows = [low for low in reversed(recorded) if low < size]
        highs = [high for high in recorded if high > size]
        return next(((low, high) for low in lows for high in highs if self._grow(low, high)), None)

    def _grow(self, low: int, high: int) -> bool:
        """Whether all sizes between two recorded ones lie on the line through them."""
        first, second = self.by_size[low], self.by_size[high]

        def check() -> bool:
            return (
                grow_evenly(first.costs + first.adding, second.costs + second.adding, high - low)
                and first.managed_bytes == second.managed_bytes
                and first.attention_operators == second.attention_operators
                and self.rung.is_line(low, high)
            )

        key = f"line {self._store.number(first)} {self._store.number(second)}"
        return self._store.get(key, bool, check)

    def _take(self, made: Recorded, *, is_regular: bool = False) -> None:
        self.rung.add(made.size, made.tape, made.taken, made.accumulated, is_regular=is_regular)
        self.by_size[made.size] = made
        if {1, LOW} <= self.by_size.keys():
            first, second = (len(self.by_size[size].tape.blocks) for size in (1, LOW))
            self._has_lines = self._has_lines and second <= _MANY * first
        self.alike = set(made.alike) if self.alike is None else self.alike & made.alike
