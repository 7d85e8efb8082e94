"""Register operators of our own, and kernels in place of those that torch has for a CPU."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

import torch
from torch._ops import OpOverload


def own_operator(name: str, schema: str, function: Callable[..., object]) -> OpOverload:
    """An operator for every device, also for fake tensors; a process can define it only once."""
    torch.library.define(f"oomdoctor::{name}", schema)
    torch.library.impl(f"oomdoctor::{name}", "CompositeExplicitAutograd", function)
    return getattr(torch.ops.oomdoctor, name).default


@contextmanager
def implemented(kernels: Mapping[str, Callable[..., object]], key: str) -> Iterator[None]:
    """Let these kernels run operators of torch at a dispatch key, in the whole process."""
    library = torch.library.Library("aten", "IMPL")
    for name, kernel in kernels.items():
        library.impl(name, kernel, key)
    try:
        yield
    finally:
        library._destroy()
