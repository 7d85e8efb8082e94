"""The time that GPUs of a training spend waiting for each other, and for the host.

    exposed = max(0, communication - what the engine computes meanwhile)

What is sent follows from the engines' algorithms, and the times of collectives from published
benchmarks (`data/speed.toml`). No constant comes from a training on several GPUs. Left out are what
collectives take from the computation beside them, and ranks that wait for a slower one.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from oomdoctor.analysis.memory.closed_form import shards_of
from oomdoctor.analysis.speed.collectives import collective_s
from oomdoctor.analysis.speed.links import AUTO_LINK, HOST_ADAM_PER_S, Links, links_of
from oomdoctor.analysis.speed.traffic import SentModel, Transfer, host_updates, traffic_of
from oomdoctor.records.configuration.config import TrainConfig
from oomdoctor.records.job.machine import GpuFacts
from oomdoctor.records.job.measurement import Timing

# The backward pass computes two gradients for each product of the forward pass.
_BACKWARD = 2 / 3
# How far the estimate may be off: shares of the time that is exposed, and of that which is hidden.
# A judgment: published rates of equal links differ by up to half, and hiding is never complete.
_EXPOSED_SPREAD = 0.5
_HIDDEN_SPREAD = 0.2


@dataclass(frozen=True, slots=True)
class Communication:
    """Seconds of one rank. `exposed` adds to a step, `hidden` runs beside its computation.

    `micro_step` is with each micro-batch, on average; `update` is once an optimizer step.
    """

    micro_step_exposed_s: float
    micro_step_hidden_s: float
    update_exposed_s: float


def has_estimate(config: TrainConfig) -> bool:
    """Whether the time of a rung can be estimated at all.

    How much of the copies of activations is hidden is not known. On one GPU, nor is it for the
    states that stay in host memory.
    """
    if config.fp8 != "none":  # nobody compared an estimate of its casts with a GPU
        return False
    if config.activation_checkpointing == "offload" or config.offload == "activations":
        return False
    return config.offload == "none" or config.sharding != "none"


def communication(
    config: TrainConfig,
    model: SentModel,
    gpu: GpuFacts,
    micro_step_s: float,
    interconnect: str = AUTO_LINK,
) -> Communication | None:
    """The communication of a training whose micro-step computes for `micro_step_s`.

    None if the card's links are not known. Zero on one GPU.
    """
    transfers = traffic_of(config, model)
    if not transfers:
        return Communication(0.0, 0.0, 0.0)
    links = links_of(gpu, config.world_size, config.gpus_per_node, interconnect)
    if links is None:
        return None
    steps = config.accumulation_steps()
    usual = [t for t in transfers if t.when == "micro_step"]
    last = [t for t in transfers if t.when in ("micro_step", "last_micro_step")]
    exposed = [exposed_seconds(group, links, micro_step_s) for group in (usual, last)]
    whole = [_seconds(group, links) for group in (usual, last)]
    mean, mean_whole = (((steps - 1) * step_s + end) / steps for step_s, end in (exposed, whole))
    update = _seconds((t for t in transfers if t.when == "optimizer_step"), links)
    return Communication(
        micro_step_exposed_s=mean,
        micro_step_hidden_s=mean_whole - mean,
        update_exposed_s=update + host_update_s(config, sum(model.trained)),
    )


def host_update_s(config: TrainConfig, trained: int) -> float:
    """Seconds in which the host updates the weights of an optimizer step; 0 if the GPU does."""
    return host_updates(config, trained) / HOST_ADAM_PER_S


def update_share(config: TrainConfig, *, updates_all: bool) -> float:
    """The share of a recorded update that the GPU of a rank does; see `with_communication`."""
    if config.sharding == "none":
        return 1.0
    if config.offload in ("optimizer", "parameters"):
        return 0.0
    return 1 / shards_of(config) if updates_all else 1.0


def exposed_seconds(transfers: Sequence[Transfer], links: Links, micro_step_s: float) -> float:
    """Seconds that a micro-step waits for its transfers.

    Transfers to the host and between GPUs use different links, so they run side by side.
    """
    waits = _seconds((t for t in transfers if t.hidden_by == "nothing"), links)
    for hides, seconds in (("backward", micro_step_s * _BACKWARD), ("micro_step", micro_step_s)):
        behind = _longest((t for t in transfers if t.hidden_by == hides), links)
        waits += max(0.0, behind - seconds)
    return waits


def with_communication(
    timing: Timing,
    config: TrainConfig,
    model: SentModel,
    gpu: GpuFacts,
    interconnect: str = AUTO_LINK,
    *,
    updates_all: bool = False,
) -> Timing | None:
    """The times of a rank that computes for `timing`, with what it waits for others.

    With offloaded states the host updates the weights, so its time replaces that of the GPU. None
    if the card's links are not known. The tokens per second of these times are those of all GPUs,
    because the effective batch is. With `updates_all` the optimizer step is that of one GPU that
    updates the whole model, of which each rank does its shard.
    """
    if config.sharding == "none":
        return timing
    spent = communication(config, model, gpu, timing.micro_step_s, interconnect)
    if spent is None:
        return None
    update = timing.optimizer_step_s * update_share(config, updates_all=updates_all)
    micro, waits, late = timing.micro_step_s, spent.micro_step_exposed_s, spent.update_exposed_s
    spread = _spread(micro, timing.micro_step_spread, waits, spent.micro_step_hidden_s)
    mostly_waits = waits > (micro if timing.bound_s is None else timing.bound_s)
    return replace(
        timing,
        micro_step_s=micro + waits,
        micro_step_spread=spread,
        optimizer_step_s=update + late,
        optimizer_step_spread=_spread(update, timing.optimizer_step_spread, late, 0.0),
        first_untraced_step_s=timing.first_untraced_step_s + waits + late,
        bound="communication" if mostly_waits else timing.bound,
        bound_s=waits if mostly_waits else timing.bound_s,
    )


def _spread(seconds: float, spread: float | None, exposed: float, hidden: float) -> float | None:
    """The relative uncertainty of computation and communication together."""
    if spread is None or not seconds + exposed:
        return spread
    uncertain = seconds * spread + exposed * _EXPOSED_SPREAD + hidden * _HIDDEN_SPREAD
    return uncertain / (seconds + exposed)


def _seconds(transfers: Iterable[Transfer], links: Links) -> float:
    return sum(_transfer_s(transfer, links) for transfer in transfers)


def _transfer_s(sent: Transfer, links: Links) -> float:
    if sent.kind == "copy":
        return sent.size_bytes / links.host.bytes_per_s
    each = sent.size_bytes / max(1, sent.calls)
    return sent.calls * collective_s(sent.kind, each, links, sent.among, sent.ranks)


def _longest(transfers: Iterable[Transfer], links: Links) -> float:
    """Seconds of transfers that use the host's link and those of the GPUs at the same time."""
    all_transfers = list(transfers)
    to_host = _seconds((t for t in all_transfers if t.kind == "copy"), links)
    return max(to_host, _seconds((t for t in all_transfers if t.kind != "copy"), links))
