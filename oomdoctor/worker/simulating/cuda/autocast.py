"""Autocast on fake CPU tensors casts what `torch.autocast("cuda")` would cast.

CPU's and CUDA's lists differ: CUDA runs layer_norm, softmax, sums and powers in fp32. Python
kernels at CPU's autocast key take CUDA's entries, and entries that only CPU has are undone. What
both lists share stays with C++: linear, matmul and attention with their cache of cast weights.
Policies: ATen/autocast_mode.h, torch 2.13; which names have one is asked of the installed torch.
"""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Iterator, Mapping
from typing import Any
from unittest import mock

# AT_FORALL_FP32_SET_OPT_DTYPE: computed in and returned as fp32 unless the caller names a dtype.
_FP32_BY_DTYPE = frozenset(
    {
        "softmax.int",
        "log_softmax.int",
        "cumprod",
        "cumsum",
        "linalg_vector_norm",
        "linalg_matrix_norm",
        "linalg_matrix_norm.str_ord",
        "sum",
        "sum.dim_IntList",
    }
)
# AT_FORALL_DIFFERENT_REDISPATCH_SIGNATURE: the overload with a dtype takes over.
_FP32_APPENDED = {
    "norm.Scalar": "norm.ScalarOpt_dtype",
    "norm.ScalarOpt_dim": "norm.ScalarOpt_dim_dtype",
}
# AT_FORALL_PROMOTE
_PROMOTE = frozenset(
    {
        "addcdiv",
        "addcmul",
        "atan2",
        "bilinear",
        "cross",
        "dot",
        "vdot",
        "index_put",
        "tensordot",
        "scatter_add",
    }
)
# AT_FORALL_LOWER_PRECISION_FP, the entries that CPU lacks. Weights of these are cast at every use.
_LOWER = frozenset(
    {
        "_convolution",
        "convolution",
        "addmv",
        "addr",
        "chain_matmul",
        "linalg_multi_dot",
        "mv",
    }
)
# C++ handles these well enough: einsum ends in bmm, the others are no operators of transformers.
_LEFT_OUT = frozenset(
    {
        "einsum",
        "_scaled_dot_product_flash_attention",
        "_thnn_fused_gru_cell",
        "_thnn_fused_lstm_cell",
        "gru_cell",
        "lstm_cell",
        "rnn_relu_cell",
        "rnn_tanh_cell",
        "_cudnn_rnn",
        "cudnn_convolution",
        "cudnn_convolution_transpose",
    }
)

Kernel = Callable[..., Any]


@contextlib.contextmanager
def cuda_autocast() -> Iterator[None]:
    """`torch.autocast("cpu", ...)` behaves as CUDA's while this context is open.

    Without autocast nothing changes. Registration is process-wide: one simulation at a time.
    """
    import torch

    library = torch.library.Library("aten", "IMPL")
    ours, theirs = _registered("AutocastCPU"), _registered("AutocastCUDA")
    with warnings.catch_warnings():
        # PyTorch warns that entries of CPU's list are overridden, which is what this is for.
        warnings.simplefilter("ignore", UserWarning)
        for name in sorted(theirs - ours):
            kernel = _kernel(name)
            if kernel is not None:
                library.impl(name, kernel, "AutocastCPU")
        for name in sorted(ours - theirs):
            library.impl(name, torch.library.fallthrough_kernel, "AutocastCPU")
    try:
        # Without a device type CUDA's autocast is asked for, as peft's layers do.
        with mock.patch.object(torch, "is_autocast_enabled", _asked(torch.is_autocast_enabled)):
            yield
    finally:
        library._destroy()


def _asked(enabled: Callable[..., bool]) -> Callable[..., bool]:
    return lambda device_type="cpu": bool(enabled(device_type))


def _registered(key: str) -> set[str]:
    import torch

    names = torch._C._dispatch_get_registrations_for_dispatch_key(key)
    return {name.removeprefix("aten::") for name in names if name.startswith("aten::")}


def _kernel(name: str) -> Kernel | None:
    """What CUDA does with this entry of its list; what is in no table is AT_FORALL_FP32."""
    if name in _LEFT_OUT or "name" in name.lower():  # overloads for named tensors
        return None
    operator = _operator(name)
    if name in _LOWER:
        return _casting(operator, lambda _: _lower_precision())
    if name in _PROMOTE:
        return _casting(operator, _widest)
    if name in _FP32_BY_DTYPE:
        return _with_dtype(operator, operator, name)
    if name in _FP32_APPENDED:
        return _with_dtype(operator, _operator(_FP32_APPENDED[name]), name)
    return _casting(operator, lambda _: _float32())


def _casting(operator: Any, target: Callable[[list[Any]], Any]) -> Kernel:
    """Cast every floating argument to one dtype, then run without autocast."""

    def kernel(*args: Any, **kwargs: Any) -> Any:
        with _no_autocast():
            dtype = target([*_floats(args), *_floats(kwargs.values())])
            cast = [_cast(value, dtype) for value in args]
            return operator(*cast, **{key: _cast(value, dtype) for key, value in kwargs.items()})

    return kernel


def _with_dtype(plain: Any, typed: Any, name: str) -> Kernel:
    """Ask for an fp32 result where the caller named no dtype; the operator casts by itself."""
    import torch

    halves = {
        "softmax.int": torch.ops.aten._softmax,
        "log_softmax.int": torch.ops.aten._log_softmax,
    }.get(name)

    def kernel(tensor: Any, *args: Any, **kwargs: Any) -> Any:
        with _no_autocast():
            given = _named(plain, (tensor, *args), kwargs)
            if given.get("dtype") is not None or not list(_floats([tensor])):
                return plain(tensor, *args, **kwargs)
            if halves is not None and tensor.dtype == torch.float16:
                # SoftMax.cpp: on CUDA the kernel reads fp16 and writes fp32, without a copy.
                return halves(tensor, given["dim"], True)
            given.pop("self")
            return typed(tensor, **(given | {"dtype": torch.float32}))

    return kernel


def _named(operator: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    names = [argument.name for argument in operator._schema.arguments]
    return {**dict(zip(names, args, strict=False)), **kwargs}


def _cast(value: Any, dtype: Any) -> Any:
    if isinstance(value, list | tuple):
        return [_cast(item, dtype) for item in value]
    return value.to(dtype) if list(_floats([value])) else value


def _floats(values: Any) -> Iterator[Any]:
    """autocast_mode.h `is_eligible`: floating point tensors, but no doubles."""
    import torch

    eligible = (torch.float32, torch.float16, torch.bfloat16)
    for value in values:
        if isinstance(value, list | tuple):
            yield from _floats(value)
        elif isinstance(value, torch.Tensor) and value.dtype in eligible:
            yield value


def _widest(tensors: list[Any]) -> Any:
    wide = any(tensor.dtype == _float32() for tensor in tensors)
    return _float32() if wide else _lower_precision()


def _float32() -> Any:
    import torch

    return torch.float32


def _lower_precision() -> Any:
    import torch

    return torch.get_autocast_dtype("cpu")


def _operator(name: str) -> Any:
    import torch

    base, _, overload = name.partition(".")
    return getattr(getattr(torch.ops.aten, base), overload or "default")


def _no_autocast() -> Any:
    import torch

    keys = torch._C.DispatchKeySet(torch._C.DispatchKey.AutocastCPU)
    return torch._C._ExcludeDispatchKeyGuard(keys)
