"""See what a training does on a device: the operators that it calls, and storages that it resizes.

`resize_` of a storage is no operator, so a dispatch mode does not see it. FSDP2 resizes the memory
of gathered weights, which keep their tensor.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from contextlib import AbstractContextManager
from functools import cache
from typing import NamedTuple, Protocol

import torch
from torch._ops import OpOverload
from torch.utils._python_dispatch import TorchDispatchMode

from oomdoctor.worker.replacing import replaced


class OperatorCall(NamedTuple):
    """A call of an operator that has returned.

    On a simulated device, `kind` is the same for all calls that differ in no shape and no type;
    None if calls differ by more.
    """

    func: OpOverload
    args: Sequence[object]
    kwargs: Mapping[str, object]
    result: object
    kind: Hashable | None = None

    def argument(self, name: str) -> object:
        """The argument with this name, or its default; None if the operator has none."""
        position, default = _arguments(self.func).get(name, (len(self.args), None))
        return self.args[position] if position < len(self.args) else self.kwargs.get(name, default)

    def tensor(self, name: str) -> torch.Tensor:
        """An argument that is a tensor."""
        return self.argument(name)

    def tensors(self, name: str) -> Sequence[torch.Tensor]:
        """An argument that is a list of tensors, without those that are left out."""
        listed: Sequence[torch.Tensor | None] = self.tensor(name)
        return [tensor for tensor in listed if tensor is not None]

    def number(self, name: str) -> int:
        """An argument that is a whole number."""
        value = self.argument(name)
        assert isinstance(value, int)
        return value

    def sizes(self, name: str) -> Sequence[int]:
        """An argument that is a shape or a list of dimensions; empty if it is left out."""
        value = self.argument(name)
        return value if isinstance(value, list | tuple) else ()


@cache
def _arguments(func: OpOverload) -> dict[str, tuple[int, object]]:
    """Position and default of each argument by its name."""
    listed = enumerate(func._schema.arguments)
    return {argument.name: (position, argument.default_value) for position, argument in listed}


class Observer(Protocol):
    """What wants to see the operators of a device."""

    def begins(self) -> None:
        """An operator begins."""

    def note_operator(self, call: OperatorCall) -> None:
        """An operator has returned."""


Kinds = Sequence[type]  # of the tensors among the arguments
Run = Callable[[OpOverload, Kinds, Sequence[object], Mapping[str, object]], object]


class Answering(TorchDispatchMode):  # type: ignore[misc]
    """Lets a function run every operator instead of torch."""

    def __init__(self, run: Run) -> None:
        super().__init__()
        self._run = run

    def __torch_dispatch__(
        self,
        func: OpOverload,
        types: Kinds,
        args: tuple[object, ...] = (),
        kwargs: Mapping[str, object] | None = None,
    ) -> object:
        return self._run(func, types, args, kwargs or {})


class Recording(TorchDispatchMode):  # type: ignore[misc]
    """Tells an observer of every operator, but of none that finds only the shape of a result."""

    def __init__(self, observer: Observer) -> None:
        super().__init__()
        self._observer = observer

    def __torch_dispatch__(
        self,
        func: OpOverload,
        types: Sequence[type],
        args: tuple[object, ...] = (),
        kwargs: Mapping[str, object] | None = None,
    ) -> object:
        if any(map(made_of_tensors, types)):
            return NotImplemented  # the operators on what it holds come here in turn
        kwargs = kwargs or {}
        if torch._C._get_dispatch_mode(torch._C._TorchDispatchModeKey.FAKE) is not None:
            return func(*args, **kwargs)
        self._observer.begins()
        result = func(*args, **kwargs)
        self._observer.note_operator(OperatorCall(func, args, kwargs, result))
        return result


@cache
def made_of_tensors(kind: type) -> bool:
    """Whether tensors of this class hold others, on which its operators call operators in turn."""
    return kind.__name__ == "DTensor" or kind.__module__.startswith("torchao.")


def resized_storages(note: Callable[[torch.UntypedStorage], None]) -> AbstractContextManager[None]:
    """A context that notes storages that are resized."""
    resize = torch.UntypedStorage.resize_

    def resized(storage: torch.UntypedStorage, size: int) -> torch.UntypedStorage:
        result = resize(storage, size)
        note(storage)
        return result

    return replaced(torch.UntypedStorage, "resize_", resized)
