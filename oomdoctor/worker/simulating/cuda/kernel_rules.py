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

import torch
from torch._ops import OpOverload

from oomdoctor.analysis.simulator.card import Card
from oomdoctor.worker.simulating.cuda import attention_kernels
from oomdoctor.worker.simulating.cuda import kernel_indexing as indexing
from oomdoctor.worker.simulating.cuda import kernel_reductions as reductions
from oomdoctor.worker.tracing.calls import OperatorCall
from oomdoctor.worker.tracing.steps import OTHERS, Freed, OnHost, Result, Step
from oomdoctor.worker.tracing.tensors import tensor_bytes


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
    "aten::embedding": indexing.embedding,
    "aten::index": indexing.index,
    "aten::nonzero": indexing.nonzero,
    "aten::masked_scatter": indexing.masked_scatter,
    "aten::masked_scatter_backward": indexing.masked_scatter_backward,
    "aten::max": reductions.extreme,
    "aten::min": reductions.extreme,
    "aten::cumsum": reductions.running,
    # BatchLinearAlgebraLib.cpp `svd_cusolver`: a number, and a copy that is destroyed. The memory
    # that cuSOLVER itself works in is left out, because only it knows how much that is.
    "aten::_linalg_svd": lambda call, _: (Result(OTHERS), 4, tensor_bytes(call.tensor("A"))),
    # TensorCompare.cpp `isinf`: the absolute values are compared.
    "aten::isinf": lambda call, _: (tensor_bytes(call.tensor("self")), Result(0)),
    "aten::embedding_dense_backward": indexing.embedding_backward,
    "aten::index_put": indexing.index_put,
    "aten::index_put_": indexing.index_put,
    "aten::_index_put_impl_": indexing.index_put,
    "aten::_foreach_norm": reductions.foreach_norm,
    "aten::sum": reductions.reduced,
    "aten::mean": reductions.reduced,
    "aten::native_layer_norm": reductions.normalized,
    "aten::native_layer_norm_backward": reductions.normalized,
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
