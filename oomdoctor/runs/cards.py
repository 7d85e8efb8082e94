"""The devices a plan is made for: published cards by name, or a bare size."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass

from oomdoctor.analysis.overhead import Range, context_bytes, device_total_bytes
from oomdoctor.records.machine import GpuFacts
from oomdoctor.records.plan import PlanRequest
from oomdoctor.records.simulation import Target
from oomdoctor.system import catalogue
from oomdoctor.units import format_bytes, parse_size

# Kernels, and with them workspaces, are those of an A100 where no card is named.
_USUAL_CAPABILITY = "8.0"
# Compute capabilities for which PyTorch chooses the same kernels with the same workspaces: what it
# asks for is 7.0, 8.0, shared memory of 8.0 and 9.0, cuDNN's attention (9.0, 10.x) and the major.
_SAME_KERNELS = {
    "6.1": "6.0",
    "7.5": "7.0",
    "8.7": "8.6",
    "8.9": "8.6",
    "10.3": "10.0",
    "12.1": "12.0",
}


@dataclass(frozen=True, slots=True)
class Card:
    """A device to predict for, in bytes; `facts` is None for a bare size."""

    name: str
    facts: GpuFacts | None
    memory_bytes: int
    total_bytes: int
    total_source: str
    headroom_bytes: int
    context: Range

    @property
    def usable_bytes(self) -> int:
        """What a rung may use, context included."""
        return self.total_bytes - self.headroom_bytes

    @property
    def kernels(self) -> str:
        """Cards with the same word run the same kernels, so one simulation tells all of them."""
        return _SAME_KERNELS.get(self.capability, self.capability)

    @property
    def capability(self) -> str:
        """The compute capability that is assumed."""
        known = self.facts.compute_capability if self.facts else None
        return known or _USUAL_CAPABILITY

    def target(self) -> Target:
        """What the worker has to know of the card."""
        return Target(
            name=self.name,
            total_bytes=self.total_bytes,
            usable_bytes=self.usable_bytes,
            overhead_bytes=self.context.likely,
            gpu=self.facts,
        )


def cards_of(plan: PlanRequest, headroom: float) -> tuple[Card, ...]:
    """The devices of a plan, the smallest memory first; `headroom` is a share of the total.

    Raises:
        ValueError: a name is neither a known card nor a size.
    """
    if plan.all_gpus:
        known = [facts for facts in catalogue.gpus() if facts.vendor == "NVIDIA"]
        cards = [_card(facts, headroom) for facts in known]
    else:
        cards = [card_named(name, headroom) for name in plan.gpus]
    unique = {card.name: card for card in cards}
    return tuple(sorted(unique.values(), key=lambda card: (card.memory_bytes, card.total_bytes)))


def card_named(text: str, headroom: float) -> Card:
    """The card of that name or alias, or a device of that size: `24GiB` has a unit, `4090` none.

    Raises:
        ValueError: it is neither; the nearest names are told.
    """
    stripped = text.strip()
    if not stripped.isdigit():
        with suppress(ValueError):
            return _sized(parse_size(stripped), headroom)
    facts = catalogue.find_gpu(stripped)
    if facts is not None:
        return _card(facts, headroom)
    nearest = catalogue.nearest_gpus(stripped)
    meant = f"the nearest names: {', '.join(nearest)}" if nearest else "`oomdoctor gpus` lists them"
    raise ValueError(f"{text!r} is neither a known card nor a size such as 24GiB; {meant}")


def _card(facts: GpuFacts, headroom: float) -> Card:
    total, source = device_total_bytes(facts)
    return Card(
        name=facts.name,
        facts=facts,
        memory_bytes=facts.memory_bytes,
        total_bytes=total,
        total_source=source,
        headroom_bytes=round(total * headroom),
        context=context_bytes(facts),
    )


def _sized(size: int, headroom: float) -> Card:
    return Card(
        name=format_bytes(size),
        facts=None,
        memory_bytes=size,
        total_bytes=size,
        total_source="as asked for",
        headroom_bytes=round(size * headroom),
        context=context_bytes(None),
    )
