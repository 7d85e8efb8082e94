"""The kind of a card, its cuBLAS workspaces, and the scratch of sums over rows on it.

The scratch is what torch 2.12.1 allocates on the emulated cards.
"""

from __future__ import annotations

import pytest

from oomdoctor.analysis.simulator.card import (
    RowSum,
    card_of,
    held_threads,
    scratch_bytes,
    workspace_bytes,
)
from oomdoctor.records.capability import capability_numbers
from oomdoctor.records.job.simulation import Target

A100, RTX_4090 = (8, 0), (8, 9)
MIB = 1024**2


def test_blackwell_has_32_mib_from_torch_2_12_on() -> None:
    card = capability_numbers("10.0")
    assert workspace_bytes(card, (2, 11), "") == 8519680
    assert workspace_bytes(card, (2, 12), "") == 32 * MIB


def test_the_workspace_can_be_configured() -> None:
    assert workspace_bytes((8, 0), (2, 13), ":4096:8:16:2") == 32 * MIB + 32 * 1024


def test_an_unknown_card_is_like_an_a100() -> None:
    assert card_of(None) == card_of(Target("24 GiB", 1, 1, 0, None)) == (8, 0)


@pytest.mark.parametrize(
    ("results", "terms", "vector", "item", "partial", "capability", "wanted"),
    [
        (576, 2048, 4, 2, 4, A100, (9_437_184, 20)),
        (4864, 2048, 4, 2, 4, A100, (79_691_776, 152)),
        (2048, 16384, 4, 2, 4, A100, (113_246_208, 64)),
        (8192, 2048, 4, 2, 4, A100, (113_246_208, 256)),
        (151936, 128, 4, 2, 4, A100, (0, 0)),
        # Above 2 GiB it is summed in two halves.
        (151936, 4096, 4, 4, 4, A100, (155_582_464, 4748)),
        (151936, 4096, 4, 4, 4, RTX_4090, (155_582_464, 4748)),
    ],
)
def test_the_scratch_is_what_torch_allocates(
    results: int,
    terms: int,
    vector: int,
    item: int,
    partial: int,
    capability: tuple[int, int],
    wanted: tuple[int, int],
) -> None:
    of = RowSum(results, terms, vector, item, partial)

    found = (scratch_bytes(of, capability), scratch_bytes(of._replace(semaphores=True), capability))

    assert found == wanted


def test_few_terms_need_no_scratch() -> None:
    assert scratch_bytes(RowSum(576, 32, 4, 2, 4), A100) == 0
    assert scratch_bytes(RowSum(1, 1, 1, 2, 4), A100) == 0


def test_a_capability_without_a_row_takes_the_nearest() -> None:
    assert held_threads((9, 0)) == (132, 2048)
    assert held_threads((8, 7)) in (held_threads((8, 6)), held_threads((8, 9)))
    assert held_threads((6, 1)) == held_threads((7, 0))
    assert held_threads((13, 0)) == held_threads((12, 0))
