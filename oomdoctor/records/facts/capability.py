"""Whether a rung can run on a card: its contradictions, and the compute capability it needs."""

from __future__ import annotations

from oomdoctor.records.config import TrainConfig
from oomdoctor.records.facts.attention import lacks_capability
from oomdoctor.records.rung.faults import config_faults

FP8_CAPABILITY = (8, 9)  # torch._scaled_mm: Ada, Hopper and later


def cannot_run(config: TrainConfig, capability: str | None) -> str | None:
    """Why a rung cannot run on a GPU of this compute capability; None if nothing speaks against it.

    Its contradictions come before what the card does not have.
    """
    faults = "; ".join(f"{key} {what}" for key, what in config_faults(config))
    return faults or card_lacks(config, capability)


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
