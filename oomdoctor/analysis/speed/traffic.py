"""The bytes that each GPU of a training sends, by engine. Nothing here is a time.

A ring all-gather or reduce-scatter of S bytes over N ranks sends S (N-1)/N bytes from each rank,
an all-reduce twice that (Patarasuk and Yuan, 2009, doi:10.1016/j.jpdc.2008.09.002).

    ddp           all-reduce of the gradients, with the last micro-batch of a step
    fsdp          each micro-batch: all-gather of the weights in both passes; reduce-scatter of the
                  gradients with the last one
    fsdp_grad_op  one all-gather; the weights stay until the backward pass
    hybrid        fsdp within a node, and an all-reduce of each shard's gradients between nodes
    zero1, zero2  all-reduce of buckets of gradients; after the update, all-gather of the weights.
                  DeepSpeed reduces whole buckets on all ranks (stage_1_and_2.py, average_tensor)
    zero3         like fsdp, and the reduce-scatter with each micro-batch
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from oomdoctor.analysis.memory.closed_form import (
    constant_bytes,
    packed_bytes,
    shards_of,
    trained_bytes_of,
)
from oomdoctor.records.configuration.adapters import compute_dtype
from oomdoctor.records.configuration.config import TrainConfig, is_fsdp, is_zero
from oomdoctor.records.facts.dtypes import dtype_bytes
from oomdoctor.records.job.model import ParameterCounts

Reach = Literal["ring", "within", "between", "host"]
When = Literal["micro_step", "last_micro_step", "optimizer_step"]
# What the engine computes meanwhile: nothing, the backward pass, or both passes.
HiddenBy = Literal["nothing", "backward", "micro_step"]


@dataclass(frozen=True, slots=True)
class Transfer:
    """What one rank sends, over which link, how often, and what can hide it."""

    name: str
    size_bytes: float
    when: When
    hidden_by: HiddenBy
    reach: Reach = "ring"


def traffic_of(
    config: TrainConfig, counts: ParameterCounts, trainable: int | None
) -> tuple[Transfer, ...]:
    """What each GPU of a training sends; nothing on one GPU.

    `trainable` is the number of parameters with gradients; for full training all, if unknown.
    """
    if config.sharding == "none":
        return ()
    trained = counts.total if trainable is None else trainable
    if config.sharding == "ddp":
        size = 2 * _share(config.world_size) * trained * reduced_bytes(config)
        return (Transfer("all-reduce of gradients", size, _reduction(config), "backward"),)
    gathered, reduced = gathered_bytes(config, counts, trained), trained * reduced_bytes(config)
    if is_fsdp(config) or config.sharding == "zero3":
        transfers = _fsdp(config, gathered, reduced)
    else:
        transfers = _zero12(config, trained, reduced)
    if config.offload == "none":
        return transfers
    return (*transfers, *_to_host(config, gathered, reduced, trained))


def gathered_bytes(config: TrainConfig, counts: ParameterCounts, trained: int) -> int:
    """Bytes of the weights that ranks gather from each other, in the type of the computation."""
    each = dtype_bytes(compute_dtype(config))
    adapters = 0 if config.method == "full" else trained * each
    if config.quantization == "none":
        return counts.total * each + adapters
    others = (counts.total - counts.linear) * each + adapters
    if config.quantization != "nf4" or config.quant_storage == "uint8":
        return others  # each rank holds all of the packed weights
    packed = packed_bytes(counts.linear, "nf4")
    return others + packed + constant_bytes(counts.linear, double_quant=config.double_quant)


def at_most_packed(parameters: int) -> ParameterCounts:
    """Counts for a model of which only the total is known: all of it may be quantized."""
    return ParameterCounts(parameters, parameters, embedding=0, rest=0, buffers_bytes=0)


def reduced_bytes(config: TrainConfig) -> int:
    """Bytes of one element of a gradient when it is reduced."""
    if config.reduce_dtype != "default":
        return dtype_bytes(config.reduce_dtype)
    if config.sharding == "ddp":
        return trained_bytes_of(config)
    return dtype_bytes(compute_dtype(config))


def _fsdp(config: TrainConfig, gathered: int, reduced: int) -> tuple[Transfer, ...]:
    hybrid = config.sharding == "hybrid"
    ranks = config.gpus_per_node if hybrid else config.world_size
    reach: Reach = "within" if hybrid else "ring"
    share, when = _share(ranks), _reduction(config)
    weights = _passes(config) * share * gathered
    transfers = (
        Transfer("all-gather of weights", weights, "micro_step", "micro_step", reach),
        Transfer("reduce-scatter of gradients", share * reduced, when, "micro_step", reach),
    )
    if not hybrid:
        return transfers
    size = 2 * _share(config.world_size // ranks) * reduced / ranks
    return (*transfers, Transfer("all-reduce between nodes", size, when, "micro_step", "between"))


def _zero12(config: TrainConfig, trained: int, reduced: int) -> tuple[Transfer, ...]:
    # overlap_comm is off by default for both stages, so nothing hides the reduction. Stage 2 keeps
    # only its partition of the gradients, so each micro-batch is reduced.
    share = _share(config.world_size)
    when: When = "micro_step" if config.sharding == "zero2" else "last_micro_step"
    weights = share * (trained * dtype_bytes(compute_dtype(config)))
    return (
        Transfer("all-reduce of gradients", 2 * share * reduced, when, "nothing"),
        Transfer("all-gather of updated weights", weights, "optimizer_step", "nothing"),
    )


def _to_host(
    config: TrainConfig, gathered: int, reduced: int, trained: int
) -> tuple[Transfer, ...]:
    """Copies between a GPU and its host, each of this rank's shard."""
    shards, transfers = shards_of(config), []
    if config.offload == "parameters":
        # Each gather starts with the shard in host memory.
        size = _passes(config) * gathered / shards
        transfers.append(Transfer("weights to the GPU", size, "micro_step", "micro_step", "host"))
    if config.offload in ("optimizer", "parameters"):
        # What is not reduced with each micro-batch is copied once.
        keeps = is_zero(config) and config.sharding != "zero1"
        when: When = "micro_step" if keeps else "last_micro_step"
        size = reduced / shards
        transfers.append(Transfer("gradients to the host", size, when, "micro_step", "host"))
    if config.offload == "optimizer":
        size = trained * dtype_bytes(compute_dtype(config)) / shards
        updated = Transfer("updated weights to the GPU", size, "optimizer_step", "nothing", "host")
        transfers.append(updated)
    return tuple(transfers)


def _passes(config: TrainConfig) -> int:
    """How often a micro-step gathers the weights."""
    return 1 if config.sharding == "fsdp_grad_op" else 2


def host_updates(config: TrainConfig, trained: int) -> float:
    """The parameters that the host of one node updates in an optimizer step."""
    if config.offload not in ("optimizer", "parameters"):
        return 0.0
    return trained * min(config.gpus_per_node, config.world_size) / shards_of(config)


def _share(ranks: int) -> float:
    return (ranks - 1) / ranks


def _reduction(config: TrainConfig) -> When:
    each_time = config.sync_each_batch or config.sharding == "zero3"
    return "micro_step" if each_time else "last_micro_step"
