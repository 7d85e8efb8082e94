"""Answer code that reads values which nobody computed, as in a healthy run.

An attention mask has no padding unless a rung pads its rows, the loss is a number, and no gradient
overflows. `known_values` knows more about some tensors. TRL's losses index tensors with a mask of
the completions: the scored tokens of each row.

transformers asks a mask in several ways whether it can be left out: `mask.all()`,
`mask.sum() == mask.numel()`, `(mask == 1).all()` and `0 in mask`. The memory of a tensor carries
what is known, so views share it.

Also answered is where CUDA writes something else. A tensor that was used twice has two gradients.
The engine adds the second to the first in place if nobody else holds the first
(torch/csrc/autograd/input_buffer.cpp, `can_accumulate_inplace`, torch 1.11-2.13). Under a dispatch
mode every tensor counts as a subclass, and the sum is a new tensor. layer_norm_kernel.cu
`layer_norm_cuda` makes the statistics of the accumulation type, which is fp32 for half precision
(torch 1.8-2.13); the CPU does not.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from fractions import Fraction
from functools import cache, partial
from typing import NamedTuple

import torch
from torch._ops import OpOverload
from torch.utils._python_dispatch import _disable_current_modes

from oomdoctor.worker.replacing import replaced
from oomdoctor.worker.simulating.device import known_values
from oomdoctor.worker.tracing import real_values
from oomdoctor.worker.tracing.calls import Answering, Kinds

_TRUE = ("aten.all", "aten.eq", "aten._is_all_true")
_FINDS_OVERFLOW = "aten._amp_foreach_non_finite_check_and_unscale_"
_NAME = "_oomdoctor_answer"
_PADDED = "_oomdoctor_padded"
Note = Callable[[Sequence[object], object], None]  # of the arguments and the result
Holders = tuple[int, int, int]  # references to a tensor, to its memory and to its Python object


class Answer(NamedTuple):
    """What to do about the values of one operator.

    `before` may give its result, from its arguments; None if it has to run. `after` notes what is
    known of the result.
    """

    before: Callable[[Sequence[object]], object] | None
    after: tuple[Note, ...]


class Answers:
    """What one simulated device answers code that reads values.

    With `cuda`, also where autograd and kernels on CUDA write something else than a dispatch mode
    sees on the CPU.
    """

    def __init__(self, *, cuda: bool) -> None:
        self.values_known = False
        self._number = 1
        self._holds = True
        self._share: Fraction | None = None  # of a mask that indexes a tensor
        self._of: dict[OpOverload, Answer | None] = {}
        aten = torch.ops.aten
        self._before: dict[OpOverload, Callable[[Sequence[torch.Tensor]], object]] = {
            aten._local_scalar_dense.default: self._read,
            aten.nonzero.default: lambda args: known_values.nonzero(args[0]),
            aten.index.Tensor: self._selected,
            aten.masked_select.default: self._selected,
            aten.index_put_.default: refuse_other_type,
        }
        if cuda:
            self._before |= {
                aten.add.Tensor: partial(sum_of_gradients, only_the_engine()),
                aten.index_put.default: gradient_of_index,
                aten.native_layer_norm.default: normalized,
            }

    def of(self, func: OpOverload) -> Answer | None:
        """What to do about the values of an operator; None if nothing."""
        if func not in self._of:
            self._of[func] = self._answer(func)
        return self._of[func]

    def _answer(self, func: OpOverload) -> Answer | None:
        before = self._before.get(func)
        after: list[Note | None] = [known_values.learner(func), _rules_of_masks().get(func)]
        if str(func).startswith(_TRUE):
            after.insert(0, self._note_truth)
        elif str(func).startswith(_FINDS_OVERFLOW):
            after.insert(0, _no_overflow)
        notes = tuple(note for note in after if note is not None)
        return Answer(before, notes) if before is not None or notes else None

    def _read(self, args: Sequence[object]) -> bool | int | float:
        """The value of a tensor with one element."""
        tensor: torch.Tensor = args[0]
        constant = getattr(tensor, "constant", None)
        if constant is not None:
            value: bool | int | float = constant.item()
            return value
        is_truth = tensor.dtype == torch.bool
        read = real_values.number_in(tensor) if self.values_known else None
        if read is not None:
            return read
        answer = getattr(tensor, _NAME, None)
        if answer is not None:
            return bool(answer) if is_truth else float(answer)
        if is_truth:
            return False  # a random number does not drop a layer
        return 1.0 if tensor.is_floating_point() else self._number

    def _note_truth(self, args: Sequence[object], result: object) -> None:
        if not known_values.are_places(args[0]):  # an expert with tokens is none to leave out
            setattr(result, _NAME, self._holds)

    def _selected(self, args: Sequence[object]) -> torch.Tensor | None:
        """`aten.index` with a mask whose share is known; None for any other."""
        mask, share = real_values.mask_of(args[1]), self._share
        if mask is None or share is None:
            return None
        if self.values_known and real_values.values_of(mask.values) is not None:
            return None
        return mask.chosen(args[0], math.ceil(share * mask.values.numel()))

    def reads_as(self, number: int) -> AbstractContextManager[None]:
        """Whole numbers that nobody knows are this one in this context, not 1."""
        return replaced(self, "_number", number)

    def scored(self, share: Fraction | None) -> AbstractContextManager[None]:
        """In this context a mask that indexes a tensor is true for this share of its elements."""
        return replaced(self, "_share", share)

    def several_in_a_row(self, several: bool) -> AbstractContextManager[None]:
        """With `several`, transformers finds that the position ids of a row restart."""
        import transformers

        masks = getattr(transformers, "masking_utils", None)
        find = getattr(masks, "find_packed_sequence_indices", None)
        if find is None or not several:
            return nullcontext()

        def found(position_ids: torch.Tensor) -> torch.Tensor | None:
            with replaced(self, "_holds", False):
                return find(position_ids)

        # It asks whether the last token still belongs to the first document, and nobody computed
        # that.
        return replaced(masks, "find_packed_sequence_indices", found)


def _no_overflow(args: Sequence[object], _: object) -> None:
    setattr(args[1], _NAME, False)


def know_padded(masks: Iterable[torch.Tensor]) -> None:
    """These masks have zeros for padding, and ones."""
    for mask in masks:
        setattr(mask.untyped_storage(), _PADDED, True)


@cache
def _rules_of_masks() -> dict[OpOverload, Note]:
    aten = torch.ops.aten
    kept = real_values.overloads("_to_copy", "clone", "bitwise_not", "logical_not", "index")
    rules: dict[OpOverload, Note] = dict.fromkeys(kept, _keep_padded)
    rules |= dict.fromkeys(real_values.overloads("all"), partial(_answer, False))
    rules |= dict.fromkeys(real_values.overloads("any"), partial(_answer, True))
    rules = {func: note for func, note in rules.items() if "out" not in func._overloadname}
    rules |= dict.fromkeys((aten.eq.Scalar, aten.ne.Scalar), _compared)
    return rules | dict.fromkeys((aten.sum.default, aten.sum.dim_IntList), _keep_padded)


def _is_padded(args: Sequence[object]) -> bool:
    tensor = args[0]
    return isinstance(tensor, torch.Tensor) and hasattr(tensor.untyped_storage(), _PADDED)


def _keep_padded(args: Sequence[object], result: object) -> None:
    if _is_padded(args):
        know_padded([result])


def _compared(args: Sequence[object], result: object) -> None:
    """A mask that is compared with a number has both answers; its sum is no such number."""
    if not _is_padded(args):
        return
    assert isinstance(result, torch.Tensor)
    if result.dim() == 0:
        setattr(result, _NAME, False)
    else:
        know_padded([result])


def _answer(answer: bool, args: Sequence[object], result: object) -> None:
    if _is_padded(args):
        setattr(result, _NAME, answer)


def sum_of_gradients(alone: Holders, args: Sequence[torch.Tensor]) -> torch.Tensor | None:
    """The first of two gradients if the engine would add the second to it; otherwise None.

    `args` are those of `aten::add`, `alone` what `only_the_engine` returned.
    """
    if not _engine_runs():
        return None
    if not isinstance(args[1], torch.Tensor) or _holders(args) != alone:
        return None
    first, second = args
    alike = first.shape == second.shape and first.dtype == second.dtype
    return first if alike and _is_dense(first) else None


def gradient_of_index(args: Sequence[torch.Tensor]) -> torch.Tensor | None:
    """The zeros that the gradient of an indexed tensor is written to; None outside autograd.

    `args` are those of `aten::index_put`. FunctionsManual.cpp `index_backward` writes into the
    zeros that it has made, but under a dispatch mode it makes a second tensor.
    """
    if not _engine_runs():
        return None
    accumulates = len(args) > 3 and args[3]
    return args[0] if accumulates else None


def refuse_other_type(args: Sequence[torch.Tensor]) -> None:
    """Refuse what kernels of `aten::index_put_` do, and fake ones do not: values of another type.

    Raises:
        RuntimeError: with the words of the kernels, `TensorAdvancedIndexing.cpp`.
    """
    if args[0].dtype != args[2].dtype:
        raise RuntimeError(
            "Index put requires the source and destination dtypes match, got "
            f"{args[0].dtype} for the destination and {args[2].dtype} for the source."
        )


def _engine_runs() -> bool:
    return torch._C._current_graph_task_id() != -1 and not torch.is_grad_enabled()


def _is_dense(tensor: torch.Tensor) -> bool:
    """Whether its elements fill their memory without gaps, and no two share a place."""
    expected = 1
    for stride, size in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
        if size != 1 and stride != expected:
            return False
        expected *= size
    return True


def _holders(args: Sequence[torch.Tensor]) -> Holders:
    """Who holds the first argument; the callers themselves must not, because they would count."""
    memory = torch._C._storage_Use_Count(args[0].untyped_storage()._cdata)
    return args[0]._use_count(), memory, sys.getrefcount(args[0])


@cache
def only_the_engine() -> Holders:
    """The references to a gradient that only the engine holds, as a dispatch mode sees them."""
    holders: list[Holders] = []

    def count(
        func: OpOverload, _: Kinds, args: Sequence[torch.Tensor], kwargs: Mapping[str, object]
    ) -> object:
        if func is torch.ops.aten.add.Tensor and not torch.is_grad_enabled():
            holders.append(_holders(args))
        return func(*args, **kwargs)

    with _disable_current_modes(), torch.enable_grad(), Answering(count):
        tensor = torch.ones(2, requires_grad=True)
        twice = tensor * 2
        (twice * 3 + twice * 4).sum().backward()
    return holders[0]


def normalized(args: Sequence[torch.Tensor]) -> tuple[torch.Tensor, ...] | None:
    """The results of `aten::native_layer_norm` as on CUDA; None if the CPU's are the same."""
    tensor, dims = args[0], len(args[1])
    if tensor.dtype not in (torch.float16, torch.bfloat16):
        return None
    rows = (*tensor.shape[: tensor.dim() - dims], *(1,) * dims)
    mean, deviation = (tensor.new_empty(rows, dtype=torch.float32) for _ in range(2))
    return tensor.new_empty(tensor.shape), mean, deviation
