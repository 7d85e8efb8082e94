"""The cost of an operator: its FLOPs and the bytes it moves, from the sizes of its tensors.

A dispatch mode calls this for every operator, with real or fake tensors on any device. The schema
of an operator says which arguments are tensors and which of them it writes. It is read once; a call
only reads sizes. The exceptions to "reads its inputs, writes its outputs" are in
`data/operators.toml`.

FLOPs are counted by the formulas of `torch.utils.flop_counter`, where a multiply and an add count
as two. Some are added here: products of bitsandbytes and of grouped experts, attention on the CPU
(which is what fake tensors run), and the half of causal attention that kernels skip.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, partial
from math import prod
from typing import TypedDict

import torch
from torch._C import Argument
from torch._ops import OpOverload

from oomdoctor.package_data import data_of
from oomdoctor.records.job.costs import TF32, Filter, OpCost, OpKind
from oomdoctor.worker.tracing.calls import OperatorCall
from oomdoctor.worker.tracing.tensors import tensor_bytes, tensors_in
from oomdoctor.worker.training.techniques.precision import allows_tf32

_PACKED = 0.5  # bytes of a weight in 4 bits
# The schemas of some optimizers allow writing the gradients (to unscale them). Training here never
# uses that.
_GRADIENT_ARGUMENTS = frozenset(("grads", "g"))
_Flops = Callable[[OperatorCall], float]
_MATMULS = frozenset(("mm", "addmm", "bmm", "baddbmm", "_scaled_mm"))
_GROUPED_MATMULS = frozenset(("_grouped_mm", "_scaled_grouped_mm"))
_CONVOLUTIONS = frozenset(
    (
        *("convolution", "convolution_backward", "convolution_overrideable"),
        *("_convolution", "cudnn_convolution", "_slow_conv2d_forward"),
    )
)
# The products of bitsandbytes, each with the argument that is the weight.
_INT8_PRODUCTS = {"int8_linear_matmul": "B", "int8_scaled_mm": "B", "int8_mixed_scaled_mm": "CB"}
_FP8_PRODUCT = "fp8_product"  # the simulated kernel of FP8 checkpoints
_FOUR_BIT_PRODUCTS = frozenset(("gemv_4bit", "gemm_4bit"))


@dataclass(frozen=True, slots=True)
class _Rule:
    """What the schema of one operator says.

    `arguments` are those with tensors, and how often their bytes move: 0 unread, 1 read, 2 read and
    written. `gathers`: it reads as much of a table as it writes. `source`: the argument that a copy
    between devices reads. `flops`: None if it has no product. `unpacked`: it unpacks a weight.
    `pointwise`: PyTorch's own bandwidth-bound kernel, which is slower if its tensors differ.
    """

    name: str
    kind: OpKind
    arguments: dict[str, int]
    writes_result: bool
    gathers: bool
    source: str | None
    flops: _Flops | None
    unpacked: bool
    pointwise: bool


def cost_of(call: OperatorCall) -> OpCost | None:
    """The cost of one call of an operator; None if no kernel runs on the device.

    Bytes are those of inputs read once and outputs written once, without caches and without what an
    operator allocates internally.
    """
    rule = _rule(call.func)
    if rule is None:
        return None
    moved = 0
    dtype = None
    for name, passes in rule.arguments.items():
        value = call.argument(name)
        if value is None:
            continue
        if dtype is None:
            dtype = _dtype_of(value)
        if passes:
            moved += passes * _bytes_of(value)
    if rule.writes_result:
        written = _bytes_of(call.result)
        moved += 2 * written if rule.gathers else written
        if dtype is None:
            dtype = _dtype_of(call.result)
    flops = rule.flops(call) if rule.flops is not None else 0.0
    kind = rule.kind
    if rule.source is not None and _device_type(call.tensor(rule.source)) != _device_type(
        call.result
    ):
        kind = "copy"
    elif rule.pointwise and not _alike(rule, call):
        kind = "irregular"
    unpacked = _unpacked_bytes(call) if rule.unpacked else 0.0
    shape = _shape(kind, flops, call) if flops else ()
    relaid = _relaid_bytes(call) if kind == "conv" else 0.0
    slid = _filter(call) if kind == "conv" and shape else None
    name = _dtype_name(dtype)
    if kind == "matmul" and name == "float32" and allows_tf32():
        name = TF32
    return OpCost(rule.name, kind, name, flops, float(moved), unpacked, shape, relaid, slid)


def accessed(call: OperatorCall) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """The tensors that a call of an operator with a cost reads, and those that it writes.

    A table from which it takes rows is left out.
    """
    rule = _rule(call.func)
    assert rule is not None
    reads: list[torch.Tensor] = []
    writes = list(tensors_in(call.result)) if rule.writes_result else []
    for name, passes in rule.arguments.items():
        tensors = list(tensors_in(call.argument(name)))
        reads += tensors if passes else []
        writes += tensors if passes > 1 else []
    return reads, writes


def is_fusible(call: OperatorCall, cost: OpCost) -> bool:
    """Whether torch.compile makes a kernel of an operator, and does not call one."""
    space, _, name = call.func._schema.name.partition("::")
    moves = cost.kind in ("elementwise", "irregular") and not cost.flops
    return space == "aten" and moves and name not in _NOT_FUSED


def sums_over_rows(call: OperatorCall) -> bool:
    """Whether an operator sums over other dimensions than the last one."""
    _, _, name = call.func._schema.name.partition("::")
    if name in _SUMS_OVER_ROWS:
        return True
    source = call.argument("self")
    if name != "sum" or not isinstance(source, torch.Tensor):
        return False
    last = source.dim() - 1
    dimensions = {number % source.dim() for number in call.sizes("dim")}
    return bool(dimensions) and last not in dimensions


def _shape(kind: OpKind, flops: float, call: OperatorCall) -> tuple[int, ...]:
    """The shape of a product or of attention, as `OpCost` has it; empty if it has none."""
    result = call.result
    if kind == "attention":
        return _attention_shape(call)
    if kind == "conv":
        return _convolution_shape(call)
    if not isinstance(result, torch.Tensor) or result.dim() < 2:
        return ()
    batch = result.shape[0] if result.dim() == 3 and kind == "matmul" else 1
    columns = result.shape[-1]
    rows = result.numel() // (batch * columns)
    return batch, rows, columns, round(flops / (2 * batch * rows * columns))


def _convolution_shape(call: OperatorCall) -> tuple[int, ...]:
    """The shape of the products that a convolution is: a row for each place of its result."""
    weight, made = call.argument("weight"), _made(call)
    if not isinstance(weight, torch.Tensor) or made is None or call.argument("transposed"):
        return ()
    groups = call.number("groups") or 1
    channels = weight.shape[0]
    rows = made.numel() // channels
    return groups, rows, channels // groups, weight.numel() // channels


def _made(call: OperatorCall) -> torch.Tensor | None:
    """The result of a convolution, or the gradient of it, which is as large."""
    gradient = call.argument("grad_output")
    made = call.result if gradient is None else gradient
    return made if isinstance(made, torch.Tensor) else None


def _filter(call: OperatorCall) -> Filter | None:
    """The filter of a convolution of images or rows whose shape is known."""
    weight, made, source = call.tensor("weight"), _made(call), call.argument("input")
    if made is None or not isinstance(source, torch.Tensor) or source.dim() != made.dim():
        return None
    sides = weight.shape[2:]
    strides = call.sizes("stride")
    return Filter(
        taps=prod(sides),
        is_square=len(sides) == 2 and len(set(sides)) == 1,
        stride=max(strides, default=1),
        width=source.shape[-1],
        places=prod(made.shape[2:]),
        channels_last=_is_channels_last(source) or _is_channels_last(weight),
    )


def _is_channels_last(tensor: torch.Tensor) -> bool:
    """Whether PyTorch gives cuDNN a tensor in NHWC layout (cudnn_conv_suggest_memory_format).

    The strides of tensors with one channel, or with one place, do not say.
    """
    return (
        tensor.dim() == 4
        and tensor.is_contiguous(memory_format=torch.channels_last)
        and not tensor.is_contiguous()
    )


def _attention_shape(call: OperatorCall) -> tuple[int, ...]:
    query, causal = call.argument("query"), int(bool(call.argument("is_causal")))
    if not isinstance(query, torch.Tensor):
        return ()
    if query.dim() == 4:
        rows, heads, length, width = query.shape
        return rows * heads, length, call.tensor("key").shape[2], width, causal
    documents = call.tensor("cum_seq_q").numel() - 1
    _, heads, width = query.shape
    return documents * heads, call.number("max_q"), call.number("max_k"), width, causal


class _Exceptions(TypedDict):
    """Operators that do not read their inputs and write their outputs, by name."""

    without_kernel: list[str]
    unread: list[str]
    gathered: dict[str, str]
    scattered: dict[str, str]


_EXCEPTIONS: _Exceptions = data_of("operators.toml")["costs"]
_COMPILED: dict[str, list[str]] = data_of("operators.toml")["compiled"]
_NOT_FUSED = frozenset(_COMPILED["called"])
_SUMS_OVER_ROWS = frozenset(_COMPILED["sum_over_rows"])


@cache
def _rule(func: OpOverload) -> _Rule | None:
    schema = func._schema
    space, _, name = schema.name.partition("::")
    writes_result = any(_is_tensor(r.type) and r.alias_info is None for r in schema.returns)
    written = [a for a in schema.arguments if a.alias_info is not None and a.alias_info.is_write]
    if name in _EXCEPTIONS["without_kernel"] or not (writes_result or written):
        return None
    kind = _kind(space, name)
    return _Rule(
        name=name,
        kind=kind,
        arguments={
            argument.name: _passes(name, argument)
            for argument in schema.arguments
            if _is_tensor(argument.type)
        },
        writes_result=writes_result,
        gathers=name in _EXCEPTIONS["gathered"],
        source={"_to_copy": "self", "copy_": "src"}.get(name),
        flops=_flop_formula(func, name),
        unpacked=name in _FOUR_BIT_PRODUCTS,
        pointwise=kind == "elementwise" and space == "aten",
    )


def _is_tensor(kind: object) -> bool:
    return "Tensor" in str(kind)


def _passes(name: str, argument: Argument) -> int:
    if _EXCEPTIONS["gathered"].get(name) == argument.name:
        return 0
    if name in _EXCEPTIONS["scattered"]:
        # Values are read, and the places to which they go are read and written.
        return {_EXCEPTIONS["scattered"][name]: 3, "self": 0}.get(argument.name, 1)
    unread = argument.name == "self" and name in _EXCEPTIONS["unread"]
    reads = not unread and not argument.is_out
    writes = argument.alias_info is not None and argument.alias_info.is_write
    return int(reads) + int(writes and argument.name not in _GRADIENT_ARGUMENTS)


def _kind(space: str, name: str) -> OpKind:
    if "attention" in name or "flash_attn" in space:
        return "attention"
    if name in _CONVOLUTIONS:
        return "conv"
    if name in _MATMULS or name in _GROUPED_MATMULS or name in _INT8_PRODUCTS:
        return "matmul"
    if name == _FP8_PRODUCT:
        return "matmul"
    if space == "bitsandbytes" and "optimizer" not in name:
        return "quantised"
    return "elementwise"


def _flop_formula(func: OpOverload, name: str) -> _Flops | None:
    """How to count the FLOPs of one operator; None if it does not multiply."""
    from torch.utils.flop_counter import flop_registry

    if name in _FOUR_BIT_PRODUCTS:  # the shape of a packed weight is an argument
        return lambda call: 2.0 * call.tensor("A").numel() * call.sizes("shapeB")[0]
    if name in _INT8_PRODUCTS:
        weight = _INT8_PRODUCTS[name]
        return lambda call: 2.0 * call.tensor("A").numel() * call.tensor(weight).shape[0]
    if name == _FP8_PRODUCT:
        return lambda call: 2.0 * call.tensor("input").numel() * call.tensor("weight").shape[-2]
    if name in _GROUPED_MATMULS:
        return _grouped_flops
    if name in ("_flash_attention_forward", "_flash_attention_backward"):
        return partial(_document_flops, backward="backward" in name)
    if "scaled_dot_product" in name or name.startswith("flex_attention"):
        return partial(_attention_flops, backward="backward" in name)
    if name == "convolution_backward":
        return _convolution_backward_flops
    formula = flop_registry.get(func.overloadpacket)
    if formula is None:
        return None
    if name in _MATMULS:
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


def _convolution_backward_flops(call: OperatorCall) -> float:
    """As many as forward for each gradient; torch's formula counts all groups for each of them."""
    grid = call.tensor("input" if call.argument("transposed") else "grad_output").shape
    forward = 2.0 * grid[0] * prod(grid[2:]) * call.tensor("weight").numel()
    return float(forward * sum(map(bool, call.sizes("output_mask")[:2])))


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


