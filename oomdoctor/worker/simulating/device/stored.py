"""The kernels of FP8 checkpoints on a simulated device: products that make their result alone.

transformers loads them from the hub ("finegrained-fp8"). They quantize activations inside.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager
from types import SimpleNamespace

import torch

from oomdoctor.worker.replacing import module_if_there, own_operator, replaced

_PRODUCT = ("fp8_product", "(Tensor input, Tensor weight) -> Tensor")


def replacements() -> Iterator[AbstractContextManager[None]]:
    """Contexts that let FP8 layers compute with fake tensors; none in older transformers."""
    integration = module_if_there("transformers.integrations.finegrained_fp8")
    load = "load_finegrained_fp8_kernel"
    if integration is None or not hasattr(integration, load):
        return
    kernels = SimpleNamespace(matmul=_product, grouped_matmul=_product, batched_matmul=_product)
    yield replaced(integration, load, lambda: kernels)
    # It needs a GPU to be loaded, and makes a copy of activations in FP8 besides.
    yield replaced(integration, "is_deepgemm_loadable", lambda: False)


def _product(input: torch.Tensor, weight: torch.Tensor, *_: object, **__: object) -> torch.Tensor:
    """[..., K] x [experts, N, K] or [N, K]: the result, [..., N]."""
    return own_operator(*_PRODUCT, _made)(input, weight)


def _made(input: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return input.new_empty(*input.shape[:-1], weight.shape[-2])
