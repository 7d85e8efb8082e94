"""Skipping a batch when several ranks train one model: all of them, or none.

A rank that ran out of memory has left its step, and the others wait for it in the collectives of
theirs. So it first takes part in what is left of those, with zeros (`catch_up`), through the code
of DistributedDataParallel or fully_shard. At the end of each block all ranks say whether theirs
failed (`agree`). They do that on the CPU, so that no rank waits for its GPU.

Under DistributedDataParallel, the rest of the step of a rank that ran out of memory is a backward
pass of a sum of zeros over the parameters whose gradients are not there yet. So torch's own reducer
sends the buckets that are left, in the order in which the other ranks send theirs, and is ready for
the next step.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

Agree = Callable[[bool], list[int]]


class Alone:
    """One process trains; nobody waits for it."""

    def begin(self) -> None:
        """A block begins."""

    def why_not(self) -> str | None:
        """Why this batch cannot be skipped, in words; None if it can."""
        return None

    def catch_up(self) -> None:
        """Take part in the collectives of this step that the other ranks still wait for."""

    def agree(self, failed: bool) -> list[int]:
        """The ranks whose block failed; all ranks call it at the end of each block."""
        return [0] if failed else []


class Unknown(Alone):
    """Several ranks whose collectives are not known here: an error ends the training as usual."""

    def why_not(self) -> str | None:
        """Nothing can be skipped."""
        return (
            "several ranks train, and the model is neither DistributedDataParallel nor sharded by "
            "fully_shard, so the other ranks would wait forever"
        )

    def agree(self, failed: bool) -> list[int]:
        """Only this rank, which will raise."""
        return []


def agreement() -> Agree:
    """A group on the CPU, in which each rank tells the others whether its block failed.

    All ranks make it at the same time. The answer is the ranks that failed.
    """
    import torch
    import torch.distributed as dist

    group: Any = dist.new_group(backend="gloo")

    def agree(failed: bool) -> list[int]:
        flags = torch.zeros(dist.get_world_size(), dtype=torch.int32)
        flags[dist.get_rank()] = int(failed)
        dist.all_reduce(flags, group=group)
        return [rank for rank, flag in enumerate(flags.tolist()) if flag]

    return agree


class Replicated:
    """The steps of one DistributedDataParallel."""

    def __init__(self, model: Any, agree: Agree) -> None:
        self._model, self._agree = model, agree
        self._entered = self._left = 0  # forward passes in this block
        self._usual: int | None = None  # forward passes in a block that did not fail
        self._ready: set[Any] = set()  # parameters whose gradients are there
        self._parameters = [p for p in model.module.parameters() if p.requires_grad]
        model.module.register_forward_pre_hook(self._on_enter)
        model.register_forward_hook(self._on_leave)
        for parameter in self._parameters:
            parameter.register_post_accumulate_grad_hook(self._ready.add)

    def begin(self) -> None:
        """A block begins."""
        self._entered = self._left = 0
        self._ready.clear()

    def why_not(self) -> str | None:
        """It needs to know what the other ranks do in a block: one forward and backward pass."""
        if getattr(self._model, "static_graph", False):
            return "DistributedDataParallel has static_graph=True"
        if self._usual not in (None, 1) or self._entered > 1:
            return "a block holds several forward passes; guard each of them"
        return None

    def catch_up(self) -> None:
        """Send the buckets that are left."""
        import torch

        syncs = self._model.require_backward_grad_sync
        with torch.enable_grad():
            if not self._entered:
                loss = self._forward_of_zeros()
            elif self._left:
                loss = self._zeros()
            elif syncs:
                loss = self._model._post_forward(self._zeros())
            else:
                return
            if syncs and loss is not None:
                loss.backward()

    def agree(self, failed: bool) -> list[int]:
        """The ranks whose block failed."""
        failed_ranks = self._agree(failed)
        if not failed_ranks:
            self._usual = self._entered
        return failed_ranks

    def _forward_of_zeros(self) -> Any:
        """A forward pass of the wrapper, which sends buffers, without that of the module."""
        module = self._model.module
        own = module.__dict__.get("forward")
        module.forward = lambda *_, **__: self._zeros()
        try:
            return self._model(self._parameters[0].new_zeros(()))
        finally:
            del module.forward
            if own is not None:
                module.forward = own

    def _zeros(self) -> Any:
        """A sum of zeros that depends on the parameters without a gradient; None without any."""
        total: Any = None
        for parameter in (p for p in self._parameters if p not in self._ready):
            zero = parameter.sum() * 0
            total = zero if total is None else total + zero.to(total.device, total.dtype)
        return total

    def _on_enter(self, *_: Any) -> None:
        self._entered += 1

    def _on_leave(self, *_: Any) -> None:
        self._left += 1
