"""What the GPUs of a training exchange, by engine. Nothing here is a time.

    ddp           all-reduce of buckets of gradients, with the last micro-batch of a step
    fsdp          each micro-batch: all-gather of the weights in both passes; reduce-scatter of the
                  gradients with the last one. Each layer is a unit, and what is outside another
    fsdp_grad_op  one all-gather; the weights stay until the backward pass
    hybrid        fsdp within a node, and an all-reduce of each shard's gradients between nodes
    zero1, zero2  all-reduce of buckets of gradients; after the update, all-gather of the weights.
                  DeepSpeed reduces whole buckets on all ranks (stage_1_and_2.py, average_tensor)
    zero3         like fsdp, and the reduce-scatter of buckets with each micro-batch

No computation is left to hide the last reduction: it has the gradients of the first weights, which
in most models are the embedding. Nor does any hide the first gather.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from math import ceil
from typing import Literal

from oomdoctor.analysis.memory.closed_form import (
    constant_bytes,
    packed_bytes,
    shards_of,
    trained_bytes_of,
)
from oomdoctor.analysis.memory.zero.setting import REDUCE_BUCKET, Parameter
from oomdoctor.analysis.speed.collectives import Among, Collective
from oomdoctor.records.configuration.adapters import compute_dtype
from oomdoctor.records.configuration.config import TrainConfig, is_fsdp, is_zero
from oomdoctor.records.facts.dtypes import dtype_bytes
from oomdoctor.records.job.model import ParameterCounts

When = Literal["micro_step", "last_micro_step", "optimizer_step"]
# What the engine computes meanwhile: nothing, the backward pass, or both passes.
HiddenBy = Literal["nothing", "backward", "micro_step"]
DDP_BUCKET_BYTES = 25 << 20
"""`bucket_cap_mb` of torch's DistributedDataParallel."""


@dataclass(frozen=True, slots=True)
class Transfer:
    """What one rank exchanges, in how many calls, with whom, when, and what can hide it.

    `size_bytes` of a collective are those of the whole tensors, see `collective_s`, and of a
    "copy" those between a GPU and its host. `ranks` is None if all take part.
    """

    name: str
    kind: Collective | Literal["copy"]
    size_bytes: float
    when: When
    hidden_by: HiddenBy
    calls: int = 1
    among: Among = "all"
    ranks: int | None = None


@dataclass(frozen=True, slots=True)
class SentModel:
    """A model as its engine sends it: its parameters in the order of its modules."""

    counts: ParameterCounts
    layers: int
    parameters: tuple[Parameter, ...]

    @property
    def trained(self) -> tuple[int, ...]:
        """The elements of each parameter that has a gradient."""
        return tuple(each.elements for each in self.parameters if each.trained)


def traffic_of(config: TrainConfig, model: SentModel) -> tuple[Transfer, ...]:
    """What each GPU of a training exchanges; nothing on one GPU."""
    if config.sharding == "none":
        return ()
    trained = sum(model.trained)
    if config.sharding == "ddp":
        return tuple(_of_buckets(config, model, "all_reduce", "backward", _reduction(config)))
    gathered, reduced = (
        gathered_bytes(config, model.counts, trained),
        trained * reduced_bytes(config),
    )
    if is_fsdp(config) or config.sharding == "zero3":
        transfers = _fsdp(config, model, gathered)
    else:
        transfers = _zero12(config, model)
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


def buckets(elements: Iterable[int], least: int) -> Iterator[int]:
    """The elements of each bucket; a bucket is reduced as soon as it has `least`.

    This is DDP's rule (torch/csrc/distributed/c10d/reducer.cpp, from the second step on).
    DeepSpeed closes a bucket before the parameter that would exceed it.
    """
    filled = 0
    for each in elements:
        filled += each
        if filled >= least:
            yield filled
            filled = 0
    if filled:
        yield filled


