"""Large tensors of the host keep no values under the mode; small ones and ids are computed."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from oomdoctor.worker.measuring.meters import peak_rss_bytes
from oomdoctor.worker.ranks.alone import idle_host

LARGE = 1 << 20  # elements
HUGE = 1 << 30  # elements: 4 GiB, and as much for each result


@pytest.fixture(autouse=True)
def idle() -> Iterator[None]:
    with idle_host():
        yield


def test_small_tensors_are_computed() -> None:
    ones = torch.ones(3)
    assert (ones + 2 * torch.full((3,), 2.0)).tolist() == [5.0, 5.0, 5.0]
    ones.mul_(4)
    assert ones.sum() == 12


def test_results_have_the_shape_and_type_that_they_would_have() -> None:
    large = torch.zeros(LARGE, 2, dtype=torch.float16)
    assert large.t().float().shape == (2, LARGE)
    assert large.float().dtype == torch.float32
    assert torch.ones_like(large).shape == large.shape
    assert large.sum().shape == ()
    assert [one.shape for one in torch._foreach_sqrt([large, large])] == [large.shape] * 2


def test_an_operator_in_place_writes_nothing() -> None:
    large = torch.empty(LARGE)
    before = large[:3].tolist()
    assert large.add_(1) is large
    assert large[:3].tolist() == before


def test_what_control_flow_reads_is_computed() -> None:
    positions = torch.arange(LARGE).expand(1, -1).contiguous()
    assert (positions.diff() == 1).all()
    assert torch.ones_like(positions).sum() == LARGE


def test_an_update_takes_no_memory() -> None:
    before = peak_rss_bytes()
    weight = torch.nn.Parameter(torch.empty(HUGE))
    weight.grad = torch.empty(HUGE)
    optimizer = torch.optim.AdamW([weight], foreach=True)
    optimizer.step()
    assert optimizer.state[weight]["exp_avg"].shape == (HUGE,)
    assert peak_rss_bytes() - before < 1 << 30
