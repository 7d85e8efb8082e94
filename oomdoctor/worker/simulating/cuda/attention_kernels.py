"""What the fused attention kernels hold, by backend: mostly accumulators of the backward pass.

The arguments are those of `aten::_scaled_dot_product_*_attention_backward` by name. Query, key and
value are (batch, heads, length, head dimension). The results are bytes of blocks, unrounded.
"""

from __future__ import annotations

import math

import torch

from oomdoctor.analysis.simulator.card import Card, held_threads
from oomdoctor.worker.tracing.calls import OperatorCall
from oomdoctor.worker.tracing.steps import OTHERS, Freed, OnHost, Result, Step
from oomdoctor.worker.tracing.tensors import tensor_bytes

FLOAT = 4


def flash_forward(call: OperatorCall, card: Card) -> tuple[Step, ...]:
    """flash_attn/flash_api.cpp `mha_fwd` and `set_params_splitkv` (torch 2.3-2.13).

    If few blocks of queries would leave multiprocessors idle, keys are split, and each split keeps
    its sums and its output in fp32. Without a CUDA graph (attention.cu), a seed and an offset that
    the operator returned (torch 2.6) were on the host; the state of the generator that it returns
    now is on the device.
    """
    returns = torch.ops.aten._scaled_dot_product_flash_attention.default._schema.returns
    on_host = (OnHost(2), OnHost(3)) if returns[6].name == "philox_seed" else ()
    batch, heads, length, dim = call.tensor("query").shape
    keys = call.tensor("key").shape[2]
    splits = (
        1 if call.argument("dropout_p") else _key_splits(batch * heads, length, keys, dim, card)
    )
    if splits == 1:
        return on_host
    sums = FLOAT * splits * batch * heads * length
    outputs = sums * _up(dim, 32 if dim <= 128 else 64)
    return (*on_host, Result(0), Result(1), sums, outputs, Result(OTHERS), Freed(0), Freed(1))


