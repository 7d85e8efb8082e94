"""The search for the fewest GPUs: peak = a part that all hold + a part that is split."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from oomdoctor.analysis.search.fewest_gpus import FewestGpus
from oomdoctor.records.report.searched import GpuTry

USABLE = 80


def search(
    peak: Callable[[int], int],
    bound: Callable[[int], int],
    *,
    high: int = 64,
    low: int = 1,
    split: bool = True,
) -> FewestGpus:
    found = FewestGpus(range(low, high + 1), USABLE, bound, split)
    while (gpus := found.next_try()) is not None:
        assert gpus not in found.tries and low <= gpus <= high
        needs = peak(gpus)
        missed = needs - USABLE if needs > USABLE else None
        found.take(GpuTry(gpus, missed is None, needs, missed))
    return found


@pytest.mark.parametrize("shared", [60, 200, 600, 1128, 3000])
@pytest.mark.parametrize("fixed", [0, 5, 33])
def test_the_answer_fits_and_one_fewer_does_not(shared: int, fixed: int) -> None:
    def peak(gpus: int) -> int:
        return fixed + -(-shared // gpus)

    found = search(peak, lambda gpus: shared // gpus)
    right = next((n for n in range(1, 65) if peak(n) <= USABLE), None)
    assert found.fewest == right
    assert len(found.tries) <= 5
    if right is not None and right > 1:
        assert right - 1 in found.tries or shared // (right - 1) > USABLE


def test_a_bound_that_knows_only_half_still_leads_there() -> None:
    found = search(lambda gpus: 20 + 1000 // gpus, lambda gpus: 500 // gpus)
    assert found.fewest == 17
    assert not found.tries[16].fits
    assert len(found.tries) <= 5


def test_nothing_runs_if_the_bound_is_too_high_everywhere() -> None:
    found = search(lambda gpus: 0, lambda gpus: 10_000 // gpus, high=64)
    assert (found.fewest, found.tries) == (None, {})


def test_what_no_number_makes_fit_is_tried_on_the_largest() -> None:
    found = search(lambda gpus: 90 + 100 // gpus, lambda gpus: 100 // gpus)
    assert found.fewest is None
    assert max(found.tries) == 64
    assert len(found.tries) <= 3


def test_what_is_not_split_is_tried_once() -> None:
    for needs, fewest in ((79, 2), (81, None)):
        found = search(lambda gpus, needs=needs: needs, lambda gpus: 1, low=2, split=False)
        assert (found.fewest, list(found.tries)) == (fewest, [2])


def test_tries_without_a_peak_are_halved() -> None:
    found = FewestGpus(range(1, 65), USABLE, lambda gpus: 1)
    while (gpus := found.next_try()) is not None:
        found.take(GpuTry(gpus, gpus >= 23, None, None))
    assert found.fewest == 23
