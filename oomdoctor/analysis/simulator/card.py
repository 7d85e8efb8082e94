"""What of a GPU decides which kernels a step runs, and how large its cuBLAS workspaces are."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from oomdoctor.records.job.simulation import Target

MIB = 1024**2
WORKSPACES = ("cublas", "cublas of the autograd thread")  # forward pass, backward pass


@dataclass(frozen=True, slots=True)
class Card:
    """Traits of a simulated GPU that decide kernels and workspaces."""

    compute_capability: tuple[int, int]


def card_of(target: Target | None) -> Card:
    """The traits of a target that decide kernels; those of an A100 if they are unknown."""
    gpu = target.gpu if target is not None else None
    return card_of_capability((gpu.compute_capability if gpu is not None else None) or "8.0")


def card_of_capability(capability: str) -> Card:
    """The card of a compute capability such as "8.6"."""
    major, minor = (int(part) for part in capability.split("."))
    return Card((major, minor))


def workspace_bytes(card: Card, torch_release: tuple[int, int], setting: str) -> int:
    """Bytes of one cuBLAS workspace (CublasHandlePool.cpp, `parseChosenWorkspaceSize`).

    `setting` is CUBLAS_WORKSPACE_CONFIG, which decides if it is set. The default is :4096:2:16:8,
    which is 8,519,680 bytes. It is 32 MiB on Hopper and, from torch 2.12, on Blackwell (pull
    175344).
    """
    pools = re.findall(r":([0-9]+):([0-9]+)", setting)
    if pools:
        return sum(int(kib) * int(count) for kib, count in pools) * 1024
    major = card.compute_capability[0]
    large = (9,) if torch_release < (2, 12) else (9, 10, 12)
    return 32 * MIB if major in large else (2 * 4096 + 8 * 16) * 1024


def workspaces(card: Card, torch_release: tuple[int, int], setting: str) -> Mapping[str, int]:
    """Bytes of each cuBLAS workspace of a card, by its name on a tape."""
    return dict.fromkeys(WORKSPACES, workspace_bytes(card, torch_release, setting))
