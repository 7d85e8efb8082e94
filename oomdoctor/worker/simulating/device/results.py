"""Remember what operators return on fake tensors, and make the same result again.

A step calls few different operators with few different shapes, but thousands of times: once for
each layer, phase and rung. torch's own cache of fake kernels describes an argument by 16 values,
which takes longer than most kernels. Here an argument is its shape, strides, type and device, and a
result that was seen before is made from these directly. Where an argument begins in its memory only
moves its views: a scan over positions has thousands that differ in nothing else.

What this does not describe has to be asked of torch: operators whose results depend on values,
tensors whose values are known, complex numbers, results that share memory with each other.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from functools import cache

import torch
from torch._ops import OpOverload
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

from oomdoctor.worker.tracing.tensors import memory_of, tensors_in

Arguments = Sequence[object]
Again = Callable[["Maker", Arguments], object]
"""Makes a result that was seen before, from other arguments of the same shapes and types."""


@cache
def is_regular(func: OpOverload) -> bool:
    """Whether the shapes of an operator's arguments say what it returns."""
    tag = torch.Tag
    irregular = (tag.data_dependent_output, tag.dynamic_output_shape, tag.inplace_view)
    if not isinstance(func, torch._ops.OpOverload) or any(
        label in func.tags for label in irregular
    ):
        return False
    return func.namespace != "prim" and "lift" not in func._schema.name


Describe = Callable[[OpOverload, Sequence[object], Mapping[str, object] | None], Hashable | None]


def describer() -> Describe:
    """A function of an operator and its arguments that returns what their result depends on.

    It returns None if it does not know, such as for a tensor whose values are known.
    """
    numbers = frozenset((int, float, bool))
    plain = frozenset(
        (type(None), str, torch.dtype, torch.device, torch.layout, torch.memory_format)
    )
    sequences = frozenset((list, tuple, torch.Size))
    default, device = torch.get_default_dtype, torch._C._get_default_device
    aten = torch.ops.aten
    # Which position is selected, of many in a scan, shapes no result.
    position_of = {aten.select.int: 2, aten.select_backward.default: 3}
    position_of[aten.select_scatter.default] = 3
    # Their results do not begin as far behind what they view, or are as large as what is before it.
    by_offset = {aten.as_strided.default, aten.view.dtype, aten.view_as_complex.default}
    by_offset |= {getattr(aten, f"{of}_scatter").default for of in ("select", "slice", "diagonal")}

    def add(to: list[object], values: Iterable[object]) -> int:
        """Describe the values; returns how many tensors they have, or a negative number."""
        tensors = 0
        for value in values:
            kind = type(value)
            if kind is FakeTensor:
                tensor: FakeTensor = value
                dtype = tensor.dtype
                if tensor.constant is not None or dtype.is_complex:
                    return -1
                to.append(tensor.shape)
                to.append(tensor.stride())
                to.append(dtype)
                to.append(tensor.fake_device)
                tensors += 1
            elif kind in numbers:
                to.append(kind)  # 1, 1.0 and True are equal
                to.append(value)
            elif kind in plain:
                to.append(value)
            elif kind in sequences and isinstance(value, list | tuple):
                to.append(len(value))
                within = add(to, value)
                if within < 0:
                    return within
                tensors += within
            else:
                return -1
        return tensors

    def describe(
        func: OpOverload, args: Sequence[object], kwargs: Mapping[str, object] | None
    ) -> Hashable | None:
        key: list[object] = [func, default()]
        at = position_of.get(func, len(args))
        tensors = add(key, args if at >= len(args) else (*args[:at], *args[at + 1 :]))
        if kwargs and tensors >= 0:
            key.extend(kwargs)
            if add(key, kwargs.values()) != 0:
                return None
        if tensors < 0:
            return None
        if func in by_offset:
            key.extend(value.storage_offset() for value in args if isinstance(value, torch.Tensor))
        if tensors == 0:
            key.append(device())
        return tuple(key)

    return describe


