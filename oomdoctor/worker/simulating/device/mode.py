"""The one dispatch mode of a simulated device: it answers, remembers and reports every operator.

A mode costs each operator about as much as its fake kernel, so there is one mode for all three.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from functools import cache
from typing import Self

import torch
from torch._ops import OpOverload
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

from oomdoctor.worker.protocol import UnknownValuesError
from oomdoctor.worker.replacing import replaced
from oomdoctor.worker.simulating.device.answers import Answers
from oomdoctor.worker.simulating.device.results import Again, Maker, describer, is_regular
from oomdoctor.worker.tracing import real_values
from oomdoctor.worker.tracing.calls import Kinds, Observer, OperatorCall, Recording, made_of_tensors

Arguments = tuple[object, ...]
Keywords = Mapping[str, object]

_device_of = torch.ops.prim.device.default
_LARGEST = 50_000  # kinds of calls to remember; a ladder of rungs has a few thousand


@dataclass(eq=False, slots=True)
class Kind:
    """Calls of one operator with arguments of the same shapes and types: all have one `result`."""

    result: Again | None


@dataclass(slots=True)
class Remembered:
    """What operators returned, by operator and arguments. It is forgotten if it grows too large."""

    largest: int = _LARGEST
    kinds: dict[Hashable, Kind] = field(default_factory=dict)

    def learn(self, key: Hashable, result: Again | None) -> Kind:
        """Remember what calls of this kind return."""
        if len(self.kinds) >= self.largest:
            self.kinds.clear()
        kind = self.kinds[key] = Kind(result)
        return kind


@cache
def of_this_process() -> Remembered:
    """What all simulations of a process remember together: the next rung reuses most of it."""
    return Remembered()


class _OfOneRung:
    """A mode that is never copied, and keeps away torch's compiler."""

    def __deepcopy__(self, memo: dict[int, object]) -> Self:
        # A copied module has copies of what its fake tensors know, and this is among it.
        del memo
        return self

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # nothing is compiled, and each call would take longer


class _RealOperators(_OfOneRung, Recording):
    """Tells an observer of what happens while there is no fake tensor mode."""


class SimulatedDevice(_OfOneRung, FakeTensorMode):  # type: ignore[misc]
    """See the module. What operators returned is in `remembered`: devices of a process share it."""

    def __init__(self, remembered: Remembered, *, cuda: bool) -> None:
        super().__init__(allow_non_fake_inputs=True)
        self.answers = Answers(cuda=cuda)
        self._remembered = remembered
        self.cache_enabled = False  # results are kept here; keeping them twice takes longer
        self._describe = describer()
        self._maker = Maker(self)
        self._observer: Observer | None = None
        self._inside = False
        self._kind: Kind | None = None

    def observed_by(self, observer: Observer) -> AbstractContextManager[None]:
        """A context in which the observer sees every operator, but not what it calls in turn."""
        return replaced(self, "_observer", observer)

    def real_too(self) -> AbstractContextManager[object]:
        """A context in which the observer also sees operators on real tensors, at some cost.

        Models are declared with real tensors that soon die, as they would on a GPU.
        """
        assert self._observer is not None
        return _RealOperators(self._observer)

    def __torch_dispatch__(
        self, func: OpOverload, types: Kinds, args: Arguments = (), kwargs: Keywords | None = None
    ) -> object:
        if any(map(made_of_tensors, types)):
            return NotImplemented
        if func is _device_of:  # a tensor asks for its device; nothing happens on it
            tensor: FakeTensor = args[0]
            return tensor.fake_device
        kwargs = kwargs or {}
        if self._inside:  # a fake kernel calls other operators
            return self._result(func, types, args, kwargs)
        observer = self._observer
        if observer is not None:
            observer.begins()
        self._inside, self._kind = True, None
        try:
            result = self._answered(func, types, args, kwargs)
        except RuntimeError as error:
            if type(error).__module__.startswith("torch._subclasses"):
                raise UnknownValuesError(
                    f"cannot be simulated: {func} depends on the values of its tensors; "
                    "probe measures it"
                ) from error
            raise
        finally:
            self._inside = False
        if observer is not None:
            observer.note_operator(OperatorCall(func, args, kwargs, result, self._kind))
        return result

    def _answered(
        self, func: OpOverload, types: Kinds, args: Arguments, kwargs: Keywords
    ) -> object:
        """The result of an operator that the step calls, with what is known of its values."""
        answer = self.answers.of(func)
        has_values = self.answers.values_known
        if answer is None and not has_values:
            return self._result(func, types, args, kwargs)
        result = real_values.dynamic(func, args, kwargs) if has_values else None
        if result is None and answer is not None and answer.before is not None:
            result = answer.before(args)
        if result is None:
            result = self._result(func, types, args, kwargs)
        for note in () if answer is None else answer.after:
            note(args, result)
        if has_values:
            real_values.learn(func, args, kwargs, result)
        return result

    def _result(self, func: OpOverload, types: Kinds, args: Arguments, kwargs: Keywords) -> object:
        """What an operator returns: remembered, or from the fake kernel of torch."""
        key = self._describe(func, args, kwargs) if is_regular(func) else None
        if key is None:
            result = _from_kernel(self, func, types, args, kwargs)
            self._kind = None  # and not that of an operator it called
            return result
        kind = self._remembered.kinds.get(key)
        if kind is not None and kind.result is not None:
            self._kind = kind
            return kind.result(self._maker, args)
        result = _from_kernel(self, func, types, args, kwargs)
        if kind is None:
            kind = self._remembered.learn(key, self._maker.learned(func, args, result))
        self._kind = kind
        return result


