"""What CUDA chooses for one card while a step is recorded, and which other cards choose the same.

Cards differ in their attention kernels, in what some kernels take while they run, and in the size
of the cuBLAS workspaces. A recording serves every card of which only the last differs.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from oomdoctor.worker.simulating.cuda import attention, kernels
from oomdoctor.worker.simulating.cuda.kernels import Card


class Choices:
    """Answers for `card`, and keeps in `alike` the cards that would have had the same answers.

    Invariant: `card` is in `alike`.
    """

    def __init__(self, cards: Iterable[Card]) -> None:
        self.cards = tuple(dict.fromkeys(cards))
        self.begin(self.cards[0])

    def begin(self, card: Card) -> None:
        """A new recording, for this card."""
        self.card = card
        self.alike = set(self.cards)

    def attention(self, call: attention.Call) -> attention.Backend:
        """The attention kernel of a call."""
        choose = attention.choose_backend
        chosen = choose(call, self.card)
        self._keep(card for card in self._others if choose(call, card) == chosen)
        return chosen

    def hidden(self, func: Any, args: Any, kwargs: Any, result: Any) -> tuple[int, ...]:
        """Bytes of the blocks that a kernel holds while it runs, see `cuda_kernels`."""
        if not kernels.has_rule(func):
            return ()
        found = kernels.hidden_blocks(func, args, kwargs, result, self.card)
        self._keep(
            card
            for card in self._others
            if kernels.hidden_blocks(func, args, kwargs, result, card) == found
        )
        return found

    def workspace(self, func: Any) -> tuple[str, int] | None:
        """The cuBLAS workspace of an operator: its name, the same for all cards, and its bytes."""
        return kernels.lasting_workspace(func, self.card)

    @property
    def _others(self) -> set[Card]:
        return self.alike - {self.card}

    def _keep(self, cards: Iterable[Card]) -> None:
        self.alike = {self.card, *cards}


def workspaces(card: Card) -> Mapping[str, int]:
    """Bytes of each cuBLAS workspace of a card, by the name it has on a tape."""
    return dict.fromkeys(kernels.WORKSPACES, kernels.workspace_bytes(card))
