"""What a simulated step knows of values that nobody computed."""

from __future__ import annotations

import pytest
import torch

from oomdoctor.worker.protocol import UnsupportedError
from oomdoctor.worker.simulating.device.fake import simulated_device
from oomdoctor.worker.simulating.device.known_values import positive_share


def rows(tensor: torch.Tensor) -> int:
    """Positions that `nonzero` finds in a simulation."""
    return torch.nonzero(tensor).shape[0]


def test_each_expert_of_a_loop_gets_an_even_share_of_the_tokens() -> None:
    """As MixtralSparseMoeBlock of transformers 4.51 does it."""
    with simulated_device(cuda=True):
        chosen = torch.empty(64, 2, dtype=torch.int64)
        mask = torch.nn.functional.one_hot(chosen, num_classes=8).permute(2, 1, 0)
        top, token = torch.where(mask[3])
        assert top.shape == token.shape == (64 * 2 // 8,)
        assert rows(mask) == 64 * 2
        assert torch.nonzero(mask[3]).shape == (64 * 2 // 8, 2)


def test_a_share_of_a_token_is_a_token() -> None:
    with simulated_device(cuda=True):
        mask = torch.nn.functional.one_hot(torch.empty(5, 1, dtype=torch.int64), num_classes=49)
        assert rows(mask[..., 0]) == 1


def test_a_batch_without_padding_has_no_zero() -> None:
    with simulated_device(cuda=True):
        mask = torch.ones_like(torch.empty(2, 8, dtype=torch.int64))
        assert rows(mask.flatten()) == rows(mask.bool()[:, 1:]) + 2 == 16


def test_every_label_of_a_class_counts() -> None:
    """As DeBERTa picks the rows that have a label."""
    with simulated_device(cuda=True):
        labels = torch.randint(3, (6,))
        assert rows(labels[2:] >= 0) == 4
        assert rows(labels) == 4  # of three classes one is zero
        assert rows(torch.randint(1, 3, (6,))) == 6


@pytest.mark.parametrize(
    "change",
    [
        lambda ones: ones.sub_(1),
        lambda ones: ones.view(2, 2).fill_(0),
        lambda ones: torch.add(ones, ones, out=ones),
    ],
)
def test_what_is_written_over_is_known_no_more(change: object) -> None:
    assert callable(change)
    with simulated_device(cuda=True):
        ones = torch.ones(4)
        change(ones)
        assert positive_share(ones) is None


@pytest.mark.parametrize(
    "unknown",
    [
        lambda: torch.rand(4),
        lambda: torch.randint(-1, 3, (4,)),
        lambda: torch.ones(4) - torch.ones(4),
        lambda: torch.randint(9, (4,)) >= 5,
        lambda: torch.where(torch.rand(4) < 0.5, torch.ones(4), torch.zeros(4)),
    ],
)
def test_nothing_is_guessed(unknown: object) -> None:
    assert callable(unknown)
    with simulated_device(cuda=True), pytest.raises(UnsupportedError, match="values"):
        torch.nonzero(unknown())


def test_one_hot_is_torchs_own_again() -> None:
    one_hot = torch.nn.functional.one_hot
    with simulated_device(cuda=True):
        assert torch.nn.functional.one_hot is not one_hot
    assert torch.nn.functional.one_hot is one_hot
