"""What operators of bitsandbytes hold."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from oomdoctor.analysis.simulator.card import Card
from oomdoctor.worker.simulating.cuda.kernels.blocks import tensor_bytes
from oomdoctor.worker.tracing.steps import Freed, Result, Step


def gemm_4bit(named: Mapping[str, Any], _: Card) -> tuple[Step, ...]:
    """bitsandbytes 0.50 backends/cuda/ops.py `_dequant_linear_fallback`: the dequantized weight.

    Nested constants are added, twice in fp32. Fused kernels avoid this up to 1,536 tokens on some
    cards and shapes. The backward pass always dequantizes, so the peak stays the same.
    Python frees the constants before the weight.
    """
    tokens = named["A"].numel() // named["A"].shape[-1]
    if tokens <= 4:  # `_GEMM_4BIT_CUSTOM_FLOOR_M`: always fused
        return ()
    rows, columns = named["shapeB"]
    nested = named["absmax_8bit"]
    weight = rows * columns * named["A"].element_size()
    if nested is None:
        return (weight, Result(0))
    constants = 4 * nested.numel()
    return (constants, constants, weight, Result(0), Freed(1), Freed(0))


def int8_matmul(named: Mapping[str, Any], _: Card) -> tuple[Step, ...]:
    """bitsandbytes backends/default/ops.py `int8_scaled_mm`: an int32 product, then fp16.

    The fp16 result is a separate block if the caller wants another dtype (0.46-0.50).
    """
    elements = named["A"].numel() // named["A"].shape[-1] * named["B"].shape[0]
    as_asked = named["dtype"] is None or str(named["dtype"]) == "torch.float16"
    return (4 * elements,) if as_asked else (4 * elements, 2 * elements)


def int8_quant(named: Mapping[str, Any], _: Card) -> tuple[Step, ...]:
    """bitsandbytes backends/cuda/ops.py `int8_vectorwise_quant`: |A| and the mask of outliers."""
    if not named["threshold"]:
        return ()
    return tensor_bytes(named["A"]), named["A"].numel()