# torch keeps its compiler out of every call; nothing is compiled here.
_guarded = FakeTensorMode.__torch_dispatch__
_by_torch = getattr(_guarded, "__wrapped__", _guarded)


def _from_kernel(
    mode: FakeTensorMode, func: OpOverload, types: Kinds, args: Arguments, kwargs: Keywords
) -> object:
    kernel = _own_kernels().get(func)
    if kernel is not None:
        return kernel(*args, **kwargs)
    return _by_torch(mode, func, types, args, kwargs)


@cache
def _own_kernels() -> dict[OpOverload, Callable[..., object]]:
    """Fake kernels in place of those that torch has wrong."""
    # torch 2.6's pads the sums of the softmax, as its own kernel does and the package does not.
    kernels: dict[OpOverload, Callable[..., object]]
    kernels = {
        torch.ops.aten._flash_attention_forward.default: _attention_of_documents,
        torch.ops.aten._ctc_loss.Tensor: _connectionist,
    }
    product = torch.ops.aten.addmm
    if hasattr(product, "dtype"):
        # Those of torch 2.12 take the type of the result for a factor.
        kernels |= {product.dtype: _product_of_type, product.dtype_out: lambda *_, out, **__: out}
    return kernels


def _attention_of_documents(
    query: torch.Tensor, *_: object, **__: object
) -> tuple[torch.Tensor, ...]:
    """flash_attn/csrc/flash_attn/flash_api.cpp `mha_varlen_fwd` (flash-attn 2.6-2.8).

    The output, a sum of each head and token, the generator's numbers and no mask.
    """
    tokens, heads, _size = query.shape
    return (
        torch.empty_like(query),
        query.new_empty((heads, tokens), dtype=torch.float32),
        query.new_empty(2, dtype=torch.uint64),
        query.new_empty((), dtype=torch.uint64),
        query.new_empty(0),
    )


def _connectionist(
    scores: torch.Tensor, targets: torch.Tensor, *_: object, **__: object
) -> tuple[torch.Tensor, torch.Tensor]:
    """aten/src/ATen/native/cuda/LossCTC.cu, for rows with as many labels: losses and alphas.

    torch's own reads how many labels each row has.
    """
    frames, rows, _classes = scores.shape
    labels = targets.numel() // rows
    return scores.new_empty(rows), scores.new_empty((rows, frames, 2 * labels + 1))


def _product_of_type(
    bias: torch.Tensor, left: torch.Tensor, right: torch.Tensor, out_dtype: torch.dtype, **_: object
) -> torch.Tensor:
    return bias.new_empty((left.shape[0], right.shape[1]), dtype=out_dtype)