def _alike(rule: _Rule, call: OperatorCall) -> bool:
    """Whether all tensors that move have no gaps and the same shape, strides and type.

    Only then PyTorch's TensorIterator uses vector loads. Kernels for lists use them for each tensor
    of the list.
    """
    tensors = [call.argument(name) for name, passes in rule.arguments.items() if passes]
    tensors += call.result if isinstance(call.result, tuple) else [call.result]
    first = None
    for tensor in tensors:
        if not isinstance(tensor, torch.Tensor) or not tensor.dim():
            continue  # a list, or a number
        if first is None:
            if not _has_no_gaps(tensor):
                return False
            first = tensor.dtype, tensor.shape, tensor.stride()
        elif (tensor.dtype, tensor.shape, tensor.stride()) != first:
            return False
    return True


def _has_no_gaps(tensor: torch.Tensor) -> bool:
    """Whether the tensor fills its memory, in whatever order of its dimensions."""
    if tensor.is_contiguous():
        return True
    size = 1
    for stride, length in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
        if length != 1:
            if stride != size:
                return False
            size *= length
    return True


def _unpacked_bytes(call: OperatorCall) -> float:
    """Bytes of unpacking a weight: read in 4 bits, written in the type of the activations.

    This is an upper bound for few rows. Up to 512 rows, bitsandbytes 0.50 does not unpack
    (backends/cuda/ops.py `_gemm_4bit_use_custom_cuda`); earlier versions always do.
    """
    return float(prod(call.sizes("shapeB")) * (_PACKED + call.tensor("A").element_size()))


