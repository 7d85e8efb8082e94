"""`--ranks 1` with gloo, which connects all ranks: a group of one, and what it cannot answer.

The other ranks are taken to give what this rank gives.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import wraps
from inspect import signature
from typing import Any


def refusal(what: str) -> RuntimeError:
    """The error of a script that needs the other ranks."""
    return RuntimeError(
        f"oomdoctor: {what} needs the other ranks, which do not run: leave out --ranks 1"
    )


def group_of(c10d: dict[str, Any], words: dict[str, Any]) -> Any:
    """The process group of a call."""
    return words.get("group") or c10d["_get_default_group"]()


def answer_gloo(c10d: dict[str, Any]) -> None:
    """Replace gloo's groups by groups of one, and answer what those cannot."""
    real: Any = c10d["ProcessGroupGloo"]

    class OfOne(real):  # type: ignore[misc]
        """gloo with this rank alone."""

        def __init__(self, store: Any, rank: int, size: int, *args: Any, **kwargs: Any) -> None:
            super().__init__(store, 0, 1, *args, **kwargs)

    c10d["ProcessGroupGloo"] = OfOne
    c10d["get_world_size"] = _sizes(c10d)
    c10d["monitored_barrier"] = wraps(c10d["monitored_barrier"])(lambda *_, **__: None)
    answers: dict[str, Callable[[dict[str, Any], int], None] | None] = {
        "all_gather": _all_gather,
        "all_gather_into_tensor": _all_gather_into,
        "all_gather_single": _all_gather_into,
        "all_reduce": _reduce,
        "reduce": _reduce,
        "gather": _nothing,
        "scatter": _scatter,
        "send": _nothing,
        **dict.fromkeys(("reduce_scatter", "reduce_scatter_tensor", "recv", "isend", "irecv")),
        **dict.fromkeys(("all_to_all", "all_to_all_single", "reduce_scatter_single")),
    }
    for name, answer in answers.items():
        if name in c10d:  # not every torch has all of them
            c10d[name] = _by_backend(c10d[name], answer, real, c10d)


def _sizes(c10d: dict[str, Any]) -> Callable[..., int]:
    original = c10d["get_world_size"]

    @wraps(original)
    def get_world_size(group: Any = None) -> int:
        size: int = original(group)
        if size == 1:  # of gloo's group, which newer torch asks
            size = len(c10d["get_process_group_ranks"](group or c10d["_get_default_group"]()))
        return size

    return get_world_size


def _by_backend(
    original: Callable[..., Any],
    answer: Callable[[dict[str, Any], int], None] | None,
    gloo: Any,
    c10d: dict[str, Any],
) -> Callable[..., Any]:
    bound = signature(original)

    @wraps(original)
    def collective(*args: Any, **kwargs: Any) -> Any:
        given = bound.bind(*args, **kwargs)
        given.apply_defaults()
        words = given.arguments
        group = group_of(c10d, words)
        backend: Any = _backend(group, words)
        size = c10d["get_world_size"](words.get("group")) if isinstance(backend, gloo) else 1
        if size == 1:
            return original(*args, **kwargs)
        if answer is None:
            raise refusal(f"{original.__name__} with gloo")
        answer(words, size)
        return backend.barrier() if words.get("async_op") else None

    return collective


def _backend(group: Any, words: dict[str, Any]) -> Any:
    """What does the work for the tensors of a call; None if this rank is not in the group."""
    tensor = next(iter(words.values()))
    tensor = words.get("tensor", tensor)
    tensor = tensor[0] if isinstance(tensor, list) else tensor
    return group._get_backend(tensor.device) if hasattr(group, "_get_backend") else None


def _all_gather(words: dict[str, Any], size: int) -> None:
    for part in words["tensor_list"]:
        part.copy_(words["tensor"])


def _all_gather_into(words: dict[str, Any], size: int) -> None:
    for part in words["output_tensor"].view(size, -1):
        part.copy_(words["input_tensor"].reshape(-1))


def _reduce(words: dict[str, Any], size: int) -> None:
    ReduceOp: Any = sys.modules["torch.distributed"].ReduceOp  # noqa: N806
    if words["op"] == ReduceOp.SUM:
        words["tensor"].mul_(size)
    elif words["op"] == ReduceOp.PRODUCT:
        words["tensor"].pow_(size)


def _scatter(words: dict[str, Any], size: int) -> None:
    if not words["scatter_list"]:
        raise refusal("scatter with gloo from another rank")
    words["tensor"].copy_(words["scatter_list"][0])


def _nothing(words: dict[str, Any], size: int) -> None:
    """What others get does not matter here."""
