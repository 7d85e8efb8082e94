"""layer_norm keeps its statistics as CUDA does, on a device that stands for CUDA's."""

from __future__ import annotations

import pytest
import torch

from oomdoctor.worker.simulating.device.answers import normalized
from oomdoctor.worker.simulating.device.fake import simulated_device

HALF = torch.empty(2, 3, 8, dtype=torch.bfloat16)


def test_half_precision_has_statistics_in_fp32() -> None:
    found = normalized((HALF, [8], None, None, 1e-5))
    assert found is not None
    assert [(tuple(t.shape), t.dtype) for t in found] == [
        ((2, 3, 8), torch.bfloat16),
        ((2, 3, 1), torch.float32),
        ((2, 3, 1), torch.float32),
    ]
    assert normalized((HALF.float(), [8], None, None, 1e-5)) is None


@pytest.mark.parametrize("cuda", [True, False])
def test_only_a_device_like_cuda_has_them(cuda: bool) -> None:
    with simulated_device(cuda=cuda):
        half = torch.empty(2, 3, 8, dtype=torch.bfloat16)
        _, mean, _ = torch.ops.aten.native_layer_norm(half, [8], None, None, 1e-5)
    assert mean.dtype == (torch.float32 if cuda else torch.bfloat16)


def test_shapes_are_those_of_torch() -> None:
    own = torch.ops.aten.native_layer_norm(HALF.float(), [3, 8], None, None, 1e-5)
    found = normalized((HALF, [3, 8], None, None, 1e-5))
    assert found is not None
    assert [t.shape for t in found] == [t.shape for t in own]
    assert [t.stride() for t in found] == [t.stride() for t in own]
