"""`--ranks 1`: one rank runs, and answers what torch.distributed asks of the others.

The processes of the other ranks end before they import torch. The emulated NCCL takes them to give
what this rank gives; what waits for them in Python is answered here, in the same way. What only
another rank could know is refused, with the line to type.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import wraps
from inspect import signature
from typing import Any

from oomdoctor.emulator.alone_gloo import answer_gloo, group_of, refusal
from oomdoctor.emulator.variables import launched_number


def is_another_rank() -> bool:
    """Whether a launcher started this process as another rank than the first."""
    local, rank = launched_number("LOCAL_RANK"), launched_number("RANK")
    return local is not None and (local > 0 or (rank or 0) > 0)


def stand_aside() -> None:
    """End the process of a rank that does not run. Launchers take that for a success."""
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    os._exit(0)


def answer_rendezvous() -> None:
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


def answer_collectives() -> None:
    """Replace what waits for other ranks in torch.distributed. It has just been imported."""
    c10d = vars(sys.modules["torch.distributed.distributed_c10d"])
    c10d["_store_based_barrier"] = c10d["_get_split_source"] = lambda *_, **__: None
    c10d["init_process_group"] = _joins(c10d["init_process_group"], c10d)
    if "split_group" in c10d:  # since torch 2.5
        c10d["split_group"] = _splits(c10d)
    for name in ("broadcast_object_list", "scatter_object_list", "recv_object_list"):
        c10d[name] = _refuses_others(c10d[name], c10d)
    if "ProcessGroupGloo" in c10d:
        answer_gloo(c10d)
    c10d["gather"] = _gathers(c10d["gather"], c10d)


def answer_checkpoints() -> None:
    """Let torch.distributed.checkpoint save parts that do not make up a whole."""
    planner = vars(sys.modules["torch.distributed.checkpoint.default_planner"])
    check = planner["_validate_global_plan"]  # its result for nothing to save is that of success

    def unchecked(plan: Any, metadata: Any) -> Any:
        return check([], replace(metadata, state_dict_metadata={}))

    planner["_validate_global_plan"] = unchecked


def answer_optimizer_states() -> None:
    """Refuse what FullyShardedDataParallel saves of an optimizer whose parts other ranks hold."""
    states = vars(sys.modules["torch.distributed.fsdp._optim_utils"])
    convert = states["_convert_state_with_orig_params"]

    @wraps(convert)
    def converting(*args: Any, **kwargs: Any) -> Any:
        try:
            return convert(*args, **kwargs)
        except RuntimeError as error:
            raise refusal("the optimizer state of FullyShardedDataParallel") from error

    states["_convert_state_with_orig_params"] = converting


def _joins(original: Callable[..., Any], c10d: dict[str, Any]) -> Callable[..., Any]:
    bound = signature(original)

    @wraps(original)
    def init_process_group(*args: Any, **kwargs: Any) -> None:
        rank = bound.bind(*args, **kwargs).arguments.get("rank", -1)
        if rank in (-1, None):
            rank = launched_number("RANK") or 0
        if rank > 0:  # the script started its ranks itself
            stand_aside()
        original(*args, **kwargs)
        if c10d["get_world_size"]() == 1 < (launched_number("WORLD_SIZE") or 1):
            raise refusal("a default group of gloo")

    return init_process_group


def _splits(c10d: dict[str, Any]) -> Callable[..., Any]:
    @wraps(c10d["split_group"])
    def split_group(
        parent_pg: Any = None, split_ranks: Any = None, timeout: Any = None, *_: Any, **words: Any
    ) -> Any:
        parent = parent_pg or c10d["_get_default_group"]()
        ranks = c10d["get_process_group_ranks"](parent)
        for group in split_ranks or ():
            if parent.rank() in group:
                chosen = [ranks[rank] for rank in sorted(group)]
                return c10d["new_group"](
                    chosen, timeout=timeout, group_desc=words.get("group_desc")
                )
        return None

    return split_group


def _refuses_others(original: Callable[..., Any], c10d: dict[str, Any]) -> Callable[..., Any]:
    bound = signature(original)

    @wraps(original)
    def refusing(*args: Any, **kwargs: Any) -> Any:
        given = bound.bind(*args, **kwargs)
        given.apply_defaults()
        words = given.arguments
        source = words.get("src")
        if source is None and words.get("group_src") is not None:
            source = c10d["get_global_rank"](group_of(c10d, words), words["group_src"])
        if source is None and original.__name__ != "recv_object_list":
            source = 0
        if source != c10d["get_rank"]():
            raise refusal(f"{original.__name__} from rank {source}")
        return original(*args, **kwargs)

    return refusing


def _gathers(original: Callable[..., Any], c10d: dict[str, Any]) -> Callable[..., Any]:
    bound = signature(original)

    @wraps(original)
    def gather(*args: Any, **kwargs: Any) -> Any:
        words = bound.bind(*args, **kwargs).arguments
        work = original(*args, **kwargs)
        for part in words.get("gather_list") or ():
            part.copy_(words["tensor"])
        return work

    return gather
