"""Register operators of our own, and kernels in place of those that torch has for a CPU."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache

import torch
from torch._ops import OpOverload


@cache  # a process can define an operator only once
def own_operator(
    name: str, schema: str, function: Callable[..., object] | None = None
) -> OpOverload:
    """An operator for every device, also for fake tensors; without a `function` it does nothing."""
    torch.library.define(f"oomdoctor::{name}", schema)
    kernel = function or (lambda *_: None)
    torch.library.impl(f"oomdoctor::{name}", "CompositeExplicitAutograd", kernel)
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
