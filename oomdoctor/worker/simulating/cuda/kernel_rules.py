"""What a CUDA kernel does with memory inside one operator, which fake tensors do not show.

Every rule names the upstream source it was read from. An operator without a rule has no scratch, or
scratch that is left out on purpose:

- reductions to few numbers (Reduce.cuh), and the tables of scans, sorts and top-k of routers: a few
  MiB at most, freed at once and never alive at the peak;
- layer_norm backward: partial sums since torch 2.8, but only above 64 Ki rows;
- foreach and fused optimizers: their tables are kernel arguments (MultiTensorApply.cuh), and the
  copies of foreach optimizers are results, so the trace sees them;
- convolutions: cuDNN chooses the workspace at run time, so there is no formula for it.
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod

import torch
from torch._ops import OpOverload

from oomdoctor.analysis.simulator.card import Card
from oomdoctor.worker.simulating.cuda import attention_kernels
from oomdoctor.worker.simulating.cuda import kernel_reductions as reductions
from oomdoctor.worker.tracing.calls import OperatorCall
from oomdoctor.worker.tracing.steps import OTHERS, Freed, OnHost, Result, Scratch, Step
from oomdoctor.worker.tracing.tensors import is_flat, tensor_bytes


def matmul(call: OperatorCall, _: Card) -> tuple[Step, ...]:
    """cuBlasCommonArgs.h `prepare_matrix_for_cublas`, Blas.cpp: operands that are copied first."""
    names = ("self", "mat1", "mat2", "batch1", "batch2")
    operands = [operand for operand in map(call.tensor, names) if operand is not None]
    return tuple(tensor_bytes(operand) for operand in operands[-2:] if not _fits_cublas(operand))


def _fits_cublas(matrix: torch.Tensor) -> bool:
    if matrix.dim() < 2:
        return True
    (rows, columns), (down, across) = matrix.shape[-2:], matrix.stride()[-2:]
    row_major = across == 1 and down >= max(1, columns)
    column_major = down == 1 and across >= max(1, rows)
    return bool(row_major or column_major or rows == 1 or columns == 1)


def convolution(call: OperatorCall, _: Card) -> tuple[Step, ...]:
    """Convolution.cpp `_convolution`, `convolution_backward`: with one dimension, the operands are
    made contiguous first, such as wav2vec2's where a layer norm has the channels last.
    """
    if call.tensor("weight").dim() != 3:
        return ()
    operands = [call.tensor(name) for name in ("input", "grad_output")]
    copies = [
        tensor_bytes(operand)
        for operand in operands
        if operand is not None and not operand.is_contiguous()
    ]
    return (*copies, Result(OTHERS)) if copies else ()


def gemm_4bit(call: OperatorCall, _: Card) -> tuple[Step, ...]:
    """bitsandbytes 0.50 backends/cuda/ops.py `_dequant_linear_fallback`: the dequantized weight.

    Nested constants are added, twice in fp32. Fused kernels avoid this up to 1,536 tokens on some
    cards and shapes. The backward pass always dequantizes, so the peak stays the same.
    Python frees the constants before the weight.
    """
    tokens = call.tensor("A").numel() // call.tensor("A").shape[-1]
    if tokens <= 4:  # `_GEMM_4BIT_CUSTOM_FLOOR_M`: always fused
        return ()
    rows, columns = call.sizes("shapeB")
    nested = call.tensor("absmax_8bit")
    weight = rows * columns * call.tensor("A").element_size()
    if nested is None:
        return (weight, Result(0))
    constants = 4 * nested.numel()
    return (constants, constants, weight, Result(0), Freed(1), Freed(0))


def int8_matmul(call: OperatorCall, _: Card) -> tuple[Step, ...]:
    """bitsandbytes backends/default/ops.py `int8_scaled_mm`: an int32 product, then fp16.

    The fp16 result is a separate block if the caller wants another dtype (0.46-0.50).
    """
    elements = call.tensor("A").numel() // call.tensor("A").shape[-1] * call.tensor("B").shape[0]
    as_asked = call.argument("dtype") in (None, torch.float16)
    return (4 * elements,) if as_asked else (4 * elements, 2 * elements)


def int8_quant(call: OperatorCall, _: Card) -> tuple[Step, ...]:
    """bitsandbytes backends/cuda/ops.py `int8_vectorwise_quant`: |A| and the mask of outliers."""
    if not call.argument("threshold"):
        return ()
    return tensor_bytes(call.tensor("A")), call.tensor("A").numel()


def embedding(call: OperatorCall, _: Card) -> tuple[Step, ...]:
    """Embedding.cpp `embedding_symint`: `reshape(-1)` copies indices that are no flat memory."""
    indices = call.tensor("indices")
    return () if is_flat(indices) else (tensor_bytes(indices), Result(0))


def embedding_backward(call: OperatorCall, _: Card) -> tuple[Step, ...]:
    """Embedding.cu `embedding_dense_backward_cuda`, EmbeddingBackwardKernel.cu (torch 1.11-2.13).

    Up to 3,072 tokens (`SORTED_ROWS`), one kernel works in place. Above that, the indices are
    sorted and cut into segments. Each segment is summed in parts of ten rows, and one fp32 row is
    kept for each part; how many there are at most is known without reading them. What the sort and
    the scans take for themselves is left out: except for the sort, it is a few KiB.
    """
    grad, indices = call.tensor("grad_output"), call.tensor("indices")
    copies = [tensor_bytes(tensor) for tensor in (grad, indices) if not tensor.is_contiguous()]
    tokens, index = indices.numel(), tensor_bytes(indices)
    row = grad.shape[-1] * max(4, grad.element_size())
    segments = call.number("num_weights")
    # Where they are sorted in any case, there may be less, but never more.
    rows = 0 if call.argument("scale_grad_by_freq") else tokens
    segments = segments if rows else 0
    sorted_indices, order, positions = (Scratch(index, rows) for _ in range(3))
    begins, keys, parts, offsets = (Scratch(index, rows) for _ in range(4))
    first = len(copies)
    return (
        *copies,
        *(sorted_indices, order, positions, Freed(first + 2), Result(0)),
        *(begins, Scratch(8, rows), keys, Freed(first + 5), parts, offsets),
        *(Scratch(8, rows), Scratch(index, rows, segments), Scratch(tokens * row, rows, segments)),
    )


_COUNT = (4, 1, Freed(1))  # the number of elements that a mask selects, and what the sum takes

_SCAN = 1279  # what DeviceScan takes for a few thousand elements

_SELECT = 1023  # what DeviceSelect takes for up to a few thousand elements


def nonzero(call: OperatorCall, _: Card) -> tuple[Step, ...]:
    """Nonzero.cu `nonzero_cuda_out_impl`: the elements are counted, then selected."""
    return (*_COUNT, Result(0), _SELECT, Freed(2))


def index(call: OperatorCall, _: Card) -> tuple[Step, ...]:
    """TensorAdvancedIndexing.cpp `AdvancedIndex`: on CUDA all indices get the same strides.

    A mask becomes the places of its elements (`expandTensors`).
    """
    indices = call.tensors("indices")
    if any(_is_mask(index) for index in indices):
        mask, *others = indices
        result: torch.Tensor = call.result
        return () if others else (*_places(mask, result.shape[0]), Result(0))
    if len(indices) < 2:
        return ()
    alike = torch.broadcast_tensors(*indices)
    if len({index.stride() for index in alike}) == 1:
        return ()
    return (*(tensor_bytes(index) for index in alike if not index.is_contiguous()), Result(0))


def index_put(call: OperatorCall, _: Card) -> tuple[Step, ...]:
    """Indexing.cu `index_put_with_sort_kernel`, used when values are accumulated (torch 2.0-2.13).

    It allocates linear, sorted, original and counted indices and the second buffers of the radix
    sort for keys and values, 8 bytes each. Strided or broadcast values are copied.
    """
    indices = call.tensors("indices")
    if not call.argument("accumulate") or not indices:
        return ()
    if any(_is_mask(index) for index in indices):
        return () if len(indices) > 1 else _put_by_mask(indices[0], call.tensor("values"))
    target, values = call.tensor("self"), call.tensor("values")
    count = max(index.numel() for index in indices)
    places = zip(target.shape, call.tensor("indices"), strict=False)
    indexed = prod(size for size, index in places if index is not None)
    rows = count * (target.numel() // max(1, indexed))
    dense = values.is_contiguous() and values.numel() == rows
    copies = () if dense else (rows * values.element_size(),)
    if not target.is_contiguous():
        copies = (*copies, tensor_bytes(target))
    # What the sort of linear indices holds, and its second buffers for keys and values.
    return (*copies, *(8 * count,) * 4, 16 * count)


def masked_scatter(call: OperatorCall, _: Card) -> tuple[Step, ...]:
    """IndexKernel.cu `masked_scatter_cuda_impl`: how many elements are selected before each.

    A mask that is broadcast is copied.
    """
    tensor, mask = call.tensor("self"), call.tensor("mask")
    counts = 8 * tensor.numel()
    if mask.shape == tensor.shape and mask.is_contiguous():
        return (Result(0), counts, _SCAN, Freed(1))
    return (Result(0), counts, tensor.numel(), _SCAN, Freed(2))


def masked_scatter_backward(call: OperatorCall, _: Card) -> tuple[Step, ...]:
    """TensorAdvancedIndexing.cpp `masked_scatter_backward_symint`: the gradients that are selected
    are read by index."""
    return (*_places(call.tensor("mask"), prod(call.sizes("sizes"))), Result(0))


def _is_mask(index: torch.Tensor) -> bool:
    return str(index.dtype) in ("torch.bool", "torch.uint8")


def _places(mask: torch.Tensor, count: int) -> tuple[Step, ...]:
    """The places of `count` elements of a mask, which are held until the end."""
    return (*_COUNT, 8 * count * mask.dim(), _SELECT, Freed(3), Freed(0))


def _put_by_mask(mask: torch.Tensor, values: torch.Tensor) -> tuple[Step, ...]:
    """The values are as many rows as the mask has elements; its places are freed before the sort.

    The sort is of one tile up to a few thousand elements, where it needs no second buffers.
    """
    count = values.shape[0] if values.dim() else 1
    return (*_places(mask, count), 8 * count, Freed(2), *(8 * count,) * 3)


Rule = Callable[[OperatorCall, Card], tuple[Step, ...]]

# Only these rules differ by card.
_OF_CARDS = (
    "aten::_scaled_dot_product_efficient_attention_backward",
    "aten::_scaled_dot_product_flash_attention",
)


def differs_by_card(func: OpOverload) -> bool:
    """Whether the blocks that the kernel of `func` holds depend on the card."""
    return hasattr(func, "_schema") and func._schema.name in _OF_CARDS


def steps_of(call: OperatorCall, card: Card) -> tuple[Step, ...]:
    """What the CUDA kernel of an operator does with memory while it runs.

    Only shapes, strides and dtypes are read, so fake tensors work. An unknown operator gives ().
    """
    schema = getattr(call.func, "_schema", None)
    rule = None if schema is None else _RULES.get(schema.name)
    return () if rule is None else rule(call, card)


_RULES: dict[str, Rule] = {
    "aten::embedding": embedding,
    "aten::index": index,
    "aten::nonzero": nonzero,
    "aten::masked_scatter": masked_scatter,
    "aten::masked_scatter_backward": masked_scatter_backward,
    "aten::max": reductions.extreme,
    "aten::min": reductions.extreme,
    "aten::cumsum": reductions.running,
    # BatchLinearAlgebraLib.cpp `svd_cusolver`: a number, and a copy that is destroyed. The memory
    # that cuSOLVER itself works in is left out, because only it knows how much that is.
    "aten::_linalg_svd": lambda call, _: (Result(OTHERS), 4, tensor_bytes(call.tensor("A"))),
    # TensorCompare.cpp `isinf`: the absolute values are compared.
    "aten::isinf": lambda call, _: (tensor_bytes(call.tensor("self")), Result(0)),
    "aten::embedding_dense_backward": embedding_backward,
    "aten::index_put": index_put,
    "aten::index_put_": index_put,
    "aten::_index_put_impl_": index_put,
    "aten::_foreach_norm": reductions.foreach_norm,
    "aten::sum": reductions.reduced,
    "aten::mean": reductions.reduced,
    "aten::native_layer_norm": reductions.normalized,
    "aten::native_layer_norm_backward": reductions.normalized,
    "aten::convolution": convolution,
    "aten::convolution_backward": convolution,
    "aten::mm": matmul,
    "aten::bmm": matmul,
    "aten::baddbmm": matmul,
    "aten::addmm": matmul,
    "aten::_safe_softmax": reductions.safe_softmax,
    "aten::_softmax_backward_data": reductions.softmax_backward,
    # Without a CUDA graph, attention_kernels.cu keeps seed and offset on the host.
    "aten::_scaled_dot_product_efficient_attention": lambda *_: (OnHost(2), OnHost(3)),
    # MHA.cpp: the numbers of the generator are made before the results.
    "aten::_scaled_dot_product_cudnn_attention": lambda *_: (Result(2), Result(3), Result(OTHERS)),
    "aten::_scaled_dot_product_flash_attention": attention_kernels.flash_forward,
    "aten::_scaled_dot_product_flash_attention_backward": attention_kernels.flash,
    # The package has no second number; its generator's state is on the device.
    "aten::_flash_attention_forward": lambda *_: (OnHost(3),),
    "aten::_flash_attention_backward": attention_kernels.flash_of_documents,
    "aten::_scaled_dot_product_cudnn_attention_backward": attention_kernels.cudnn,
    "aten::_scaled_dot_product_efficient_attention_backward": attention_kernels.efficient,
    "bitsandbytes::gemm_4bit": gemm_4bit,
    # bitsandbytes backends/cuda/ops.py makes the constants before the packed values.
    "bitsandbytes::quantize_4bit": lambda *_: (Result(1), Result(0)),
    "bitsandbytes::quantize_blockwise": lambda *_: (Result(1), Result(0)),
    "bitsandbytes::int8_scaled_mm": int8_matmul,
    "bitsandbytes::int8_vectorwise_quant": int8_quant,
}
