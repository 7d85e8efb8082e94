"""What a rung needs of a card: the compute capability of its attention and of FP8 products."""

from __future__ import annotations

from oomdoctor.records.config import TrainConfig
from oomdoctor.records.facts.attention import lacks_capability

FP8_CAPABILITY = (8, 9)  # torch._scaled_mm: Ada, Hopper and later


def card_lacks(config: TrainConfig, capability: str | None) -> str | None:
    """Why a GPU of this compute capability cannot run a rung; None if it can.

    If the capability is unknown, it is assumed to be enough.
    """
    lacking = lacks_capability(config.attention, capability)
    if lacking is not None or config.fp8 == "none" or capability is None:
        return lacking
    if tuple(map(int, capability.split("."))) >= FP8_CAPABILITY:
        return None
    return f"fp8 needs compute capability 8.9 or higher; this card has {capability}; use fp8 = none"
