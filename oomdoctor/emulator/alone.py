"""`--ranks 1`: one rank runs, and answers what torch.distributed asks of the others.

The processes of the other ranks end before they import torch. The emulated NCCL takes them to give
what this rank gives. What waits for them in Python is answered here, in the same way: `ANSWERS` has
the modules of torch. gloo connects all ranks, so its groups become groups of one. What only another
rank could know is refused, with the line to type.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import partial, wraps
from inspect import signature
from typing import Any

from oomdoctor.emulator.variables import launched_number

Words = dict[str, Any]  # the arguments of a call by their names, or the names of a module
Answer = Callable[[Words, Callable[[], Any]], Any]  # of the arguments, and the call itself


def is_another_rank() -> bool:
    """Whether a launcher started this process as another rank than the first."""
    local, rank = launched_number("LOCAL_RANK"), launched_number("RANK")
    return local is not None and (local > 0 or (rank or 0) > 0)


def stand_aside() -> None:
    """End the process of a rank that does not run. Launchers take that for a success."""
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    os._exit(0)


def answer_all() -> None:
    """Import what has to be answered, and answer it."""
    for module in ANSWERS:
        importlib.import_module(module)
    for answer in ANSWERS.values():
        answer()


def _refusal(what: str) -> RuntimeError:
    return RuntimeError(
        f"oomdoctor: {what} needs the other ranks, which do not run: leave out --ranks 1"
    )


def _instead(module: Words, name: str, answer: Answer) -> None:
    """Let `answer` stand for a function of a module."""
    original = module[name]
    bound = signature(original)

    @wraps(original)
    def answered(*args: Any, **kwargs: Any) -> Any:
        given = bound.bind(*args, **kwargs)
        given.apply_defaults()
        return answer(given.arguments, lambda: original(*args, **kwargs))

    module[name] = answered


def _answer_rendezvous() -> None:
    """Let the store of this rank wait for nobody."""
    rendezvous = sys.modules["torch.distributed.rendezvous"]
    store = rendezvous.TCPStore

    @wraps(store, updated=())
    def for_one(*args: Any, **kwargs: Any) -> Any:
        place = 2  # of `world_size`, which torch before 2.5 gives without its name
        if len(args) > place:
            return store(*args[:place], 1, *args[place + 1 :], **kwargs)
        return store(*args, **{**kwargs, "world_size": 1})

    vars(rendezvous)["TCPStore"] = for_one


def _answer_collectives() -> None:
    """Replace what waits for other ranks in torch.distributed. It has just been imported."""
    c10d = vars(sys.modules["torch.distributed.distributed_c10d"])
    c10d["_store_based_barrier"] = c10d["_get_split_source"] = lambda *_, **__: None
    _instead(c10d, "init_process_group", partial(_join, c10d))
    if "split_group" in c10d:  # since torch 2.5
        c10d["split_group"] = wraps(c10d["split_group"])(partial(_split, c10d))
    for name in ("broadcast_object_list", "scatter_object_list", "recv_object_list"):
        _instead(c10d, name, partial(_refuse_others, c10d, name))
    if "ProcessGroupGloo" in c10d:
        _answer_gloo(c10d)
    _instead(c10d, "gather", _gather)


def _answer_checkpoints() -> None:
    """Let torch.distributed.checkpoint save parts that do not make up a whole."""
    planner = vars(sys.modules["torch.distributed.checkpoint.default_planner"])
    check = planner["_validate_global_plan"]  # its result for nothing to save is that of success

    def unchecked(plan: Any, metadata: Any) -> Any:
        return check([], replace(metadata, state_dict_metadata={}))

    planner["_validate_global_plan"] = unchecked


def _answer_optimizer_states() -> None:
    """Refuse what FullyShardedDataParallel saves of an optimizer whose parts other ranks hold."""

    def convert(_: Words, call: Callable[[], Any]) -> Any:
        try:
            return call()
        except RuntimeError as error:
            raise _refusal("the optimizer state of FullyShardedDataParallel") from error

    states = vars(sys.modules["torch.distributed.fsdp._optim_utils"])
    _instead(states, "_convert_state_with_orig_params", convert)


ANSWERS: dict[str, Callable[[], None]] = {
    "torch.distributed.rendezvous": _answer_rendezvous,
    "torch.distributed.distributed_c10d": _answer_collectives,
    "torch.distributed.checkpoint.default_planner": _answer_checkpoints,
    "torch.distributed.fsdp._optim_utils": _answer_optimizer_states,
}
"""What is answered once a module has been imported."""


def _join(c10d: Words, words: Words, call: Callable[[], Any]) -> None:
    rank = words["rank"]
    if rank in (-1, None):
        rank = launched_number("RANK") or 0
    if rank > 0:  # the script started its ranks itself
        stand_aside()
    call()
    if c10d["get_world_size"]() == 1 < (launched_number("WORLD_SIZE") or 1):
        raise _refusal("a default group of gloo")


def _split(
    c10d: Words,
    parent_pg: Any = None,
    split_ranks: Any = None,
    timeout: Any = None,
    *_: Any,
    **words: Any,
) -> Any:
    parent = parent_pg or c10d["_get_default_group"]()
    ranks = c10d["get_process_group_ranks"](parent)
    for group in split_ranks or ():
        if parent.rank() in group:
            chosen = [ranks[rank] for rank in sorted(group)]
            return c10d["new_group"](chosen, timeout=timeout, group_desc=words.get("group_desc"))
    return None


def _refuse_others(c10d: Words, name: str, words: Words, call: Callable[[], Any]) -> Any:
    source = words.get("src")
    if source is None and words.get("group_src") is not None:
        source = c10d["get_global_rank"](_group_of(c10d, words), words["group_src"])
    if source is None and name != "recv_object_list":
        source = 0
    if source != c10d["get_rank"]():
        raise _refusal(f"{name} from rank {source}")
    return call()


def _gather(words: Words, call: Callable[[], Any]) -> Any:
    work = call()
    for part in words["gather_list"] or ():
        part.copy_(words["tensor"])
    return work


def _group_of(c10d: Words, words: Words) -> Any:
    return words.get("group") or c10d["_get_default_group"]()


def _answer_gloo(c10d: Words) -> None:
    """Replace gloo's groups by groups of one, and answer what those cannot."""
    real: Any = c10d["ProcessGroupGloo"]

    class OfOne(real):  # type: ignore[misc]
        """gloo with this rank alone."""

        def __init__(self, store: Any, rank: int, size: int, *args: Any, **kwargs: Any) -> None:
            super().__init__(store, 0, 1, *args, **kwargs)

    c10d["ProcessGroupGloo"] = OfOne
    c10d["monitored_barrier"] = wraps(c10d["monitored_barrier"])(lambda *_, **__: None)
    c10d["get_world_size"] = _sizes(c10d)

    def of_gloo(name: str, words: Words, call: Callable[[], Any]) -> Any:
        backend: Any = _backend(_group_of(c10d, words), words)
        size = c10d["get_world_size"](words.get("group")) if isinstance(backend, real) else 1
        if size == 1:
            return call()
        answer = _OF_GLOO[name]
        if answer is None:
            raise _refusal(f"{name} with gloo")
        answer(words, size)
        return backend.barrier() if words.get("async_op") else None

    for name in _OF_GLOO:
        if name in c10d:  # not every torch has all of them
            _instead(c10d, name, partial(of_gloo, name))


