"""The optimizer a Trainer makes, and what its states hold.

`Trainer.create_optimizer` chooses the class, the parameter groups and the overrides (bitsandbytes
keeps 32-bit states for embeddings), so nothing here repeats that choice.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from oomdoctor.worker.protocol.unsupported import UnsupportedError
from oomdoctor.worker.training.offload import OnHost, on_host_optimizer

# What torch and transformers compute with plain tensor operations, so that it runs anywhere.
_ON_ANY_DEVICE = ("adamw_torch", "adamw_torch_fused", "adafactor", "sgd", "adagrad", "rmsprop")


OF_TORCHAO = ("adamw_torch_8bit", "adamw_torch_4bit")  # transformers' names


def steps_on_host(name: str) -> bool:
    """Whether this optimizer can update on the host what is trained on a GPU."""
    return name in _ON_ANY_DEVICE


def moved_to_host(optimizer: Any, on_host: OnHost, notes: list[str]) -> Any:
    """The optimizer with its states and its update on the host; `notes` gets the lines to type."""
    kind = type(optimizer).__name__
    notes.append(
        "the optimizer's update runs on the host; in a training: pip install torchao; "
        "from torchao.optim import CPUOffloadOptimizer; Trainer(..., optimizers=("
        f"CPUOffloadOptimizer(model.parameters(), {kind}, lr=...), None)); max_grad_norm=0, "
        "because it copies the gradients before they are clipped"
    )
    return on_host_optimizer(optimizer, on_host)


def create(trainer: Any) -> Any:
    """The optimizer of the Trainer's arguments for its model.

    Raises:
        UnsupportedError: the optimizer's library is missing or it cannot run on this device.
    """
    from oomdoctor.worker.training.synthetic import is_fake

    name = str(trainer.args.optim.value)
    fake = any(is_fake(parameter) for parameter in trainer.model.parameters())
    device = "cuda" if fake else trainer.args.device.type
    if name.startswith("paged_") and device == "cpu":
        raise UnsupportedError(f"{name} pages through CUDA's unified memory, so it needs a GPU")
    try:
        optimizer = trainer.create_optimizer()
        if device == "cpu" and type(optimizer).__module__.startswith("bitsandbytes"):
            _try_on_cpu(trainer)
        return optimizer
    except (ValueError, ImportError, RuntimeError, AttributeError) as error:
        if "out of memory" in str(error):
            raise
        raise UnsupportedError(f"the optimizer {name} cannot be made here: {error}") from error


def _try_on_cpu(trainer: Any) -> None:
    """Older bitsandbytes makes an 8-bit optimizer on the CPU and fails only when it steps."""
    import torch

    kind, settings = trainer.get_optimizer_cls_and_kwargs(trainer.args)
    parameter = torch.nn.Parameter(torch.zeros(8192))  # large enough for 8-bit states
    parameter.grad = torch.zeros_like(parameter)
    kind([parameter], **settings).step()


def state_tensors(optimizer: Any) -> Iterator[Any]:
    """Every tensor in the optimizer's states (moments, block constants, step counters)."""
    for state in getattr(optimizer, "optimizer", optimizer).state.values():
        for value in state.values():
            if hasattr(value, "untyped_storage"):
                yield value
            elif isinstance(value, dict):
                yield from (v for v in value.values() if hasattr(v, "untyped_storage"))


def managed_bytes(optimizer: Any) -> int:
    """Bytes of states in CUDA's unified memory, which may leave the GPU (paged optimizers).

    bitsandbytes marks such tensors with `is_paged`; they are not in the caching allocator.
    """
    return sum(
        tensor.numel() * tensor.element_size()
        for tensor in state_tensors(optimizer)
        if getattr(tensor, "is_paged", False)
    )
