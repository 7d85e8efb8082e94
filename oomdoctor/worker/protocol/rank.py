"""Which device belongs to this process, if a launcher gave it a rank."""

from __future__ import annotations

from typing import TYPE_CHECKING

from oomdoctor.system.environment import launched_number, variable

if TYPE_CHECKING:
    import torch


def local_rank() -> int:
    """The number of this process on its machine; 0 without a launcher."""
    return launched_number("LOCAL_RANK") or 0


def own_device(kind: str) -> torch.device:
    """The device of this rank; `kind` is "cuda" or "cpu"."""
    import torch

    return torch.device("cuda", local_rank()) if kind == "cuda" else torch.device("cpu")


def own_uuid() -> str | None:
    """The UUID of this rank's GPU, from CUDA_VISIBLE_DEVICES; None if that is not set."""
    visible = variable("CUDA_VISIBLE_DEVICES")
    if visible is None:
        return None
    names = visible.split(",")
    return names[local_rank()] if local_rank() < len(names) else None
