"""One rank of a job runs, and stands for all of them on an emulated GPU.

Large tensors of the host keep no values. An offloaded optimizer would otherwise really update its
part of the model on this machine, which takes its memory and its time and says nothing about a GPU.
Results are made but not written, so their pages are never taken. Small tensors are computed, and so
are those that control flow reads: token ids, positions and masks.
"""

from __future__ import annotations

import socket
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING

from oomdoctor.emulator.alone import answer_all
from oomdoctor.records.configuration.config import is_fsdp, uses_host
from oomdoctor.records.job.result import ProbeJob, Reply
from oomdoctor.system.environment import set_variables
from oomdoctor.worker.protocol import PhaseFile, launched_alone
from oomdoctor.worker.ranks.agent import AnswerOne
from oomdoctor.worker.ranks.run_ranks import joined

if TYPE_CHECKING:
    import torch
    from torch._ops import OpOverload

    from oomdoctor.worker.tracing.calls import Kinds

_LARGE_BYTES = 1 << 20


def answer_alone(job: ProbeJob, progress: PhaseFile, answer: AnswerOne) -> Reply:
    """Run the first rank; the emulated GPU and `emulator.alone` stand in for the others."""
    answer_all()
    config = job.config
    set_variables(launched_alone(config, _free_port()))
    # FSDP shards from host memory, where quantized training casts what is not quantized.
    on_host = uses_host(config) or (is_fsdp(config) and config.method == "qlora")
    with idle_host() if on_host else nullcontext():
        return joined({0: answer(job, progress)}, None)


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port


def idle_host() -> AbstractContextManager[object]:
    """A dispatch mode under which operators on large tensors of the host do nothing."""
    import torch
    from torch.distributed.tensor import DTensor
    from torch.utils._pytree import tree_leaves, tree_map_only

    from oomdoctor.worker.tracing.calls import Answering

    read_by_control_flow = (torch.int32, torch.int64, torch.bool)

    def is_large(tensor: torch.Tensor) -> bool:
        if tensor.device.type != "cpu" or tensor.dtype in read_by_control_flow:
            return False
        return _is_large(tensor.untyped_storage().nbytes())

    def made(like: torch.Tensor) -> torch.Tensor:
        if _is_large(like.numel() * like.element_size()):
            return torch.empty_strided(like.size(), like.stride(), dtype=like.dtype, device="cpu")
        return torch.zeros(like.size(), dtype=like.dtype, device="cpu")

    def idle(
        func: OpOverload, kinds: Kinds, args: Sequence[torch.Tensor], kwargs: Mapping[str, object]
    ) -> object:
        if any(issubclass(kind, DTensor) for kind in kinds):
            return NotImplemented  # it calls the operators on its part
        tensors = [
            tensor for tensor in tree_leaves((args, kwargs)) if isinstance(tensor, torch.Tensor)
        ]
        wanted = kwargs.get("device")
        elsewhere = any(tensor.device.type not in ("cpu", "meta") for tensor in tensors)
        if elsewhere or (wanted is not None and torch.device(wanted).type != "cpu"):
            return func(*args, **kwargs)  # a copy between host and GPU is the GPU's
        reads_large = any(is_large(tensor) for tensor in tensors)
        if not (reads_large or _fills(func)) or _is_view(func):
            return func(*args, **kwargs)
        if func._opname in ("_pin_memory", "pin_memory"):
            return torch.empty_like(args[0], pin_memory=True)
        targets = _targets(func, args, kwargs)
        if targets:  # in place: returns what it would have written, if it returns anything
            several = len(func._schema.returns) > 1
            return (tuple(targets) if several else targets[0]) if func._schema.returns else None
        shapes, words = tree_map_only(
            torch.Tensor, lambda tensor: tensor.to("meta"), (args, kwargs)
        )
        words.pop("pin_memory", None)
        if "device" in words or _fills(func):
            words["device"] = torch.device("meta")
        result = func(*shapes, **words)
        if not reads_large and (
            result.dtype in read_by_control_flow
            or not _is_large(result.numel() * result.element_size())
        ):
            return func(*args, **kwargs)
        return tree_map_only(torch.Tensor, made, result)

    return Answering(idle)


def _is_large(size_bytes: int) -> bool:
    return size_bytes >= _LARGE_BYTES


def _fills(func: OpOverload) -> bool:
    """Whether an operator makes a tensor and writes it."""
    return func.namespace == "aten" and func._opname in ("zeros", "ones", "full", "zeros_like")


def _is_view(func: OpOverload) -> bool:
    """Whether an operator writes nothing: its result is a view, or is not filled."""
    return func._opname in ("empty", "empty_like", "empty_strided", "new_empty") or any(
        result.alias_info is not None and not result.alias_info.is_write
        for result in func._schema.returns
    )


def _targets(
    func: OpOverload, args: Sequence[object], kwargs: Mapping[str, object]
) -> list[object]:
    """The arguments that an operator writes in place."""
    return [
        args[place] if place < len(args) else kwargs.get(argument.name)
        for place, argument in enumerate(func._schema.arguments)
        if argument.alias_info is not None and argument.alias_info.is_write
    ]
