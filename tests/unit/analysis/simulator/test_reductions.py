"""The scratch of sums over rows, against what torch 2.12.1 allocates on the emulated cards."""

from __future__ import annotations

import pytest

from oomdoctor.analysis.simulator.reductions import RowSum, held_threads, scratch_bytes

A100, RTX_4090 = (8, 0), (8, 9)


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
