"""What a CUDA kernel does with memory inside one operator, which fake tensors do not show.

Every rule names the upstream source it was read from. An operator without a rule has no scratch, or
scratch that is left out on purpose:

- reductions to few numbers (Reduce.cuh), scans, sorts and top-k of routers: a few MiB at most,
  freed at once and never alive at the peak;
- layer_norm backward: partial sums since torch 2.8, but only above 64 Ki rows;
- foreach and fused optimizers: their tables are kernel arguments (MultiTensorApply.cuh), and the
  copies of foreach optimizers are results, so the trace sees them;
- convolutions: cuDNN chooses the workspace at run time, so there is no formula for it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from oomdoctor.analysis.simulator.card import Card
from oomdoctor.analysis.simulator.reductions import RowSum
from oomdoctor.worker.simulating.cuda import attention_scratch as attention
from oomdoctor.worker.simulating.cuda.host_numbers import is_on_host
from oomdoctor.worker.simulating.cuda.release import torch_release
from oomdoctor.worker.tracing.steps import OTHERS, Freed, OnHost, Result, Step

if TYPE_CHECKING:
    import torch
    from torch._ops import OpOverload

MIB = 1024**2
_ALREADY_WIDE = ("torch.int64", "torch.complex64", "torch.complex128")


class Scratch(int):
    """Bytes of a block that a kernel holds, with what `TapeBlock` says of them."""

    rows: int = 0
    segments: int = 0
    row_sum: RowSum | None = None


def _scratch(size: int, **values: Any) -> Scratch:
    block = Scratch(size)
    vars(block).update(values)
    return block


Rule = Callable[[Mapping[str, Any], Card], tuple[Step, ...]]
_OF_RESULTS = frozenset(("aten::lift_fresh",))
# Only these rules differ by card.
_OF_CARDS = frozenset(("aten::_scaled_dot_product_efficient_attention_backward",))


def has_rule(func: OpOverload) -> bool:
    """Whether there is a rule for the blocks that the kernel of `func` holds while it runs."""
    schema = getattr(func, "_schema", None)
    return schema is not None and schema.name in _RULES


def differs_by_card(func: OpOverload) -> bool:
    """Whether the blocks that the kernel of `func` holds depend on the card."""
    return func._schema.name in _OF_CARDS


def steps_of(
    func: OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any] | None, result: Any, card: Card
) -> tuple[Step, ...]:
    """What the CUDA kernel of `func` does with memory while it runs.

    Only shapes, strides and dtypes are read, so fake tensors work. An unknown operator gives ().
    """
    if not has_rule(func):
        return ()
    schema = func._schema
    names = (argument.name for argument in schema.arguments)
    named = {argument.name: argument.default_value for argument in schema.arguments}
    named.update(zip(names, args, strict=False))
    named.update(kwargs or {})
    if schema.name in _OF_RESULTS:
        named["result"] = result
    return _RULES[schema.name](named, card)


def tensor_bytes(tensor: torch.Tensor) -> int:
    """Bytes of a dense copy."""
    return int(tensor.numel() * tensor.element_size())


def _lift_fresh(named: Mapping[str, Any], _: Card) -> tuple[Step, ...]:
    return (OnHost(0),) if is_on_host(named["result"]) else ()


def _embedding(named: Mapping[str, Any], _: Card) -> tuple[Step, ...]:
    """Embedding.cpp `embedding_symint`: `reshape(-1)` copies indices that are no flat memory."""
    indices = named["indices"]
    return () if _is_flat(indices) else (tensor_bytes(indices), Result(0))


def _embedding_backward(named: Mapping[str, Any], _: Card) -> tuple[Step, ...]:
    """Embedding.cu `embedding_dense_backward_cuda`, EmbeddingBackwardKernel.cu (torch 1.11-2.13).

    Up to 3,072 tokens (`SORTED_ROWS`), one kernel works in place. Above that, the indices are
    sorted and cut into segments. Each segment is summed in parts of ten rows, and one fp32 row is
    kept for each part; how many there are at most is known without reading them. What the sort and
    the scans take for themselves is left out: except for the sort, it is a few KiB.
    """
    grad, indices = named["grad_output"], named["indices"]
    copies = [tensor_bytes(tensor) for tensor in (grad, indices) if not tensor.is_contiguous()]
    tokens, index = indices.numel(), tensor_bytes(indices)
    row = grad.shape[-1] * max(4, grad.element_size())
    segments = named["num_weights"]
    # Where they are sorted in any case, there may be less, but never more.
    rows = 0 if named["scale_grad_by_freq"] else tokens
    partial = {"rows": rows, "segments": segments if rows else 0}
    sorted_indices, order, positions = (_scratch(index, rows=rows) for _ in range(3))
    begins, keys, parts, offsets = (_scratch(index, rows=rows) for _ in range(4))
    first = len(copies)
    return (
        *copies,
        *(sorted_indices, order, positions, Freed(first + 2), Result(0)),
        *(begins, _scratch(8, rows=rows), keys, Freed(first + 5), parts, offsets),
        *(_scratch(8, rows=rows), _scratch(index, **partial), _scratch(tokens * row, **partial)),
    )


def _index(named: Mapping[str, Any], _: Card) -> tuple[Step, ...]:
    """TensorAdvancedIndexing.cpp `AdvancedIndex`: on CUDA all indices get the same strides."""
    import torch

    indices = [index for index in named["indices"] if index is not None]
    if len(indices) < 2 or any(index.dtype in (torch.bool, torch.uint8) for index in indices):
        return ()
    alike = torch.broadcast_tensors(*indices)
    if len({index.stride() for index in alike}) == 1:
        return ()
    return (*(tensor_bytes(index) for index in alike if not index.is_contiguous()), Result(0))


def _is_infinite(named: Mapping[str, Any], _: Card) -> tuple[Step, ...]:
    """TensorCompare.cpp `isinf`: the absolute values are compared."""
    return (tensor_bytes(named["self"]), Result(0))


def _index_put(named: Mapping[str, Any], _: Card) -> tuple[Step, ...]:
    """Indexing.cu `index_put_with_sort_kernel`, used when values are accumulated (torch 2.0-2.13).

    It allocates linear, sorted, original and counted indices and the second buffers of the radix
    sort for keys and values, 8 bytes each. Strided or broadcast values are copied.
    """
    indices = [index for index in named["indices"] if index is not None]
    if not named["accumulate"] or not indices or any(str(i.dtype) == "torch.bool" for i in indices):
        return ()
    target, values = named["self"], named["values"]
    count = max(index.numel() for index in indices)
    indexed = 1
    for size, index in zip(target.shape, named["indices"], strict=False):
        indexed *= size if index is not None else 1
    rows = count * (target.numel() // max(1, indexed))
    dense = values.is_contiguous() and values.numel() == rows
    copies = () if dense else (rows * values.element_size(),)
    if not target.is_contiguous():
        copies = (*copies, tensor_bytes(target))
    return (*copies, *(8 * count,) * 4, 16 * count)


def _foreach_norm(named: Mapping[str, Any], _: Card) -> tuple[Step, ...]:
    """ForeachReduceOp.cu `_foreach_tensor_norm_cuda_impl` (torch 2.1-2.13).

    One partial sum per chunk of 65,536 elements. Every tensor gets as many chunks as the largest
    one, so a large embedding among many small tensors makes this several MiB.
    """
    tensors = [tensor for tensor in named["self"] if tensor.numel()]
    if not tensors:
        return ()
    chunks = max(-(-tensor.numel() // 65536) for tensor in tensors)
    return (chunks * len(tensors) * max(4, tensors[0].element_size()), Result(OTHERS))


def _reduced(named: Mapping[str, Any], _: Card) -> tuple[Step, ...]:
    """Reduce.cuh `gpu_reduce_kernel`: partial sums and semaphores of sums over rows.

    Sums along contiguous memory leave a few KiB at most, which are left out. ReduceOps.cpp: a sum
    of whole numbers or truths first makes them int64.
    """
    tensor, dims = named["self"], named.get("dim")
    kept = set(range(tensor.dim())) - {dim % max(1, tensor.dim()) for dim in dims or ()}
    if not dims or not tensor.is_floating_point():
        counted = str(tensor.dtype) not in _ALREADY_WIDE and not tensor.is_floating_point()
        return (8 * tensor.numel(),) if counted and not named.get("dtype") else ()
    shape, strides = tensor.shape, tensor.stride()
    along = sorted((strides[dim], shape[dim]) for dim in kept if shape[dim] > 1)
    across = [strides[dim] for dim in range(tensor.dim()) if dim not in kept and shape[dim] > 1]
    if not along or not across or along[0][0] > min(across):
        return ()
    vector = 1
    if along[0][0] == 1:
        extent = 1
        others = list(across)
        for stride, size in along:
            if stride == extent:
                extent *= size
            else:
                others.append(stride)
        vector = next(n for n in (4, 2, 1) if all(v % n == 0 for v in (extent, *others)))
    results = 1
    for _, size in along:
        results *= size
    of = RowSum(
        results,
        tensor.numel() // results,
        vector,
        tensor.element_size(),
        max(4, tensor.element_size()),
    )
    return tuple(
        _scratch(0, row_sum=of._replace(semaphores=semaphores)) for semaphores in (False, True)
    )


def _matmul(named: Mapping[str, Any], _: Card) -> tuple[Step, ...]:
    """cuBlasCommonArgs.h `prepare_matrix_for_cublas`, Blas.cpp: operands that are copied first."""
    operands = [
        named[name] for name in ("self", "mat1", "mat2", "batch1", "batch2") if name in named
    ]
    return tuple(tensor_bytes(operand) for operand in operands[-2:] if not _fits_cublas(operand))


def _addmm(named: Mapping[str, Any], card: Card) -> tuple[Step, ...]:
    """Like `_matmul`. With a bias vector it uses cuBLASLt (CUDABlas.cpp `gemm_and_bias`).

    Before torch 2.11 cuBLASLt had a separate workspace of 1 MiB. Up to 2.6 it was freed after the
    call; later versions keep it.
    """
    separate = torch_release() < (2, 11) and named["self"].dim() == 1
    return (*_matmul(named, card), *((MIB,) if separate else ()))


def _is_flat(tensor: torch.Tensor) -> bool:
    """Whether a view with one dimension shows the same elements (`reshape` then copies nothing)."""
    sizes, strides = tensor.shape, tensor.stride()
    kept = [(size, stride) for size, stride in zip(sizes, strides, strict=True) if size != 1]
    return all(outer == size * stride for (_, outer), (size, stride) in pairwise(kept))


def _fits_cublas(matrix: torch.Tensor) -> bool:
    if matrix.dim() < 2:
        return True
    (rows, columns), (down, across) = matrix.shape[-2:], matrix.stride()[-2:]
    row_major = across == 1 and down >= max(1, columns)
    column_major = down == 1 and across >= max(1, rows)
    return bool(row_major or column_major or rows == 1 or columns == 1)


def _safe_softmax(named: Mapping[str, Any], _: Card) -> tuple[Step, ...]:
    """SoftMax.cpp `_safe_softmax` (torch 2.6-2.13): which scores and which rows are masked, one
    byte each, and the number that masked rows get."""
    scores = named["self"]
    rows = scores.numel() // max(1, scores.shape[named["dim"]])
    return (int(scores.numel()), int(rows), scores.element_size())


def _softmax_backward(named: Mapping[str, Any], _: Card) -> tuple[Step, ...]:
    """SoftMax.cu `softmax_backward_cuda_out`: the product of the gradient and the output."""
    grad = named["grad_output"]
    return (grad.numel() * max(grad.element_size(), named["output"].element_size()),)


def _flash_attention(_: Mapping[str, Any], __: Card) -> tuple[Step, ...]:
    """attention.cu, without a CUDA graph: while the operator returned a seed and an offset (torch
    2.6), they were on the host; the state of the generator that it returns now is on the device."""
    import torch

    returns = torch.ops.aten._scaled_dot_product_flash_attention.default._schema.returns
    return (OnHost(2), OnHost(3)) if returns[6].name == "philox_seed" else ()


def _gemm_4bit(named: Mapping[str, Any], _: Card) -> tuple[Step, ...]:
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


def _int8_matmul(named: Mapping[str, Any], _: Card) -> tuple[Step, ...]:
    """bitsandbytes backends/default/ops.py `int8_scaled_mm`: an int32 product, then fp16.

    The fp16 result is a separate block if the caller wants another dtype (0.46-0.50).
    """
    elements = named["A"].numel() // named["A"].shape[-1] * named["B"].shape[0]
    as_asked = named["dtype"] is None or str(named["dtype"]) == "torch.float16"
    return (4 * elements,) if as_asked else (4 * elements, 2 * elements)


def _int8_quant(named: Mapping[str, Any], _: Card) -> tuple[Step, ...]:
    """bitsandbytes backends/cuda/ops.py `int8_vectorwise_quant`: |A| and the mask of outliers."""
    if not named["threshold"]:
        return ()
    return tensor_bytes(named["A"]), named["A"].numel()


_RULES: dict[str, Rule] = {
    "aten::lift_fresh": _lift_fresh,
    "aten::embedding": _embedding,
    "aten::index": _index,
    "aten::isinf": _is_infinite,
    "aten::embedding_dense_backward": _embedding_backward,
    "aten::index_put": _index_put,
    "aten::index_put_": _index_put,
    "aten::_index_put_impl_": _index_put,
    "aten::_foreach_norm": _foreach_norm,
    "aten::sum": _reduced,
    "aten::mean": _reduced,
    "aten::mm": _matmul,
    "aten::bmm": _matmul,
    "aten::baddbmm": _matmul,
    "aten::addmm": _addmm,
    "aten::_safe_softmax": _safe_softmax,
    "aten::_softmax_backward_data": _softmax_backward,
    # Without a CUDA graph, attention.cu keeps seed and offset on the host.
    "aten::_scaled_dot_product_efficient_attention": lambda *_: (OnHost(2), OnHost(3)),
    "aten::_scaled_dot_product_flash_attention": _flash_attention,
    "aten::_scaled_dot_product_flash_attention_backward": lambda named, _: attention.flash(named),
    "aten::_scaled_dot_product_cudnn_attention_backward": lambda named, _: attention.cudnn(named),
    "aten::_scaled_dot_product_efficient_attention_backward": (
        lambda named, card: attention.efficient(named, card.compute_capability)
    ),
    "bitsandbytes::gemm_4bit": _gemm_4bit,
    # bitsandbytes backends/cuda/ops.py makes the constants before the packed values.
    "bitsandbytes::quantize_4bit": lambda *_: (Result(1), Result(0)),
    "bitsandbytes::quantize_blockwise": lambda *_: (Result(1), Result(0)),
    "bitsandbytes::int8_scaled_mm": _int8_matmul,
    "bitsandbytes::int8_vectorwise_quant": _int8_quant,
}
