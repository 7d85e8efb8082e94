"""Tell a simulated step that an attention mask has zeros and ones, which only its values would say.

transformers asks it in several ways whether a mask can be left out: `mask.all()`,
`mask.sum() == mask.numel()`, `(mask == 1).all()` and `0 in mask`. The memory of a tensor carries
what is known, so views share it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import cache

import torch
from torch._ops import OpOverload

Note = Callable[[Sequence[object], object], None]  # of the arguments and the result
_NAME = "_oomdoctor_padded"
_ANSWER = "_oomdoctor_answer"  # as `answers` reads it


def know(masks: Iterable[torch.Tensor]) -> None:
    """These masks have zeros for padding, and ones."""
    for mask in masks:
        setattr(mask.untyped_storage(), _NAME, True)


def rule_of(func: OpOverload) -> Note | None:
    """What notes the result of an operator on such a mask; None for most operators."""
    return _rules().get(func)


@cache
def _rules() -> dict[OpOverload, Note]:
    aten = torch.ops.aten
    kept = (aten._to_copy, aten.clone, aten.bitwise_not, aten.logical_not, aten.index)
    rules: dict[OpOverload, Note] = {
        overload: _keep
        for packet in kept
        for overload in (getattr(packet, name) for name in packet.overloads() if "out" not in name)
    }
    for packet in (aten.eq, aten.ne):
        rules[packet.Scalar] = _compared
    for packet, answer in ((aten.all, False), (aten.any, True)):
        rules |= {
            getattr(packet, name): _answered(answer)
            for name in packet.overloads()
            if "out" not in name
        }
    return rules | {aten.sum.default: _keep, aten.sum.dim_IntList: _keep}


def _is_padded(args: Sequence[object]) -> bool:
    tensor = args[0]
    return isinstance(tensor, torch.Tensor) and hasattr(tensor.untyped_storage(), _NAME)


def _keep(args: Sequence[object], result: object) -> None:
    if _is_padded(args):
        know([result])


def _compared(args: Sequence[object], result: object) -> None:
    """A mask that is compared with a number has both answers; its sum is no such number."""
    if not _is_padded(args):
        return
    assert isinstance(result, torch.Tensor)
    if result.dim() == 0:
        setattr(result, _ANSWER, False)
    else:
        know([result])


def _answered(answer: bool) -> Note:
    def note(args: Sequence[object], result: object) -> None:
        if _is_padded(args):
            setattr(result, _ANSWER, answer)

    return note
