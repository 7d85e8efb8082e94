"""How fast GPUs of a training exchange data, from the facts of a card and a named interconnect.

The rates are bus bandwidths, as nccl-tests defines them: a ring moves its bytes at this rate.
"""

from __future__ import annotations

from dataclasses import dataclass

from oomdoctor.records.facts.interconnects import (
    BRIDGE_SHARE,
    BRIDGED,
    PCIE_X16,
    PINNED_COPIES,
    USUAL_NETWORK,
    Interconnect,
    interconnects,
)
from oomdoctor.records.job.machine import GpuFacts

_LANES = 16
# The generation of PCIe by the major compute capability, for cards whose facts do not give it.
_GENERATIONS = {"6": 3, "7": 3, "8": 4, "9": 5, "10": 5, "12": 5}


@dataclass(frozen=True, slots=True)
class Link:
    """What a rank reaches in bytes/s, and the name of the link."""

    bytes_per_s: float
    name: str


@dataclass(frozen=True, slots=True)
class Links:
    """The links of a training: in a node, across nodes, and to the host.

    `between` is None on one node. It is what one GPU gets if all GPUs of a node send at once;
    a ring over all GPUs moves its bytes at `ring`.
    """

    within: Link
    between: Link | None
    ring: Link
    host: Link


def links_of(
    gpu: GpuFacts, world_size: int, gpus_per_node: int, interconnect: str = "auto"
) -> Links | None:
    """The links of `world_size` GPUs; None if the card's own link is not known.

    `interconnect` is a name of `INTERCONNECTS`, or "auto": NVLink if the card has it, and between
    nodes the usual network.
    """
    named = interconnects().get(interconnect)
    together = min(world_size, gpus_per_node)
    within, host = _within(gpu, together, named), host_link(gpu)
    if within is None or host is None:
        return None
    if world_size <= gpus_per_node:
        return Links(within, None, within, host)
    network = (
        named if named is not None and named.reach == "network" else interconnects()[USUAL_NETWORK]
    )
    assert network.bytes_per_s is not None  # a network has a rate
    adapters = together if network.adapters == "gpu" else 1
    whole = network.bytes_per_s * network.share * adapters
    between = Link(whole / together, network.name)
    ring = within if within.bytes_per_s < whole else Link(whole, network.name)
    return Links(within, between, ring, host)


def host_link(gpu: GpuFacts) -> Link | None:
    """Copies between the card and pinned host memory; None if its slot is not known."""
    generation = _generation(gpu)
    if generation is None:
        return None
    rate = PINNED_COPIES[generation] * (gpu.pcie_lanes or _LANES) / _LANES
    return Link(rate, f"PCIe {generation}.0")


def _within(gpu: GpuFacts, together: int, named: Interconnect | None) -> Link | None:
    nvlink, pcie = (interconnects()[name] for name in ("nvlink", "pcie"))
    bridged = any(word in gpu.name for word in BRIDGED)
    reaches_all = together <= 2 or not bridged
    wanted = named is nvlink or (named is not pcie and reaches_all)
    if wanted and gpu.nvlink_bytes_per_s is not None:
        share = BRIDGE_SHARE if bridged else nvlink.share
        return Link(gpu.nvlink_bytes_per_s * share, nvlink.name)
    generation = _generation(gpu)
    if generation is None:
        return None
    rate = PCIE_X16[generation] * (gpu.pcie_lanes or _LANES) / _LANES
    return Link(rate * pcie.share, f"PCIe {generation}.0")


def _generation(gpu: GpuFacts) -> int | None:
    if gpu.pcie_generation is not None:
        return gpu.pcie_generation
    return _GENERATIONS.get((gpu.compute_capability or "").partition(".")[0])
