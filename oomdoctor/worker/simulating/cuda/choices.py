"""What CUDA chooses for one card during a recording, and for which other cards it does the same.

Cards differ in their attention kernels, in the memory that some kernels take while they run, and in
the size of the cuBLAS workspaces. Cards that differ only in their workspaces share a recording.
"""

from __future__ import annotations

from collections.abc import Iterable

from oomdoctor.analysis.simulator.card import Card
from oomdoctor.worker.simulating.cuda import attention
from oomdoctor.worker.simulating.cuda import kernel_rules as kernels
from oomdoctor.worker.simulating.cuda.attention_choice import choose_backend
from oomdoctor.worker.simulating.cuda.flex import kept_of
from oomdoctor.worker.simulating.cuda.host_numbers import HostNumbers
from oomdoctor.worker.simulating.cuda.workspaces import workspaces_of
from oomdoctor.worker.tracing.calls import OperatorCall
from oomdoctor.worker.tracing.steps import Lasting, OnHost, Passing, Step


class Choices:
    """Chooses for `card`, and keeps in `alike` the cards that would get the same answers.

    Invariant: `card` is in `alike`. `numbers` knows which ones are on the host.
    """

    def __init__(self, cards: Iterable[Card]) -> None:
        self.cards = tuple(dict.fromkeys(cards))
        self.card = self.cards[0]
        self.alike = set(self.cards)
        self.numbers = HostNumbers()

    def begin(self, card: Card) -> None:
        """Begin a recording for this card."""
        self.card = card
        self.alike = set(self.cards)

    def attention(self, call: attention.Call) -> attention.Backend:
        """The attention kernel of a call."""
        chosen = choose_backend(call, self.card)
        self._keep(card for card in self._others if choose_backend(call, card) == chosen)
        return chosen

    def steps(self, call: OperatorCall) -> tuple[Step, ...]:
        """What a kernel does with memory while it runs, see `kernels`."""
        if self.numbers.makes_one(call):
            return (OnHost(0),)
        steps = kernels.steps_of(call, self.card)
        if kernels.differs_by_card(call.func):
            self._keep(card for card in self._others if kernels.steps_of(call, card) == steps)
        return steps

    def workspaces(self, call: OperatorCall) -> tuple[Lasting | Passing, ...]:
        """The cuBLAS workspaces that an operator needs, and what a compiler keeps of its inputs.

        Their names are those of all cards.
        """
        return (*workspaces_of(call, self.card), *kept_of(call))

    @property
    def _others(self) -> set[Card]:
        return self.alike - {self.card}

    def _keep(self, cards: Iterable[Card]) -> None:
        self.alike = {self.card, *cards}
