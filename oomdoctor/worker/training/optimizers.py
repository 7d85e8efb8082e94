"""The optimizer that the Trainer makes, and the tensors in its states.

`Trainer.create_optimizer` chooses the class, the parameter groups and the overrides (bitsandbytes
keeps 32-bit states for embeddings), so nothing here repeats those choices.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from oomdoctor.records.facts.optimizers import is_paged, optimizer_named
from oomdoctor.worker.protocol.on_host import OnHost
from oomdoctor.worker.protocol.unsupported import UnsupportedError
from oomdoctor.worker.training.techniques.offload import on_host_optimizer

if TYPE_CHECKING:
    import torch
    from torch.optim import Optimizer
    from transformers import Trainer


def moved_to_host(optimizer: Optimizer, on_host: OnHost, notes: list[str]) -> Optimizer:
    """The optimizer with its states and its update on the host.

    `notes` gets the lines to type for the same in a training script.
    """
    kind = type(optimizer).__name__
    notes.append(
        "the optimizer updates on the host; in a training script: pip install torchao; "
        "from torchao.optim import CPUOffloadOptimizer; Trainer(..., optimizers=("
        f"CPUOffloadOptimizer(model.parameters(), {kind}, lr=...), None)); max_grad_norm=0, "
        "because it copies the gradients before they are clipped"
    )
    return on_host_optimizer(optimizer, on_host)


def create(trainer: Trainer) -> Optimizer:
    """The optimizer of the Trainer's arguments for its model.

    Raises:
        UnsupportedError: the optimizer's library is missing or it cannot run on this device.
    """
    from oomdoctor.worker.training.synthetic import is_fake

    name = str(trainer.args.optim.value)
    fake = any(is_fake(parameter) for parameter in trainer.model.parameters())
    device = "cuda" if fake else trainer.args.device.type
    if is_paged(name) and device == "cpu":
        raise UnsupportedError(f"{name} uses CUDA's unified memory, so it needs a GPU")
    try:
        optimizer = trainer.create_optimizer()
        if device == "cpu" and type(optimizer).__module__.startswith("bitsandbytes"):
            _try_on_cpu(trainer)
        return optimizer
    except (ValueError, ImportError, RuntimeError, AttributeError) as error:
        if "out of memory" in str(error):
            raise
        row = optimizer_named(name)
        known = f" (it needs {row.versions})" if row is not None and row.versions else ""
        raise UnsupportedError(f"cannot create the optimizer {name}{known}: {error}") from error


def _try_on_cpu(trainer: Trainer) -> None:
    """Step once: older bitsandbytes makes 8-bit optimizers on the CPU but cannot step them."""
    import torch

    kind, settings = trainer.get_optimizer_cls_and_kwargs(trainer.args)
    parameter = torch.nn.Parameter(torch.zeros(8192))  # large enough for 8-bit states
    parameter.grad = torch.zeros_like(parameter)
    kind([parameter], **settings).step()


def state_tensors(optimizer: Optimizer) -> Iterator[torch.Tensor]:
    """Every tensor in the optimizer's states: moments, block constants and step counters."""
    for state in getattr(optimizer, "optimizer", optimizer).state.values():
        for value in state.values():
            if hasattr(value, "untyped_storage"):
                yield value
            elif isinstance(value, dict):
                yield from (v for v in value.values() if hasattr(v, "untyped_storage"))


def managed_bytes(optimizer: Optimizer) -> int:
    """Bytes of paged states, which are in CUDA's unified memory and may leave the GPU.

    bitsandbytes marks these tensors with `is_paged`; the caching allocator does not see them.
    """
    return sum(
        tensor.numel() * tensor.element_size()
        for tensor in state_tensors(optimizer)
        if getattr(tensor, "is_paged", False)
    )
