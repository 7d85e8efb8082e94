"""The error for a crossed CPU budget, in PyTorch's words, so that one parser reads both."""

from __future__ import annotations

import torch


def out_of_memory(requested: int, limit: int, live: int) -> torch.OutOfMemoryError:
    """The error of a request that crosses the limit; all in bytes, `live` without the request."""
    return torch.OutOfMemoryError(
        f"CPU out of memory. Tried to allocate {_size(requested)}. The CPU budget has a total "
        f"capacity of {_size(limit)} of which {_size(limit - live)} is free. Of the allocated "
        f"memory {_size(live)} is allocated by PyTorch, and 0 bytes is reserved by PyTorch but "
        "unallocated."
    )


def _size(size: int) -> str:
    """Like c10's `format_size`: two digits, binary units."""
    if size <= 1024:
        return f"{size} bytes"
    if size <= 1024**2:
        return f"{size / 1024:.2f} KiB"
    if size <= 1024**3:
        return f"{size / 1024**2:.2f} MiB"
    return f"{size / 1024**3:.2f} GiB"
