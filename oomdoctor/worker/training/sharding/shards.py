"""Give each rank its part of synthetic weights, without the whole model on any device.

Weights are declared in host memory that nothing touches, as transformers does on all ranks but the
first. accelerate then loads them one parameter at a time: the whole parameter comes to the device,
and each rank keeps its part. That is done here with random values in place of a checkpoint.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import torch
from torch.nn import Module

from oomdoctor.worker.training.synthetic import STANDARD_DEVIATION

if TYPE_CHECKING:
    from accelerate import Accelerator


@contextmanager
def shards_made_on_device() -> Iterator[None]:
    """Let accelerate load parameters that are made on the device, in place of a checkpoint's."""
    from accelerate.utils import fsdp_utils

    original = fsdp_utils.fsdp2_load_full_state_dict
    fsdp_utils.fsdp2_load_full_state_dict = _load
    try:
        yield
    finally:
        fsdp_utils.fsdp2_load_full_state_dict = original


def _load(
    accelerator: Accelerator,
    model: Module,
    full_sd: dict[str, object],
    cpu_offload: bool = False,
) -> Module:
    """What accelerate's `fsdp2_load_full_state_dict` does with memory."""
    from torch.distributed.tensor import DTensor, distribute_tensor

    parts: dict[str, torch.Tensor] = {}
    for name, sharded in model.state_dict().items():
        whole = torch.empty(sharded.size(), dtype=sharded.dtype, device=accelerator.device)
        if whole.is_floating_point():
            with torch.no_grad():
                whole.normal_(std=STANDARD_DEVIATION)
        part = whole
        if isinstance(sharded, DTensor):
            part = distribute_tensor(whole, sharded.device_mesh, sharded.placements)
        if part.is_floating_point():
            part = part.to(sharded.dtype)
        parts[name] = part.to("cpu") if cpu_offload else part
    model.load_state_dict(parts, assign=True)
    return model


@contextmanager
def moved_with_values() -> Iterator[None]:
    """Let FSDP 2 make a declared model on the device, where it would move one with weights.

    It moves all of a unit before it shards it (`_move_states_to_device`). Memory of the host that
    nothing has touched would come as zeros, and not be seen where host and device are one.
    """
    from torch.distributed.fsdp._fully_shard import _fsdp_init

    move = _fsdp_init._move_states_to_device

    def made(
        parameters: list[torch.nn.Parameter], buffers: list[torch.Tensor], device: torch.device
    ) -> None:
        for parameter in parameters:
            value = torch.empty_like(parameter.data, device=device)
            parameter.data = value.normal_(std=STANDARD_DEVIATION)
        move([], buffers, device)

    _fsdp_init._move_states_to_device = made
    try:
        yield
    finally:
        _fsdp_init._move_states_to_device = move


def fill(model: Module) -> None:
    """Give random values to the parts that a rank holds, in place."""
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.is_floating_point():
                parameter.normal_(std=STANDARD_DEVIATION)
