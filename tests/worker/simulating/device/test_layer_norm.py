"""layer_norm keeps its statistics as CUDA does, only while a simulation asks for it."""

from __future__ import annotations

import torch

from oomdoctor.worker.simulating.device.sums import cuda_statistics, normalized

HALF = torch.empty(2, 3, 8, dtype=torch.bfloat16)


def test_half_precision_has_statistics_in_fp32() -> None:
    assert normalized((HALF, [8], None, None, 1e-5)) is None
    with cuda_statistics():
        found = normalized((HALF, [8], None, None, 1e-5))
        assert found is not None
        assert [(tuple(t.shape), t.dtype) for t in found] == [
            ((2, 3, 8), torch.bfloat16),
            ((2, 3, 1), torch.float32),
            ((2, 3, 1), torch.float32),
        ]
        assert normalized((HALF.float(), [8], None, None, 1e-5)) is None
    assert normalized((HALF, [8], None, None, 1e-5)) is None


def test_shapes_are_those_of_torch() -> None:
    own = torch.ops.aten.native_layer_norm(HALF.float(), [3, 8], None, None, 1e-5)
    with cuda_statistics():
        found = normalized((HALF, [3, 8], None, None, 1e-5))
    assert found is not None
    assert [t.shape for t in found] == [t.shape for t in own]
    assert [t.stride() for t in found] == [t.stride() for t in own]
