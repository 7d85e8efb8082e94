"""Which engines have asked PyTorch how large the card is.

They hold a share of it, such as vLLM's `gpu_memory_utilization`, so another card holds other sizes.
"""

from __future__ import annotations

import sys
from contextlib import suppress
from functools import wraps
from types import FrameType
from typing import Any

_ENGINES = {"vllm": "vLLM", "sglang": "SGLang"}
_asked: set[str] = set()


def note_engines() -> None:
    """Note each engine that asks PyTorch for the memory of the card from now on."""
    import torch

    ask = torch.cuda.mem_get_info

    @wraps(ask)
    def mem_get_info(*args: Any, **kwargs: Any) -> Any:
        with suppress(Exception):
            _asked.update(_engines_on_the_stack())
        return ask(*args, **kwargs)

    torch.cuda.mem_get_info = torch.cuda.memory.mem_get_info = mem_get_info


def sized_by_card() -> list[str]:
    """The engines that have asked so far."""
    return sorted(_asked)


def _engines_on_the_stack() -> set[str]:
    frame: FrameType | None = sys._getframe(2)
    engines: set[str] = set()
    while frame is not None:
        package = str(frame.f_globals.get("__name__")).partition(".")[0]
        if package in _ENGINES:
            engines.add(_ENGINES[package])
        frame = frame.f_back
    return engines
