"""FLOPs of the operators that multiply: which ones have a formula, and how to call it.

The formulas are those of `torch.utils.flop_counter`, where a multiply and an add count as two. Some
are added here: products of bitsandbytes and of grouped experts, attention on the CPU (which is what
fake tensors run), and the half of causal attention that kernels skip.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache, partial
from math import prod

import torch
from torch._ops import OpOverload

from oomdoctor.worker.tracing.calls import OperatorCall

Flops = Callable[[OperatorCall], float]

MATMULS = frozenset(("mm", "addmm", "bmm", "baddbmm", "_scaled_mm"))
GROUPED_MATMULS = frozenset(("_grouped_mm", "_scaled_grouped_mm"))
CONVOLUTIONS = frozenset(
    (
        *("convolution", "convolution_backward", "convolution_overrideable"),
        *("_convolution", "cudnn_convolution", "_slow_conv2d_forward"),
    )
)
# The products of bitsandbytes, each with the argument that is the weight.
INT8_PRODUCTS = {"int8_linear_matmul": "B", "int8_scaled_mm": "B", "int8_mixed_scaled_mm": "CB"}
FOUR_BIT_PRODUCTS = frozenset(("gemv_4bit", "gemm_4bit"))


def flop_formula(func: OpOverload, name: str) -> Flops | None:
    """How to count the FLOPs of one operator; None if it does not multiply."""
    from torch.utils.flop_counter import flop_registry

    if name in FOUR_BIT_PRODUCTS:  # the shape of a packed weight is an argument
        return lambda call: 2.0 * call.tensor("A").numel() * call.sizes("shapeB")[0]
    if name in INT8_PRODUCTS:
        weight = INT8_PRODUCTS[name]
        return lambda call: 2.0 * call.tensor("A").numel() * call.tensor(weight).shape[0]
    if name in GROUPED_MATMULS:
        return _grouped_flops
    if name in ("_flash_attention_forward", "_flash_attention_backward"):
        return partial(_document_flops, backward="backward" in name)
    if "scaled_dot_product" in name or name.startswith("flex_attention"):
        return partial(_attention_flops, backward="backward" in name)
    formula = flop_registry.get(func.overloadpacket)
    if formula is None:
        return None
    if name in MATMULS:
        return partial(_product_flops, formula)
    return lambda call: (
        float(formula(*call.args, **call.kwargs, out_val=call.result)) / _causal_share(call)
    )


def _causal_share(call: OperatorCall) -> int:
    """Causal kernels skip half of the products."""
    return 2 if call.argument("is_causal") else 1


def _grouped_flops(call: OperatorCall) -> float:
    """The groups share the rows of one side, so the number of groups does not matter."""
    left, right = (call.tensor(name).shape for name in ("self", "mat2"))
    if len(left) > len(right):
        return float(2.0 * prod(right) * left[-2])
    return float(2.0 * prod(left) * right[-1])


def _product_flops(formula: Callable[..., float], call: OperatorCall) -> float:
    shapes = tuple(each.shape for each in call.args if isinstance(each, torch.Tensor))
    result: torch.Tensor = call.result
    return _kept_flops(formula, shapes, result.shape)


@cache
def _kept_flops(
    formula: Callable[..., float], shapes: tuple[Sequence[int], ...], out_shape: Sequence[int]
) -> float:
    """Cached, because a model has few different products and repeats them often."""
    return float(formula(*shapes, out_val=out_shape))


def _attention_flops(call: OperatorCall, *, backward: bool) -> float:
    """The products of attention, also if query heads share key and value heads.

    Forward: scores and weighted values. Backward: scores again, then the gradients of value,
    probabilities, query and key. Every fused kernel has the same products, so it does not matter
    which one runs on this device.
    """
    batch, heads, length, width = call.tensor("query").shape
    pairs = batch * heads * length * call.tensor("key").shape[2]
    return _of_pairs(pairs, width, call.tensor("value").shape[3], call, backward)


def _document_flops(call: OperatorCall, *, backward: bool) -> float:
    """The products of attention within the documents of a row, which count as equally long."""
    _, heads, width = call.tensor("query").shape
    pairs = (call.tensor("cum_seq_q").numel() - 1) * call.number("max_q") ** 2 * heads
    return _of_pairs(pairs, width, call.tensor("value").shape[2], call, backward)


def _of_pairs(
    pairs: int, width: int, value_width: int, call: OperatorCall, backward: bool
) -> float:
    widths = 3 * width + 2 * value_width if backward else width + value_width
    return float(2 * pairs * widths) / _causal_share(call)