def _relaid_bytes(call: OperatorCall) -> float:
    """Bytes of reading what a convolution reads, and of writing it in NHWC; 0 if it is in NHWC.

    The backward pass is two calls of cuDNN, one for each gradient. Both read the gradient of the
    result. Kernels write their results in NCHW (nvprof of github tensorflow#15897:
    `..._nhwc2nchw_tn_v1`). Those of grouped convolutions have no other layout.
    """
    source = call.argument("input")
    if not isinstance(source, torch.Tensor):
        return 0.0
    if source.dim() == 4 and source.is_contiguous(memory_format=torch.channels_last):
        return 0.0
    gradient = call.argument("grad_output")
    read = tensor_bytes(source)
    if isinstance(gradient, torch.Tensor):
        wanted = call.argument("output_mask")
        calls = sum(wanted[:2]) if isinstance(wanted, list | tuple) else 2
        read = calls * tensor_bytes(gradient) + (read if calls else 0)
    return 2.0 * read


def _bytes_of(value: object) -> int:
    return sum(map(tensor_bytes, tensors_in(value)))


def _dtype_of(value: object) -> torch.dtype | None:
    while isinstance(value, list | tuple):
        if not value:
            return None
        value = value[0]
    return getattr(value, "dtype", None)


@cache
def _dtype_name(dtype: torch.dtype | None) -> str:
    return str(dtype).removeprefix("torch.")


def _device_type(tensor: torch.Tensor) -> str:
    # Asking a fake tensor for `device` costs one more dispatch.
    fake = getattr(tensor, "fake_device", None)
    return str((tensor.device if fake is None else fake).type)
