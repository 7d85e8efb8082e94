"""The optimizer that the Trainer makes, and the tensors in its states.

`Trainer.create_optimizer` chooses the class, the parameter groups and the overrides (bitsandbytes
keeps 32-bit states for embeddings), so nothing here repeats those choices.

Steps in the backward pass are as in torchtune's `optimizer_in_bwd` and PyTorch's tutorial: one
optimizer for each parameter, called by a hook that then frees the gradient. So gradients of only a
few parameters exist at a time, and they cannot be accumulated or clipped.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

import torch
from torch.optim import Optimizer

from oomdoctor.records.configuration.config import TrainConfig
from oomdoctor.records.configuration.keys import low_rank
from oomdoctor.records.facts.optimizers import is_paged, optimizer_named
from oomdoctor.stacks.names.techniques import rank_words
from oomdoctor.worker.protocol import UnsupportedError
from oomdoctor.worker.tracing.tensors import inner_tensors, tensor_bytes
from oomdoctor.worker.training.setup import Setup
from oomdoctor.worker.training.techniques.offload import on_host_optimizer

if TYPE_CHECKING:
    from transformers import Trainer

_APOLLO_NOTE = (
    "the optimizer step is predicted from the first one; later ones of APOLLO make one more copy "
    "of a gradient"
)
_GALORE_NOTE = (
    "what cuSOLVER needs to factor a gradient is not counted, because only cuSOLVER knows it; the "
    "predicted peak of the optimizer step is a lower bound"
)
_NOTE = (
    "the Trainer has no setting for steps in the backward pass; torchtune has optimizer_in_bwd, "
    "and PyTorch's tutorial 'optimizer step in backward' has the lines; gradients are not clipped"
)


def arguments(config: TrainConfig) -> dict[str, object]:
    """What GaLore and APOLLO need of the Trainer's arguments: the layers, and the rank."""
    if not low_rank(config):
        return {}
    return {"optim_target_modules": "all-linear", "optim_args": rank_words(config)}


def note_what_is_left_out(setup: Setup) -> None:
    """Note what a simulation leaves out for low-rank optimizers."""
    name = setup.config.optimizer
    if name == "apollo_adamw":
        setup.notes.append(_APOLLO_NOTE)
    elif name.startswith("galore") and setup.job.device_type == "cuda":
        setup.notes.append(_GALORE_NOTE)


def move_to_host(setup: Setup) -> None:
    """Keep the optimizer's states and its update on the host.

    A note has the lines to type for the same in a training script.
    """
    kind = type(setup.optimizer).__name__
    setup.notes.append(
        "the optimizer updates on the host; in a training script: pip install torchao; "
        "from torchao.optim import CPUOffloadOptimizer; Trainer(..., optimizers=("
        f"CPUOffloadOptimizer(model.parameters(), {kind}, lr=...), None)); max_grad_norm=0, "
        "because it copies the gradients before they are clipped"
    )
    setup.optimizer = on_host_optimizer(setup.optimizer, setup.on_host)


def move_to_backward(setup: Setup) -> None:
    """Let the Trainer's optimizer update in the backward pass; it must not have stepped yet."""
    trainer = setup.trainer
    kind, settings = trainer.get_optimizer_cls_and_kwargs(trainer.args, trainer.model)
    setup.optimizer = _stepped_in_backward(setup.optimizer, kind, settings)
    setup.notes.append(_NOTE)


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
        needed = f" (it needs {row.versions})" if row is not None and row.versions else ""
        raise UnsupportedError(f"cannot create the optimizer {name}{needed}: {error}") from error


def _try_on_cpu(trainer: Trainer) -> None:
    """Step once: older bitsandbytes makes 8-bit optimizers on the CPU but cannot step them."""
    kind, settings = trainer.get_optimizer_cls_and_kwargs(trainer.args)
    parameter = torch.nn.Parameter(torch.zeros(8192))  # large enough for 8-bit states
    parameter.grad = torch.zeros_like(parameter)
    kind([parameter], **settings).step()


