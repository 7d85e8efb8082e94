"""How a simulated step answers code that asks whether a mask has padding."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from oomdoctor.worker.simulating.device import answers
from oomdoctor.worker.simulating.device.fake import simulated_device

# Each is whether the mask can be left out, as releases of transformers ask it.
QUESTIONS: dict[str, Callable[[torch.Tensor], object]] = {
    "4.48": lambda mask: torch.all(mask == 1),
    "4.53": lambda mask: mask.bool().all(),
    "5.23": lambda mask: mask.bool().sum() == mask.numel(),
    "5.23, flash": lambda mask: mask.bool()[:, -8:].all(),
    "5.23, later": lambda mask: (~mask.bool()[:, 2:]).sum() == 0,
    "flash": lambda mask: 0.0 not in mask,
    "any": lambda mask: not (mask == 0).any(),
    "index": lambda mask: mask[:, torch.arange(4)].bool().all(),
}


@pytest.mark.parametrize("question", QUESTIONS.values(), ids=QUESTIONS)
def test_a_mask_with_padding_is_needed(question: Callable[[torch.Tensor], object]) -> None:
    with simulated_device(cuda=True):
        mask = torch.empty(2, 8, dtype=torch.int64)
        answers.know_padded([mask])
        assert not bool(question(mask))


@pytest.mark.parametrize("name", ["4.48", "4.53", "5.23", "5.23, flash", "flash", "any", "index"])
def test_a_mask_without_padding_is_not(name: str) -> None:
    with simulated_device(cuda=True):
        assert bool(QUESTIONS[name](torch.empty(2, 8, dtype=torch.int64)))
