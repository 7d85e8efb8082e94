"""FLOPs of the operators that multiply: which ones have a formula, and how to call it.

The formulas are those of `torch.utils.flop_counter`, where a multiply and an add count as two. Some
are added here: products of bitsandbytes and of grouped experts, attention on the CPU (which is what
fake tensors run), and the half of causal attention that kernels skip.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from math import prod
from typing import Any

from torch._ops import OpOverload

# (positional arguments, keyword arguments, result) -> FLOPs
Flops = Callable[[Sequence[Any], Mapping[str, Any], Any], float]

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

    if name in INT8_PRODUCTS or name in FOUR_BIT_PRODUCTS:
        return _bitsandbytes_flops(func, name)
    if name in GROUPED_MATMULS:
        return lambda args, _, __: _grouped_flops(args[0].shape, args[1].shape)
    if name in ("_flash_attention_forward", "_flash_attention_backward"):
        return _document_flops(func, backward="backward" in name)
    if "scaled_dot_product" in name or name.startswith("flex_attention"):
        return _attention_flops(func, backward="backward" in name)
    formula = flop_registry.get(func.overloadpacket)
    if formula is None:
        return None
    if name in MATMULS:
        return lambda args, _, result: _product_flops(formula, args, result)
    causal = position_of(func, "is_causal")
    if causal is None:
        return lambda args, kwargs, result: float(formula(*args, **kwargs, out_val=result))
    return lambda args, kwargs, result: (
        float(formula(*args, **kwargs, out_val=result)) / (2 if args[causal] else 1)
    )


def _bitsandbytes_flops(func: OpOverload, name: str) -> Flops:
    """Activations [.., k] by a weight [n, k]; the shape of a packed weight is an argument."""
    if name in FOUR_BIT_PRODUCTS:
        shape = position_of(func, "shapeB")
        return lambda args, _, __: 2.0 * args[0].numel() * args[shape][0]
    weight = position_of(func, INT8_PRODUCTS[name])
    return lambda args, _, __: 2.0 * args[0].numel() * args[weight].shape[0]


def _grouped_flops(left: Sequence[int], right: Sequence[int]) -> float:
    """The groups share the rows of one side, so the number of groups does not matter."""
    if len(left) > len(right):
        return 2.0 * prod(right) * left[-2]
    return 2.0 * prod(left) * right[-1]


def _product_flops(formula: Callable[..., float], args: Sequence[Any], result: Any) -> float:
    return _kept_flops(formula, tuple(a.shape for a in args if hasattr(a, "shape")), result.shape)


@cache
def _kept_flops(
    formula: Callable[..., float], shapes: tuple[Sequence[int], ...], out_shape: Sequence[int]
) -> float:
    """Cached, because a model has few different products and repeats them often."""
    return float(formula(*shapes, out_val=out_shape))


def _attention_flops(func: OpOverload, *, backward: bool) -> Flops:
    """The products of attention, also if query heads share key and value heads.

    Forward: scores and weighted values. Backward: scores again, then the gradients of value,
    probabilities, query and key. Every fused kernel has the same products, so it does not matter
    which one runs on this device.
    """
    query, key, value = (position_of(func, name) for name in ("query", "key", "value"))
    causal = position_of(func, "is_causal")

    def flops(args: Sequence[Any], kwargs: Mapping[str, Any], _: Any) -> float:
        batch, heads, length, width = args[query].shape
        pairs = batch * heads * length * args[key].shape[2]
        value_width = args[value].shape[3]
        widths = 3 * width + 2 * value_width if backward else width + value_width
        given = args[causal] if causal < len(args) else kwargs.get("is_causal", False)
        return float(2 * pairs * widths) / (2 if given else 1)

    return flops


def _document_flops(func: OpOverload, *, backward: bool) -> Flops:
    """The products of attention within the documents of a row, which count as equally long."""
    query, value, borders, longest, causal = (
        position_of(func, name) for name in ("query", "value", "cum_seq_q", "max_q", "is_causal")
    )

    def flops(args: Sequence[Any], _: Mapping[str, Any], __: Any) -> float:
        _, heads, width = args[query].shape
        pairs = (args[borders].numel() - 1) * args[longest] ** 2 * heads
        value_width = args[value].shape[2]
        widths = 3 * width + 2 * value_width if backward else width + value_width
        return float(2 * pairs * widths) / (2 if args[causal] else 1)

    return flops


def position_of(func: OpOverload, name: str) -> Any:
    """The position of an argument in an operator's schema; None if it does not have it."""
    names = [argument.name for argument in func._schema.arguments]
    return names.index(name) if name in names else None
