"""Unsloth's check of embeddings, which have no values on the emulated GPU."""

from __future__ import annotations

import sys
from types import ModuleType

import pytest

from oomdoctor.monitor.inside import trainer


def test_the_check_for_untrained_tokens_finds_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise ValueError("Untrained tokens found")

    module = ModuleType(trainer._UNSLOTH)
    vars(module)["fix_untrained_tokens"] = refuse
    monkeypatch.setitem(sys.modules, trainer._UNSLOTH, module)
    trainer.trust_embeddings()
    assert vars(module)["fix_untrained_tokens"]("model", "tokenizer", eps=1e-16) is None