def _sizes(c10d: Words) -> Callable[..., int]:
    """The size of a group; plain code, because torch.compile may trace it."""
    original = c10d["get_world_size"]

    @wraps(original)
    def get_world_size(group: Any = None) -> int:
        size: int = original(group)
        if size == 1:  # of gloo's group, which newer torch asks
            size = len(c10d["get_process_group_ranks"](group or c10d["_get_default_group"]()))
        return size

    return get_world_size


def _backend(group: Any, words: Words) -> Any:
    """What does the work for the tensors of a call; None if this rank is not in the group."""
    tensor = next(iter(words.values()))
    tensor = words.get("tensor", tensor)
    tensor = tensor[0] if isinstance(tensor, list) else tensor
    return group._get_backend(tensor.device) if hasattr(group, "_get_backend") else None


def _all_gather(words: Words, size: int) -> None:
    for part in words["tensor_list"]:
        part.copy_(words["tensor"])


def _all_gather_into(words: Words, size: int) -> None:
    for part in words["output_tensor"].view(size, -1):
        part.copy_(words["input_tensor"].reshape(-1))


def _reduce(words: Words, size: int) -> None:
    ReduceOp: Any = sys.modules["torch.distributed"].ReduceOp  # noqa: N806
    if words["op"] == ReduceOp.SUM:
        words["tensor"].mul_(size)
    elif words["op"] == ReduceOp.PRODUCT:
        words["tensor"].pow_(size)


def _scatter(words: Words, size: int) -> None:
    if not words["scatter_list"]:
        raise _refusal("scatter with gloo from another rank")
    words["tensor"].copy_(words["scatter_list"][0])


def _nothing(words: Words, size: int) -> None:
    """What others get does not matter here."""


# What is done for a collective of a group of gloo; None for what is refused.
_OF_GLOO: dict[str, Callable[[Words, int], None] | None] = {
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
