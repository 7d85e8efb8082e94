"""The size of the cuBLAS workspaces, and the kind of a card."""

from __future__ import annotations

from oomdoctor.analysis.simulator.card import Card, card_of, card_of_capability, workspace_bytes
from oomdoctor.records.job.simulation import Target

MIB = 1024**2


def test_blackwell_has_32_mib_from_torch_2_12_on() -> None:
    card = card_of_capability("10.0")
    assert workspace_bytes(card, (2, 11), "") == 8519680
    assert workspace_bytes(card, (2, 12), "") == 32 * MIB


def test_the_workspace_can_be_configured() -> None:
    assert workspace_bytes(Card((8, 0)), (2, 13), ":4096:8:16:2") == 32 * MIB + 32 * 1024


def test_an_unknown_card_is_like_an_a100() -> None:
    assert card_of(None) == card_of(Target("24 GiB", 1, 1, 0, None)) == Card((8, 0))
