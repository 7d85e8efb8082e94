"""One answer to what fits: the same usable memory, context and smallest card everywhere."""

from __future__ import annotations

from pathlib import Path

import pytest

from oomdoctor.analysis.fit import (
    USUAL_HEADROOM,
    capability,
    headroom_bytes,
    smallest_card,
    usable_bytes,
)
from oomdoctor.runs.devices.cards import card_named, card_that_holds
from oomdoctor.system import catalogue
from oomdoctor.units import GIB, MIB


@pytest.mark.parametrize("name", ["RTX A4500", "L4", "H100 PCIe"])
def test_the_smallest_card_is_one_that_a_plan_says_is_enough(name: str) -> None:
    """`run` named cards without the headroom that `plan` then missed."""
    card = card_named(name, USUAL_HEADROOM)
    room = card.usable_bytes - card.context.likely
    fits, misses = card_that_holds(lambda r: r >= room), card_that_holds(lambda r: r > room + MIB)
    assert fits is not None and fits.usable_bytes - fits.context.likely >= room
    assert misses is not None and misses.usable_bytes - misses.context.likely > room
    assert misses.name != name


def test_several_ranks_need_room_for_nccl() -> None:
    card = card_named("L4", USUAL_HEADROOM)
    room = card.usable_bytes - card.context.likely
    alone = card_that_holds(lambda r: r >= room, least=(8, 9))
    shared = card_that_holds(lambda r: r >= room, least=(8, 9), ranks=2)
    assert alone is not None and shared is not None
    assert alone.total_bytes < shared.total_bytes


def test_a_card_of_another_vendor_is_only_for_its_own(tmp_path: Path) -> None:
    found = smallest_card(catalogue.gpus(), lambda room: room > 150 * GIB, vendor="AMD")
    assert found is not None and found.vendor == "AMD"
    assert smallest_card(catalogue.gpus(), lambda room: room > 10**14) is None


def test_the_headroom_is_a_share_of_what_is_there() -> None:
    l4 = catalogue.find_gpu("L4")
    assert l4 is not None
    card = card_named("L4", 0.05)
    assert usable_bytes(l4, 0.05) == card.usable_bytes
    assert card.total_bytes - card.usable_bytes == headroom_bytes(card.total_bytes, 0.05)


def test_capabilities_compare_as_numbers() -> None:
    assert capability("10.0") > capability("8.9") > capability(None)