def state_tensors(optimizer: Optimizer) -> Iterator[torch.Tensor]:
    """Every tensor in the optimizer's states: moments, block constants and step counters."""
    for state in (state for own in _each(optimizer) for state in own.state.values()):
        for kept in state.values():
            # GaLore and APOLLO keep a projection, which is an object.
            value = {0: kept.ortho_matrix} if hasattr(kept, "ortho_matrix") else kept
            if hasattr(value, "untyped_storage"):
                yield from inner_tensors(value)
            elif isinstance(value, dict):
                yield from (v for v in value.values() if hasattr(v, "untyped_storage"))


def updated_tensors(optimizer: Optimizer) -> Iterator[torch.Tensor]:
    """What the optimizer updates: the weights, or DeepSpeed's float32 copies of a rank's part."""
    for own in _each(optimizer):
        for group in own.param_groups:
            yield from group["params"]
        yield from getattr(own, "fp32_partitioned_groups_flat", ())  # those of ZeRO-3


def kept_gradients(optimizer: Optimizer) -> Iterator[torch.Tensor]:
    """The gradients of this rank's part that ZeRO keeps in its buffers."""
    for own in _each(optimizer):
        kept = [getattr(own, "grad_partitions_flat_buffer", None)]  # of ZeRO-3
        for group in getattr(own, "all_grad_tensors", {}).values():  # of ZeRO-2, between batches
            kept += group or ()
        yield from (gradient for gradient in kept if hasattr(gradient, "untyped_storage"))


def _each(optimizer: Optimizer) -> Iterable[Optimizer]:
    """The optimizer; the layerwise ones of transformers have one for each parameter."""
    plain = getattr(optimizer, "optimizer", optimizer)
    return (getattr(plain, "optimizer_dict", None) or {0: plain}).values()


def forget_states(optimizer: Optimizer) -> None:
    """Drop all states but the seeds that APOLLO gives its parameters when it is made."""
    for own in _each(optimizer):
        seeds = {p: state["seed"] for p, state in own.state.items() if "seed" in state}
        own.state.clear()
        for parameter, seed in seeds.items():
            own.state[parameter]["seed"] = seed


def managed_bytes(optimizer: Optimizer) -> int:
    """Bytes of paged states, which are in CUDA's unified memory and may leave the GPU.

    bitsandbytes marks these tensors with `is_paged`; the caching allocator does not see them.
    """
    paged = (tensor for tensor in state_tensors(optimizer) if getattr(tensor, "is_paged", False))
    return sum(map(tensor_bytes, paged))


def _stepped_in_backward(
    optimizer: Optimizer, kind: type[Optimizer], settings: dict[str, object]
) -> Optimizer:
    """An optimizer that does nothing in a step: its parameters update in the backward pass.

    `kind` and `settings` are the class of `optimizer` and the arguments it was made with. The
    returned optimizer has its parameters and all states.
    """
    states: dict[torch.Tensor, object] = optimizer.state
    single: dict[torch.Tensor, Optimizer] = {}
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            own = single[parameter] = kind([{**group, "params": [parameter]}], **settings)
            own.state = states
            if type(own).__module__.startswith("bitsandbytes"):
                # They share their tables, but not the settings of parameters: it keeps those by the
                # position of a parameter too, which is the same in all of them.
                own.name2qmap, own.mng = optimizer.name2qmap, copy.copy(optimizer.mng)
                own.mng.index2config = {}

    def update(parameter: torch.Tensor) -> None:
        single[parameter].step()
        parameter.grad = None

    for parameter in single:
        parameter.register_post_accumulate_grad_hook(update)

    class SteppedInBackward(torch.optim.Optimizer):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__([dict(group) for group in optimizer.param_groups], {})

        @property
        def state(self) -> dict[torch.Tensor, object]:
            return states

        @state.setter
        def state(self, _: object) -> None:
            """accelerate loads states that were saved, and there are none yet."""

        def step(self, closure: object = None) -> None:
            """Nothing is left to do."""

    return SteppedInBackward()
