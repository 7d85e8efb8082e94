"""Run flex attention on fake tensors as its compiled kernels run it on CUDA.

transformers compiles `flex_attention` and `create_block_mask`, and nothing can be compiled for
fake tensors. What the compiled code allocates is in torch/_inductor/kernel/flex/flex_attention.py
and common.py, and in the output of Inductor (`TORCH_LOGS=output_code`, torch 2.12): here are the
same blocks in the same order, with the same lives.

Each compilation also leaves a cycle of Python objects that holds the inputs of the call that was
compiled, until Python's collector comes by, which may be many steps later (seen on the emulated
GPU with torch 2.12: exactly these bytes came back with `gc.collect()`).
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING

import torch
from torch.autograd.function import FunctionCtx

from oomdoctor.analysis.allocator.sizes import round_size
from oomdoctor.worker.protocol import UnsupportedError
from oomdoctor.worker.replacing import own_operator, replaced, restored
from oomdoctor.worker.tracing.calls import OperatorCall
from oomdoctor.worker.tracing.steps import Lasting

if TYPE_CHECKING:
    from torch.nn.attention.flex_attention import BlockMask

_NAME = "flex_attention"
_BLOCK = 128  # _DEFAULT_SPARSE_BLOCK_SIZE


@contextmanager
def simulated_attention() -> Iterator[None]:
    """Let models with transformers' flex attention run without a compiler.

    Raises:
        UnsupportedError: this version of transformers or torch has no flex attention.
    """
    try:
        masks = importlib.import_module("transformers.masking_utils")
        own = importlib.import_module("transformers.integrations.flex_attention")
        modeling = importlib.import_module("transformers.modeling_utils")
        own.BlockMask, masks.create_block_mask, own.compile_friendly_flex_attention  # noqa: B018
    except (ImportError, AttributeError) as error:
        raise UnsupportedError(
            "flex_attention needs newer releases of transformers and torch"
        ) from error
    plain = own.flex_attention_forward
    compiled: dict[Hashable, int] = {}  # the calls, in the order of their first one
    functions = modeling.ALL_ATTENTION_FUNCTIONS._global_mapping
    with (
        replaced(masks, "create_block_mask", _block_mask),
        replaced(own, "compile_friendly_flex_attention", partial(_attention, compiled)),
        restored(functions, {_NAME: lambda module, *args, **kw: _forward(plain, module, args, kw)}),
    ):
        yield


def _forward(
    plain: Callable[..., tuple[torch.Tensor, None]],
    module: torch.nn.Module,
    args: Sequence[object],
    kwargs: dict[str, object],
) -> tuple[torch.Tensor, torch.Tensor]:
    """transformers' function, which returns log-sum-exps too on CUDA, in the type of the values."""
    value: torch.Tensor = args[2] if len(args) > 2 else kwargs["value"]
    beside: list[torch.Tensor] = []
    out, _ = plain(module, *args, **kwargs, kernel_options={"oomdoctor": (module, beside)})
    sums = beside[0].to(value.dtype)
    return out, sums


def _attention(
    compiled: dict[Hashable, int],
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    training: bool = False,
    *,
    block_mask: BlockMask | None,
    kernel_options: dict[str, tuple[torch.nn.Module, list[torch.Tensor]]],
    **_: object,
) -> torch.Tensor:
    """The compiled `flex_attention`; inputs are (batch, heads, length, head dimension).

    A call of another kind than those `compiled` before is compiled too.
    """
    if query.shape[-2] < _BLOCK:
        raise UnsupportedError(
            f"flex_attention with fewer than {_BLOCK} tokens uses another kernel, which is not "
            "simulated; use probe --emulate"
        )
    module, beside = kernel_options["oomdoctor"]
    if torch.is_autocast_enabled("cpu"):
        dtype = torch.get_autocast_dtype("cpu")
        query, key, value = query.to(dtype), key.to(dtype), value.to(dtype)
    held = [] if block_mask is None else _tensors_of_mask(block_mask)
    causal = bool(getattr(module, "is_causal", True))
    kind = (_code_of(getattr(block_mask, "mask_mod", None)), query.shape)
    number = compiled.setdefault(kind, len(compiled))
    out, *rest = _Flex.apply((causal, number), query, key, value, *held)
    beside.extend(rest)
    return out


class _Flex(torch.autograd.Function):  # type: ignore[misc]
    @staticmethod
    def forward(
        ctx: FunctionCtx, call: tuple[bool, int], *tensors: torch.Tensor
    ) -> tuple[torch.Tensor, ...]:
        query, key, value = tensors[:3]
        sums, maxima, out = own_operator(*_FORWARD)(query, key, value, call[0])
        ctx.call, ctx.count = call, len(tensors) - 3
        ctx.save_for_backward(query, key, value, out, sums, *tensors[3:])
        ctx.mark_non_differentiable(maxima)
        ctx.set_materialize_grads(False)
        return out, sums, maxima

    @staticmethod
    def backward(
        ctx: FunctionCtx, gradient: torch.Tensor, *_: object
    ) -> tuple[torch.Tensor | None, ...]:
        """AOTAutograd makes zeros for the sums, which nobody used, and frees what it can."""
        query, key, value, out, sums, *masks = ctx.saved_tensors
        clear = getattr(ctx, "maybe_clear_saved_tensors", None)
        if clear is not None:
            clear()
        zeros = torch.zeros_like(sums)
        delta = torch.empty_like(zeros)
        del out
        operator, besides = own_operator(*_BACKWARD), _rounded(masks)
        of_query, of_value, of_key = operator(query, key, value, *ctx.call, besides)
        del delta, sums, query, key, value, masks
        del zeros
        return None, of_query, of_key, of_value, *[None] * ctx.count


