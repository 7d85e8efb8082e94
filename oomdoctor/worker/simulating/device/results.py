"""Remember what operators return on fake tensors, and make the same result again.

A step calls few different operators with few different shapes, but thousands of times: once for
each layer, phase and rung. torch's own cache of fake kernels describes an argument by 16 values,
which takes longer than most kernels. Here an argument is its shape, strides, offset, type and
device, and a result that was seen before is made from these directly.

What this does not describe has to be asked of torch: operators whose results depend on values,
tensors whose values are known, complex numbers, results that share memory with each other.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from enum import Enum
from functools import cache
from typing import NamedTuple

import torch
from torch._ops import OpOverload
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

from oomdoctor.worker.tracing.tensors import memory_of


class _Fresh(NamedTuple):
    """A result that has its own memory."""

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: torch.dtype


class _View(NamedTuple):
    """A result in the memory of the argument at `position`."""

    position: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int
    dtype: torch.dtype


class _Argument(NamedTuple):
    """The argument at `position` itself."""

    position: int


class _Number(NamedTuple):
    """A number, which depends on shapes only."""

    value: int


class _Several(NamedTuple):
    """Several results, in a container of type `kind`."""

    kind: type[list[object]] | type[tuple[object, ...]]
    each: tuple[Known, ...]


class _Refused(Enum):
    REFUSED = "a result that cannot be made again"


REFUSED = _Refused.REFUSED
# What is known of a result; None if there is none.
Known = _Fresh | _View | _Argument | _Number | _Several | _Refused | None


@cache
def is_regular(func: OpOverload) -> bool:
    """Whether the shapes of an operator's arguments say what it returns."""
    irregular = (
        torch.Tag.data_dependent_output,
        torch.Tag.dynamic_output_shape,
        torch.Tag.inplace_view,
    )
    if not isinstance(func, torch._ops.OpOverload) or any(tag in func.tags for tag in irregular):
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
                to.append(tensor.storage_offset())
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
        tensors = add(key, args)
        if kwargs and tensors >= 0:
            key.extend(kwargs)
            if add(key, kwargs.values()) != 0:
                return None
        if tensors < 0:
            return None
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

    def made(self, known: Known, args: Sequence[object]) -> object:
        """The result that is known for these arguments."""
        if known is None:
            return None
        if isinstance(known, _Several):
            return known.kind([self.made(each, args) for each in known.each])
        if isinstance(known, _Argument):
            return args[known.position]
        if isinstance(known, _Number):
            return known.value
        assert not isinstance(known, _Refused)
        return self._tensor(known, args)

    def _tensor(self, known: _Fresh | _View, args: Sequence[object]) -> FakeTensor:
        with torch._C._DisableTorchDispatch():
            plain = torch.empty_strided(
                known.shape, known.strides, dtype=known.dtype, device="meta"
            )
            if isinstance(known, _View):
                base: torch.Tensor = args[known.position]
                plain.set_(base.untyped_storage(), known.offset, known.shape, known.strides)
        tensor: FakeTensor = torch.Tensor._make_subclass(
            self._fake, plain, False, dispatch_device=True, device_for_backend_keys=self._cpu
        )
        self._guard_data(tensor)
        vars(tensor).update(self._state)
        return tensor

    def learned(self, args: Sequence[object], result: object) -> Known:
        """What to remember of a result; `REFUSED` if it cannot be made again."""
        if result is None:
            return None
        if isinstance(result, list | tuple):
            each = tuple(self.learned(args, item) for item in result)
            own = [memory_of(item) for item in result if type(item) is self._fake]
            if REFUSED in each or len(own) != len(set(own)):
                return REFUSED
            return _Several(list if isinstance(result, list) else tuple, each)
        if type(result) is int:
            return _Number(result)
        for position, argument in enumerate(args):
            if argument is result:
                return _Argument(position)
        return self._learned_tensor(args, result) if type(result) is self._fake else REFUSED

    def _learned_tensor(self, args: Sequence[object], result: FakeTensor) -> Known:
        form = tuple(result.shape), result.stride()
        memory = memory_of(result)
        offset, dtype = result.storage_offset(), result.dtype
        sharing = [
            position
            for position, argument in enumerate(args)
            if type(argument) is self._fake and memory_of(argument) == memory
        ]
        known: _Fresh | _View
        if sharing:
            known = _View(sharing[0], *form, offset, dtype)
        elif offset == 0 and memory not in _memories(args):
            known = _Fresh(*form, dtype)
        else:
            return REFUSED
        again = self._tensor(known, args)
        same = (
            vars(again) == vars(result)
            and again.untyped_storage().nbytes() == result.untyped_storage().nbytes()
            and again.requires_grad == result.requires_grad
            and torch._C._dispatch_key_set(again) == torch._C._dispatch_key_set(result)
        )
        return known if same else REFUSED


def _memories(values: Iterable[object]) -> Iterator[int]:
    """The memory of each tensor among arguments, also in lists."""
    for value in values:
        if isinstance(value, list | tuple):
            yield from _memories(value)
        elif isinstance(value, torch.Tensor):
            yield memory_of(value)
