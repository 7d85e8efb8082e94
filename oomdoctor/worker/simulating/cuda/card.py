"""What decides which kernels a simulated step runs: the card, and the installed torch."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Card:
    """Traits of the simulated GPU that decide kernels and workspaces."""

    compute_capability: tuple[int, int]
    multiprocessors: int | None = None


def torch_release() -> tuple[int, int]:
    """Major and minor number of the installed torch."""
    import torch

    major, minor = torch.__version__.split(".")[:2]
    return int(major), int(minor)
