"""What a rung asks for that this device, these libraries or this version cannot do."""

from __future__ import annotations

import importlib.util

import torch

from oomdoctor.records.configuration.config import TrainConfig, steps_in_backward
from oomdoctor.records.configuration.faults import Where, card_lacks, unsupported
from oomdoctor.records.facts.attention import ATTENTIONS
from oomdoctor.records.facts.optimizers import OPTIMIZERS
from oomdoctor.worker.protocol import UnsupportedError


def check_supported(config: TrainConfig, device_type: str, *, simulated: bool = False) -> None:
    """Check before anything is built. A simulation needs no kernels, only what builds the model.

    Raises:
        UnsupportedError: it is not supported; the text says why and what to do.
    """
    row = OPTIMIZERS.get(config.optimizer)
    if config.offload == "optimizer" and (row is None or not row.steps_on_host):
        raise UnsupportedError(
            f'{config.optimizer} only updates on the GPU; use offload = "optimizer" with '
            "adamw_torch_fused, or use paged_adamw_8bit, whose states move to the host by "
            "themselves"
        )
    on_cpu = device_type == "cpu"
    places: dict[Where, bool] = {
        "anywhere": True,
        "cpu": on_cpu,
        "simulated": simulated,
        "run": not simulated,
        "worker": True,
    }
    for where, applies in places.items():
        if applies and (reason := unsupported(config, where, installed)) is not None:
            raise UnsupportedError(reason)
    if steps_in_backward(config) and config.accumulation_steps() > 1:
        raise UnsupportedError(
            "a step in the backward pass cannot accumulate gradients; make effective_batch_size "
            "the micro-batch size"
        )
    if not simulated:
        own = None
        if not on_cpu and torch.cuda.is_available():
            own = "{}.{}".format(*torch.cuda.get_device_capability())
        lacking = None if on_cpu else card_lacks(config, own)
        if lacking is not None:
            raise UnsupportedError(lacking)
        _check_attention(config, device_type)


def _check_attention(config: TrainConfig, device_type: str) -> None:
    row = ATTENTIONS[config.attention]
    if row.module is None:
        return
    if device_type == "cpu":
        raise UnsupportedError(f"{row.name} needs a GPU")
    if not installed(row.module):
        raise UnsupportedError(
            f"{row.name} needs the package {row.package} ({row.install}); "
            "sdpa already includes a flash kernel"
        )
    plain = config.weights_dtype == "float32" and config.autocast_dtype == "none"
    if plain and row.sixteen_bit_only:
        raise UnsupportedError(
            f"{row.name} computes in 16 bits only; set weights_dtype or autocast_dtype"
        )


def installed(module: str) -> bool:
    """Whether a package is there; nothing is imported."""
    return importlib.util.find_spec(module) is not None