class Maker:
    """Learns what an operator returned, and makes the same for other arguments."""

    def __init__(self, mode: FakeTensorMode) -> None:
        self._cpu = torch.device("cpu")
        self._fake: type[FakeTensor] = FakeTensor
        with torch._C._DisableTorchDispatch():
            sample = FakeTensor(mode, torch.empty(0, device="meta"), self._cpu)
        self._state = dict(vars(sample))  # the same for all tensors without a known value
        self._guard_data = (
            torch._C._set_warn_deprecated_on_mutable_data_ptr
            if mode._allow_unsafe_data_ptr_access
            else torch._C._set_throw_on_mutable_data_ptr
        )

    def learned(self, func: OpOverload, args: Arguments, result: object) -> Again | None:
        """How to make this result again; None if it cannot be made again."""
        if result is None or type(result) is int:  # a number that depends on shapes only
            return lambda maker, args: result
        if isinstance(result, list | tuple):
            each = [self.learned(func, args, item) for item in result]
            own = [memory_of(item) for item in result if type(item) is self._fake]
            parts = [again for again in each if again is not None]
            if len(parts) != len(each) or len(own) != len(set(own)):
                return None
            several: Callable[[list[object]], object]
            several = list if isinstance(result, list) else tuple
            return lambda maker, args: several([again(maker, args) for again in parts])
        for position, argument in enumerate(args):
            if argument is result:
                return lambda maker, args: args[position]
        return self._learned_tensor(func, args, result) if type(result) is self._fake else None

    def _learned_tensor(
        self, func: OpOverload, args: Arguments, result: FakeTensor
    ) -> Again | None:
        shape, strides = tuple(result.shape), result.stride()
        memory, dtype = memory_of(result), result.dtype
        sharing = [
            position
            for position, argument in enumerate(args)
            if type(argument) is self._fake and memory_of(argument) == memory
        ]
        if not sharing and (
            result.storage_offset() or memory in map(memory_of, tensors_in(tuple(args)))
        ):
            return None
        base = sharing[0] if sharing else None
        moved = result.storage_offset()
        if base is not None:
            first: FakeTensor = args[base]
            moved -= first.storage_offset()

        def again(maker: Maker, args: Arguments) -> FakeTensor:
            if base is None:
                return maker.tensor(shape, strides, dtype, None, 0)
            viewed: FakeTensor = args[base]
            behind = _behind(args) if func is torch.ops.aten.select.int else moved
            return maker.tensor(shape, strides, dtype, viewed, viewed.storage_offset() + behind)

        made = again(self, args)
        same = (
            vars(made) == vars(result)
            and made.untyped_storage().nbytes() == result.untyped_storage().nbytes()
            and made.requires_grad == result.requires_grad
            and torch._C._dispatch_key_set(made) == torch._C._dispatch_key_set(result)
        )
        return again if same else None

    def tensor(
        self,
        shape: tuple[int, ...],
        strides: tuple[int, ...],
        dtype: torch.dtype,
        base: torch.Tensor | None,
        offset: int,
    ) -> FakeTensor:
        """A tensor with its own memory, or in that of `base`."""
        with torch._C._DisableTorchDispatch():
            plain = torch.empty_strided(shape, strides, dtype=dtype, device="meta")
            if base is not None:
                plain.set_(base.untyped_storage(), offset, shape, strides)
        tensor: FakeTensor = torch.Tensor._make_subclass(
            self._fake, plain, False, dispatch_device=True, device_for_backend_keys=self._cpu
        )
        self._guard_data(tensor)
        vars(tensor).update(self._state)
        return tensor


def _behind(args: Arguments) -> int:
    """How far behind the begin of a tensor the part begins that `aten.select` returns."""
    tensor: FakeTensor = args[0]
    dim, index = args[1:]
    assert isinstance(dim, int)
    assert isinstance(index, int)
    behind: int = index % tensor.shape[dim] * tensor.stride(dim)
    return behind