def _forward_results(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, is_causal: bool
) -> tuple[torch.Tensor, ...]:
    """Log-sum-exps and maxima of (batch, heads, length) in fp32, and the output."""
    sums = query.new_empty(query.shape[:-1], dtype=torch.float32)
    maxima = torch.empty_like(sums)
    return sums, maxima, _like(query, (*query.shape[:-1], value.shape[-1]))


def _gradients(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    is_causal: bool,
    kind: int,
    besides: int,
) -> tuple[torch.Tensor, ...]:
    """Those of query, value and key, in the order in which they are made."""
    batch = query.shape[0]
    of_query, of_value = _like(query, query.shape), _like(value, (batch, *value.shape[1:]))
    return of_query, of_value, _like(key, (batch, *key.shape[1:]))


_FORWARD = (
    "flex_attention_forward",
    "(Tensor query, Tensor key, Tensor value, bool is_causal) -> (Tensor, Tensor, Tensor)",
    _forward_results,
)
_BACKWARD = (
    "flex_attention_backward",
    "(Tensor query, Tensor key, Tensor value, bool is_causal, int kind, int besides) "
    "-> (Tensor, Tensor, Tensor)",
    _gradients,
)


def kept_of(call: OperatorCall) -> tuple[Lasting, ...]:
    """What stays of the call that was compiled; none for other operators."""
    schema = getattr(call.func, "_schema", None)
    if schema is None or schema.name != "oomdoctor::flex_attention_backward":
        return ()
    inputs = [_rounded([call.tensor(name)]) for name in ("query", "key", "value")]
    sizes, kind = [*inputs, call.number("besides")], call.number("kind")
    return tuple(
        Lasting(f"{_NAME}: input {at} of compiled call {kind}", size)
        for at, size in enumerate(sizes)
    )


def _rounded(tensors: Sequence[torch.Tensor]) -> int:
    """Bytes of the memory of tensors, each rounded as the allocator does."""
    return sum(round_size(tensor.untyped_storage().nbytes()) for tensor in tensors)


def _code_of(function: object) -> tuple[int, ...]:
    """The code of a function and of those that it calls: another one is compiled too."""
    numbers = [id(getattr(function, "__code__", None))]
    for value in _enclosed_by(function):
        if callable(value) and hasattr(value, "__code__"):
            numbers.extend(_code_of(value))
    return tuple(numbers)


def _like(tensor: torch.Tensor, shape: Sequence[int]) -> torch.Tensor:
    """`infer_dense_strides`: dense memory of a shape, in the order of a tensor's dimensions."""
    strides = tensor.stride()
    order = sorted(range(len(shape)), key=lambda at: strides[at], reverse=True)
    made = tensor.new_empty([shape[at] for at in order])
    return made.permute([order.index(at) for at in range(len(shape))])


def _block_mask(
    mask_mod: Callable[..., torch.Tensor],
    B: int | None,  # noqa: N803  (torch's names)
    H: int | None,  # noqa: N803
    Q_LEN: int,  # noqa: N803
    KV_LEN: int,  # noqa: N803
    device: object = None,
    **_: object,
) -> BlockMask:
    """The compiled `create_block_mask`: it counts blocks and never has a mask of all pairs."""
    from torch.nn.attention.flex_attention import BlockMask

    rows, columns = -(-Q_LEN // _BLOCK), -(-KV_LEN // _BLOCK)
    lead = (B or 1, H or 1)

    def made(*shape: int, dtype: torch.dtype = torch.int32) -> torch.Tensor:
        return torch.empty((*lead, *shape), dtype=dtype)

    counted = made(rows, columns, dtype=torch.int64)
    part, full = made(rows, columns + 1), made(rows, columns + 1)
    numbers = made(rows), made(rows)
    places = made(rows, columns), made(rows, columns)
    del counted
    columns_of_part, columns_of_full = made(columns, rows), made(columns, rows)
    number_of_part = made(columns)
    del part
    number_of_full = made(columns)
    del full
    return BlockMask(
        seq_lengths=(Q_LEN, KV_LEN),
        kv_num_blocks=numbers[0],
        kv_indices=places[0],
        full_kv_num_blocks=numbers[1],
        full_kv_indices=places[1],
        q_num_blocks=number_of_part,
        q_indices=columns_of_part,
        full_q_num_blocks=number_of_full,
        full_q_indices=columns_of_full,
        BLOCK_SIZE=(_BLOCK, _BLOCK),
        mask_mod=mask_mod,
    )


def _tensors_of_mask(mask: BlockMask) -> list[torch.Tensor]:
    """The tensors of a block mask, and those that its function reads."""
    names = ("kv_num_blocks", "kv_indices", "q_num_blocks", "q_indices")
    own = [getattr(mask, prefix + name) for name in names for prefix in ("", "full_")]
    return [*own, *_read_by(mask.mask_mod, set())]


def _read_by(function: object, seen: set[int]) -> Iterator[torch.Tensor]:
    """The tensors in the closures of a function and of the functions that it calls."""
    for value in _enclosed_by(function):
        if id(value) in seen:
            continue
        seen.add(id(value))
        if isinstance(value, torch.Tensor):
            yield value
        elif callable(value):
            yield from _read_by(value, seen)


def _enclosed_by(function: object) -> Iterator[object]:
    """What the closure of a function holds, also in lists."""
    for cell in getattr(function, "__closure__", None) or ():
        value = cell.cell_contents
        yield from value if isinstance(value, list | tuple) else (value,)
