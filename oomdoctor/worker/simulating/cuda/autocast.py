"""Make autocast on fake CPU tensors cast what `torch.autocast("cuda")` would cast.

The lists for CPU and CUDA differ: CUDA runs layer_norm, softmax, sums and powers in fp32. Entries
that only CUDA has become Python kernels at the CPU's autocast key. Entries that only the CPU has
fall through. Entries on both lists stay with C++: linear, matmul and attention, with their cache of
cast weights. The policies are in `data/operators.toml`; the installed torch says which names have
one.
"""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack
from typing import TypedDict

import torch
from torch._ops import OpOverload

from oomdoctor.package_data import data_of
from oomdoctor.worker.replacing import implemented, replaced
from oomdoctor.worker.tracing.tensors import tensors_in

Kernel = Callable[..., torch.Tensor]


class Lists(TypedDict):
    """The entries of CUDA's list by what it does with them, see `data/operators.toml`."""

    left_out: list[str]
    lower: list[str]
    promote: list[str]
    by_dtype: dict[str, str]


@contextlib.contextmanager
def cuda_autocast() -> Iterator[None]:
    """Make `torch.autocast("cpu", ...)` behave like CUDA's while this context is open.

    Code without autocast is not affected. The kernels are registered for the whole process, so only
    one simulation can run at a time.
    """
    ours, theirs = _registered("AutocastCPU"), _registered("AutocastCUDA")
    lists: Lists = data_of("operators.toml")["autocast"]
    kernels = {name: made for name in sorted(theirs - ours) if (made := _kernel(name, lists))}
    kernels |= dict.fromkeys(sorted(ours - theirs), torch.library.fallthrough_kernel)
    with ExitStack() as stack:
        with warnings.catch_warnings():
            # PyTorch warns that entries of the CPU's list are overridden, which is the purpose.
            warnings.simplefilter("ignore", UserWarning)
            stack.enter_context(implemented(kernels, "AutocastCPU"))
        # peft's layers ask without a device type, which asks for CUDA's autocast.
        enabled = torch.is_autocast_enabled
        by_default = replaced(
            torch, "is_autocast_enabled", lambda device_type="cpu": bool(enabled(device_type))
        )
        stack.enter_context(by_default)
        yield


def _registered(key: str) -> set[str]:
    names = torch._C._dispatch_get_registrations_for_dispatch_key(key)
    return {name.removeprefix("aten::") for name in names if name.startswith("aten::")}


def _kernel(name: str, lists: Lists) -> Kernel | None:
    """What CUDA does with this entry of its list. Names in no list are AT_FORALL_FP32."""
    if name in lists["left_out"] or "name" in name.lower():  # overloads for named tensors
        return None
    operator = _operator(name)
    if name in lists["lower"]:
        return _casting(operator, lambda _: _lower_precision())
    if name in lists["promote"]:
        return _casting(operator, _widest)
    if name in lists["by_dtype"]:
        return _with_dtype(operator, _operator(lists["by_dtype"][name]), name)
    return _casting(operator, lambda _: torch.float32)


def _casting(operator: OpOverload, target: Callable[[list[torch.Tensor]], torch.dtype]) -> Kernel:
    """Cast every floating-point argument to one dtype, then run without autocast."""

    def kernel(*args: object, **kwargs: object) -> torch.Tensor:
        with _no_autocast():
            dtype = target([*_floats(args), *_floats(kwargs.values())])
            cast = [_cast(value, dtype) for value in args]
            return operator(*cast, **{key: _cast(value, dtype) for key, value in kwargs.items()})

    return kernel


def _with_dtype(plain: OpOverload, typed: OpOverload, name: str) -> Kernel:
    """Ask for an fp32 result if the caller named no dtype; the operator casts by itself."""
    aten = torch.ops.aten
    halves = {"softmax.int": aten._softmax, "log_softmax.int": aten._log_softmax}.get(name)

    def kernel(tensor: torch.Tensor, *args: object, **kwargs: object) -> torch.Tensor:
        with _no_autocast():
            given = _named(plain, (tensor, *args), kwargs)
            if given.get("dtype") is not None or not _is_float(tensor):
                return plain(tensor, *args, **kwargs)
            if halves is not None and tensor.dtype == torch.float16:
                # SoftMax.cpp: the CUDA kernel reads fp16 and writes fp32, without a copy.
                return halves(tensor, given["dim"], True)
            given.pop("self")
            return typed(tensor, **(given | {"dtype": torch.float32}))

    return kernel


def _named(
    operator: OpOverload, args: tuple[object, ...], kwargs: Mapping[str, object]
) -> dict[str, object]:
    names = [argument.name for argument in operator._schema.arguments]
    return {**dict(zip(names, args, strict=False)), **kwargs}


def _cast(value: object, dtype: torch.dtype) -> object:
    if isinstance(value, list | tuple):
        return [_cast(item, dtype) for item in value]
    return value.to(dtype) if isinstance(value, torch.Tensor) and _is_float(value) else value


def _floats(values: Iterable[object]) -> Iterator[torch.Tensor]:
    """The tensors that are cast, also in lists."""
    return filter(_is_float, tensors_in(list(values)))


def _is_float(tensor: torch.Tensor) -> bool:
    """autocast_mode.h `is_eligible`: floating-point tensors, but not doubles."""
    return tensor.dtype in (torch.float32, torch.float16, torch.bfloat16)


def _widest(tensors: list[torch.Tensor]) -> torch.dtype:
    wide = any(tensor.dtype == torch.float32 for tensor in tensors)
    return torch.float32 if wide else _lower_precision()


def _lower_precision() -> torch.dtype:
    return torch.get_autocast_dtype("cpu")


def _operator(name: str) -> OpOverload:
    base, _, overload = name.partition(".")
    return getattr(getattr(torch.ops.aten, base), overload or "default")


def _no_autocast() -> AbstractContextManager[None]:
    keys = torch._C.DispatchKeySet(torch._C.DispatchKey.AutocastCPU)
    guard: AbstractContextManager[None] = torch._C._ExcludeDispatchKeyGuard(keys)
    return guard
