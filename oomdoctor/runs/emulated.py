"""From CARD, SIZE or NxCARD to the GPUs of an emulation."""

from __future__ import annotations

from dataclasses import dataclass

from oomdoctor.emulator.card import Card as EmulatedCard
from oomdoctor.emulator.card import Devices, split_count
from oomdoctor.runs.plan.cards import Card, card_named


@dataclass(frozen=True, slots=True)
class EmulatedGpus:
    """Some GPUs of one kind: the card as `plan` knows it, and how many there are."""

    card: Card
    count: int

    @property
    def name(self) -> str:
        """The name to show: `8 x NVIDIA H100 80GB HBM3`."""
        return self.card.name if self.count == 1 else f"{self.count} x {self.card.name}"


def emulated_gpus(text: str) -> EmulatedGpus:
    """The GPUs that `--emulate` names.

    Raises:
        ValueError: the card is unknown, or the number is 0 or above 64.
    """
    count, name = split_count(text)
    card = card_named(name, 0.0)
    if card.facts is not None and card.facts.vendor != "NVIDIA":
        raise ValueError(f"{card.name} is not an NVIDIA card, so it cannot be emulated")
    return EmulatedGpus(card, count)


def devices_of(gpus: EmulatedGpus) -> Devices:
    """The GPUs as the emulator takes them; memory as torch reports it."""
    card, facts = gpus.card, gpus.card.facts
    major, minor = (int(part) for part in card.capability.split("."))
    emulated = EmulatedCard(
        name=card.name,
        capability=(major, minor),
        total_bytes=card.total_bytes,
        nvml_total_bytes=max(card.total_bytes, (facts and facts.total_bytes) or 0),
        context_bytes=card.context.likely,
        multiprocessors=facts.multiprocessors if facts else None,
        l2_bytes=facts.l2_bytes if facts else None,
        bus_bits=facts.memory_bus_bits if facts else None,
    )
    return Devices(emulated, count=gpus.count)
