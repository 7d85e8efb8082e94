"""What small tensors hold, kept beside tensors without values."""

from __future__ import annotations

import pytest
import torch
from torch._subclasses.fake_tensor import unset_fake_temporarily

from oomdoctor.worker.protocol import UnknownValuesError
from oomdoctor.worker.tracing.real_values import ShapesOnly, know, lists_known, values_of


def known(*values: int) -> torch.Tensor:
    """A fake tensor that is known to hold these whole numbers."""
    with unset_fake_temporarily():
        real = torch.tensor(values)
    fake = torch.empty(real.shape, dtype=real.dtype)
    know(fake, real)
    return fake


def held(tensor: torch.Tensor) -> list[int]:
    values = values_of(tensor)
    assert values is not None
    with unset_fake_temporarily():
        numbers: list[int] = values.flatten().tolist()
    return numbers


@pytest.fixture(autouse=True)
def _fake() -> object:
    with ShapesOnly():
        yield


def test_what_is_computed_from_known_numbers_is_known() -> None:
    grid = known(1, 4, 6)
    assert held(grid[1:] * 2) == [8, 12]
    assert held(torch.arange(3) + grid) == [1, 5, 8]
    assert held(torch.cat([grid, grid[:1]]).reshape(2, 2)) == [1, 4, 6, 1]
    assert int(grid.max()) == 6
    assert values_of(grid + torch.empty(3)) is None


def test_lengths_by_value_are_those_of_the_numbers() -> None:
    mask = known(0, 3, 0, 3) == 3
    assert held(mask.nonzero()) == [1, 3]
    features = torch.empty(4, 7)
    assert features[mask].shape == (2, 7)
    assert torch.empty(5, 4, 7)[:, mask].shape == (5, 2, 7)
    assert held(known(1, 2, 3, 4).expand(2, 4)[:, mask]) == [2, 4, 2, 4]
    assert known(5, 6).repeat_interleave(known(2, 3)).shape == (5,)
    assert held(torch.unique_consecutive(known(1, 1, 2, 2, 1))) == [1, 2, 1]


def test_a_mask_that_is_not_known_selects_all() -> None:
    features = torch.empty(4, 7)
    assert features[torch.empty(4) > 0].shape == (4, 7)
    assert not bool((features > 0).any())
    assert int(torch.empty((), dtype=torch.int64)) == 1


def test_lists_are_made_of_known_tensors() -> None:
    grid = known(1, 4)
    with lists_known():
        assert grid.tolist() == [1, 4]
        assert held(torch.tensor([grid[0] + 1, grid[1]])) == [2, 4]


def test_a_list_of_unknown_numbers_is_refused_where_it_has_sizes() -> None:
    sizes = torch.empty(2, dtype=torch.int64)
    with lists_known():
        assert sizes.tolist() == [1, 1]
    with lists_known(lambda: True):
        assert known(3, 4).tolist() == [3, 4]
        assert torch.empty(2).tolist() == [1.0, 1.0]
        with pytest.raises(UnknownValuesError, match="a list is made of unknown numbers"):
            sizes.tolist()
        assert f"expert_{known(3, 4)[1]}" == "expert_4"
        with pytest.raises(UnknownValuesError, match="a name is made of unknown numbers"):
            f"expert_{sizes[0]}"


def test_a_router_chooses_each_expert_as_often() -> None:
    chosen = torch.empty(6, 4).topk(2, dim=1).indices
    assert held(chosen) == [0, 1, 2, 3] * 3
    assert held(torch.empty(4, 6).topk(2, dim=0).indices.t()) == [0, 1, 2, 3] * 3
    assert held(torch.empty(6, 4).argmax(dim=-1)) == [0, 1, 2, 3, 0, 1]  # Switch: one for a token
    gates = torch.zeros(6, 4).scatter(1, chosen, 1)
    with lists_known(lambda: True):
        assert gates.long().sum(0).tolist() == [3, 3, 3, 3]


def test_what_is_written_from_unknown_numbers_is_forgotten() -> None:
    grid = known(1, 4)
    grid.add_(1)
    assert held(grid) == [2, 5]
    grid.copy_(torch.empty(2, dtype=torch.int64))
    assert values_of(grid) is None


def test_large_tensors_are_not_kept() -> None:
    assert values_of(torch.arange(1 << 19)) is None
    assert values_of(known(1).expand(1 << 19)) is not None  # in a few bytes
    assert values_of(torch.randint(9, (3,))) is None
