"""Engines that take a share of the card, by who asks PyTorch how large it is."""

from __future__ import annotations

import pytest

from oomdoctor.monitor.inside import card_shares

ASKS = "def start(torch): return torch.cuda.mem_get_info()"


def test_an_engine_that_asks_for_the_size_of_the_card_is_noted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    import torch

    monkeypatch.setattr(torch.cuda.memory, "mem_get_info", lambda: (1, 2))
    monkeypatch.setattr(torch.cuda, "mem_get_info", torch.cuda.memory.mem_get_info)
    monkeypatch.setattr(card_shares, "_asked", set())
    card_shares.note_engines()
    for module, noted in [("train", []), ("vllm_tools", []), ("vllm.worker", ["vLLM"])]:
        names = {"__name__": module}
        exec(ASKS, names)
        assert names["start"](torch) == (1, 2)  # type: ignore[operator]
        assert card_shares.sized_by_card() == noted