def _key_splits(heads: int, length: int, keys: int, dim: int, card: Card) -> int:
    """`num_splits_heuristic`: the fewest with 85% of the best use of the multiprocessors."""
    slots = 2 * held_threads(card)[0]
    blocks = heads * -(-length // 64)
    columns = -(-keys // (256 if dim <= 64 else 128 if dim <= 128 else 64))
    if blocks >= 0.8 * slots:
        return 1
    used: dict[int, float] = {}
    for splits in range(1, min(128, slots, columns) + 1):
        if splits == 1 or -(-columns // splits) != -(-columns // (splits - 1)):
            waves = blocks * splits / slots
            used[splits] = waves / math.ceil(waves)
    best = max(used.values())
    return next(splits for splits, share in used.items() if share >= 0.85 * best)


def flash(call: OperatorCall, _: Card) -> tuple[Step, ...]:
    """flash_attn/flash_api.cpp `mha_bwd` (FlashAttention 2, torch 2.3-2.13).

    softmax_d and dq_accum in fp32, over the length rounded up to 128. For grouped queries also dK
    and dV over all query heads, before they are summed. A strided incoming gradient or output is
    copied.
    """
    batch, heads, length, dim = call.tensor("query").shape
    key = call.tensor("key")
    rows, of_keys = batch * _up(length, 128), batch * key.shape[2]
    copies = _copies(call.tensor("grad_out"), call.tensor("out"))
    return (*copies, *_flash_accumulators(rows, heads, dim, key, of_keys))


def _flash_accumulators(
    rows: int, heads: int, dim: int, key: torch.Tensor, rows_of_keys: int
) -> tuple[int, ...]:
    sums = FLOAT * heads * rows
    of_queries = (sums, sums * _up(dim, 32 if dim <= 128 else 64))
    if key.shape[1] == heads:
        return of_queries
    expanded = rows_of_keys * heads * dim * key.element_size()
    return (*of_queries, expanded, expanded)


def flash_of_documents(call: OperatorCall, _: Card) -> tuple[Step, ...]:
    """flash_attn/csrc/flash_attn/flash_api.cpp `mha_varlen_bwd` (flash-attn 2.6-2.8).

    softmax_d and dq_accum in fp32 have 128 rows more for each document.
    """
    tokens, heads, dim = call.tensor("query").shape
    key = call.tensor("key")
    rows = tokens + 128 * (call.tensor("cum_seq_q").numel() - 1)
    grad = call.tensor("grad_out")
    copies = () if grad.is_contiguous() else (tensor_bytes(grad),)
    return (*copies, *_flash_accumulators(rows, heads, dim, key, key.shape[0]))


def cudnn(call: OperatorCall, _: Card) -> tuple[Step, ...]:
    """cudnn-frontend 1.2x scaled_dot_product_flash_attention.h, `get_fe_workspace_size_node`.

    One workspace: dQ in fp32 and the sums of the softmax. Only cuDNN knows what its engine needs in
    addition. For grouped queries that is at least dK and dV over all query heads.
    """
    batch, heads, length, dim = call.tensor("query").shape
    key = call.tensor("key")
    size = FLOAT * batch * heads * length * (dim + 1)
    if key.shape[1] != heads:
        size += 2 * batch * heads * key.shape[2] * dim * key.element_size()
    grad, out = call.tensor("grad_out"), call.tensor("out")
    copy = () if grad.stride() == out.stride() else (tensor_bytes(grad),)
    return (*copy, size)


def efficient(call: OperatorCall, card: Card) -> tuple[Step, ...]:
    """attention_backward.cu `_efficient_attention_backward`, mem_eff_attention/kernel_backward.h.

    delta in fp32 and `Params::workspace_size`: staging for dQ in tiles, and for dK and dV if the
    kernel does not hold them in registers (torch 2.1-2.13). Where the kernel does not compute delta
    (`kKernelComputesDelta`), it is the sum of a product in fp32.
    """
    query, key, value = (call.tensor(name) for name in ("query", "key", "value"))
    batch, heads, length, dim = query.shape
    tile_i, tile_j, largest = _cutlass_tiles(query, max(dim, value.shape[-1]), card)
    blocks_i, columns = -(-length // tile_i), -(-dim // tile_j)
    # GradQTempStorage: a tile of fp32 and 16 bytes for lock, counter and padding.
    stage = blocks_i * columns * (tile_i * tile_j * FLOAT + 16)
    half = query.element_size() == 2
    in_registers = half and largest <= tile_i
    if half and not in_registers:
        splits = max(1, min(-(-key.shape[2] // tile_j), 200 // max(1, batch * heads)))
        splits = splits if card >= (7, 0) else 1
        width = _up(dim, tile_i) + _up(value.shape[-1], tile_i)
        stage += FLOAT * splits * tile_j * width
    steps: list[Step] = [*_copies(call.tensor("grad_out_")), Result(OTHERS)]
    taken = len(steps) - 1
    delta = FLOAT * batch * heads * length
    if not half or (card == (7, 0) and not in_registers):
        product = FLOAT * call.tensor("out").numel()
        made = [*((product, product) if half else ()), product, delta]
        is_copied = heads > 1 and length > 1
        steps += [*made, *((delta,) if is_copied else ())]
        kept = taken + len(made) - (not is_copied)
        steps += [Freed(at) for at in reversed(range(taken, taken + len(made))) if at != kept]
    else:
        steps.append(delta)
        kept = taken
    return (*steps, batch * heads * _up(stage, 16), Freed(kept))


def _cutlass_tiles(query: torch.Tensor, dim: int, card: Card) -> tuple[int, int, int]:
    """The launched kernel's tile of queries, tile of keys and largest head dimension.

    mem_eff_attention/kernels/cutlassB.h `dispatch_cutlassB_*`: the first kernel that accepts the
    head dimension and fits into shared memory. Tiles of 128 need more than consumer cards have.
    """
    if dim <= 64:
        return 64, 64, 32 if dim <= 32 else 64
    half, consumer = query.element_size() == 2, card in ((8, 6), (8, 9), (12, 0), (12, 1))
    if half and card in ((8, 6), (8, 9)) and dim <= 96:
        return 128, 64, 96
    if dim <= 128:
        large = half and card >= (7, 0) and not consumer
        return (128, 128, 128) if large else (64, 64, 128)
    return (128 if half and card >= (8, 0) and not consumer else 64), 64, 65536


def _copies(*tensors: torch.Tensor) -> tuple[int, ...]:
    return tuple(tensor_bytes(tensor) for tensor in tensors if not _is_dense(tensor))


def _is_dense(tensor: torch.Tensor) -> bool:
    """Whether (batch, heads, length, dim) is contiguous after swapping heads and length."""
    _, heads, length, dim = tensor.shape
    expected = (length * heads * dim, dim, heads * dim, 1)
    strides = zip(tensor.shape, tensor.stride(), expected, strict=True)
    return all(size == 1 or stride == wanted for size, stride, wanted in strides)


def _up(value: int, multiple: int) -> int:
    return -(-value // multiple) * multiple
