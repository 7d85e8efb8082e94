"""See the storages that FSDP2 resizes: gathered weights keep their tensor and give up its memory.

`resize_` of a storage is no operator, so a dispatch mode does not see it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import torch


class Notes(Protocol):
    """A record of storages that are resized."""

    def note_resized(self, storage: torch.UntypedStorage) -> None:
        """A storage was resized."""


@contextmanager
def resized_storages(trace: Notes) -> Iterator[None]:
    """Record storages that are resized while the context is open."""
    import torch

    resize = torch.UntypedStorage.resize_

    def resized(storage: torch.UntypedStorage, size: int) -> torch.UntypedStorage:
        result = resize(storage, size)
        trace.note_resized(storage)
        return result

    torch.UntypedStorage.resize_ = resized
    try:
        yield
    finally:
        torch.UntypedStorage.resize_ = resize