def _of_buckets(
    config: TrainConfig, model: SentModel, kind: Collective, hidden_by: HiddenBy, when: When
) -> Iterator[Transfer]:
    """The reduction of all gradients: what computation hides, and the last bucket."""
    each = reduced_bytes(config)
    default = DDP_BUCKET_BYTES // each if config.sharding == "ddp" else REDUCE_BUCKET
    # Gradients are ready in the reverse order of the forward pass.
    filled = list(buckets(reversed(model.trained), config.bucket_elements or default))
    name = f"{kind.replace('_', '-')} of gradients"
    if filled[:-1]:
        hidden = sum(filled[:-1]) * each
        yield Transfer(name, kind, hidden, when, hidden_by, calls=len(filled) - 1)
    if filled:
        yield Transfer(f"last {name}", kind, filled[-1] * each, when, "nothing")


def _fsdp(config: TrainConfig, model: SentModel, gathered: int) -> tuple[Transfer, ...]:
    hybrid = config.sharding == "hybrid"
    among: Among = "within" if hybrid else "all"
    units, passes, when = model.layers + 1, _passes(config), _reduction(config)
    first = model.parameters[0].elements * dtype_bytes(compute_dtype(config))
    # The unit outside of the layers has the embedding, so it may be larger than theirs.
    begin = min(max(gathered / units, first), gathered)
    name = "all-gather of weights"
    rest, calls = passes * gathered - begin, passes * units - 1
    transfers = [
        Transfer(f"first {name}", "all_gather", begin, "micro_step", "nothing", among=among),
        Transfer(name, "all_gather", rest, "micro_step", "micro_step", calls, among),
    ]
    if config.sharding == "zero3":
        return (*transfers, *_of_buckets(config, model, "reduce_scatter", "micro_step", when))
    each = reduced_bytes(config)
    reduced, last = sum(model.trained) * each, next(iter(model.trained), 0) * each
    end, name = max(reduced / units, last), "reduce-scatter of gradients"
    transfers += [
        Transfer(name, "reduce_scatter", reduced - end, when, "micro_step", units - 1, among),
        Transfer(f"last {name}", "reduce_scatter", end, when, "nothing", among=among),
    ]
    if hybrid:
        name, shard = "all-reduce between nodes", 1 / config.gpus_per_node
        hidden, exposed = (reduced - end) * shard, end * shard
        transfers += [
            Transfer(name, "all_reduce", hidden, when, "micro_step", units - 1, "between"),
            Transfer(f"last {name}", "all_reduce", exposed, when, "nothing", among="between"),
        ]
    return tuple(transfers)


def _zero12(config: TrainConfig, model: SentModel) -> tuple[Transfer, ...]:
    # overlap_comm is off by default for both stages, so nothing hides the reduction. Stage 2 keeps
    # only its partition of the gradients, so each micro-batch is reduced.
    when: When = "micro_step" if config.sharding == "zero2" else "last_micro_step"
    trained = sum(model.trained)
    calls = max(1, ceil(trained / (config.bucket_elements or REDUCE_BUCKET)))
    weights = trained * dtype_bytes(compute_dtype(config))
    name = "all-gather of updated weights"
    return (
        *_of_buckets(config, model, "all_reduce", "nothing", when),
        Transfer(name, "all_gather", weights, "optimizer_step", "nothing", calls),
    )


def _to_host(
    config: TrainConfig, gathered: int, reduced: int, trained: int
) -> tuple[Transfer, ...]:
    """Copies between a GPU and its host, each of this rank's shard."""
    shards, transfers = shards_of(config), []
    if config.offload == "parameters":
        # Each gather starts with the shard in host memory.
        size = _passes(config) * gathered / shards
        transfers.append(Transfer("weights to the GPU", "copy", size, "micro_step", "micro_step"))
    if config.offload in ("optimizer", "parameters"):
        # What is not reduced with each micro-batch is copied once.
        keeps = is_zero(config) and config.sharding != "zero1"
        when: When = "micro_step" if keeps else "last_micro_step"
        size = reduced / shards
        transfers.append(Transfer("gradients to the host", "copy", size, when, "micro_step"))
    if config.offload == "optimizer":
        size = trained * dtype_bytes(compute_dtype(config)) / shards
        updated = Transfer("updated weights to the GPU", "copy", size, "optimizer_step", "nothing")
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


def _reduction(config: TrainConfig) -> When:
    each_time = config.sync_each_batch or config.sharding == "zero3"
    return "micro_step" if each_time else "last_micro_step"
