"""What is said when the CPU's budget is crossed: PyTorch's words, one parser reads both."""

from __future__ import annotations

from typing import Any


def out_of_memory(requested: int, limit: int, live: int) -> Any:
    """The error of a request that crosses the limit; all in bytes, `live` without the request."""
    import torch

    return torch.OutOfMemoryError(
        f"CPU out of memory. Tried to allocate {_size(requested)}. The CPU budget has a total "
        f"capacity of {_size(limit)} of which {_size(limit - live)} is free. Of the allocated "
        f"memory {_size(live)} is allocated by PyTorch, and 0 bytes is reserved by PyTorch but "
        "unallocated."
    )


def _size(size: int) -> str:
    """As c10's `format_size` prints: two digits, binary units."""
    if size <= 1024:
        return f"{size} bytes"
    if size <= 1024**2:
        return f"{size / 1024:.2f} KiB"
    if size <= 1024**3:
        return f"{size / 1024**2:.2f} MiB"
    return f"{size / 1024**3:.2f} GiB"
