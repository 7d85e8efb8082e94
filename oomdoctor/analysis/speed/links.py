"""How fast GPUs of a training exchange data, from the facts of a card and a named interconnect.

The rates are bus bandwidths, as nccl-tests defines them: a ring moves its bytes at this rate, which
is of one direction, in bytes/s. All figures were measured by others, on few machines; none was
measured with oomdoctor.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Literal

from oomdoctor.package_data import data_of
from oomdoctor.records.job.machine import GpuFacts

Reach = Literal["node", "network"]
AUTO_LINK = "auto"
# Cards that are joined in pairs by a bridge, not all by a switch, have these words in their names.
BRIDGED = ("PCIe", "PCIE", "NVL", "GeForce", "TITAN", "Quadro", "RTX", "A30", "A40")
# The same share for a bridge. 2 A100: 208 of 300 GB/s (NVIDIA/nccl-tests#178); 2 H100 PCIe reached
# only 116 of 300 (NVIDIA/nccl#1161).
BRIDGE_SHARE = 0.69
# The network between nodes if none is named.
USUAL_NETWORK = "infiniband-hdr"
# Bytes/s of one direction of PCIe x16, by generation, and what copies from pinned host memory
# reach of it: 12-13, 24-26 and 50-55 GB/s, less on machines with several cards.
PCIE_X16 = {3: 15.75e9, 4: 31.5e9, 5: 63e9, 6: 121e9}
PINNED_COPIES = {3: 12e9, 4: 22e9, 5: 45e9, 6: 90e9}
# Parameters that Adam on the hosts of one node updates in a second, at least. A full fine-tuning of
# Qwen2.5-3B on 2 A100 with ZeRO-Offload took 2.4 s a step in all, on 128 cores (github
# deepspeedai/DeepSpeed#7474), so its update of 3.1e9 parameters took less.
HOST_ADAM_PER_S = 1.3e9
_LANES = 16
# The generation of PCIe by the major compute capability, for cards whose facts do not give it.
_GENERATIONS = {"6": 3, "7": 3, "8": 4, "9": 5, "10": 5, "12": 5}


@dataclass(frozen=True, slots=True)
class Interconnect:
    """One kind of link.

    A "node" link joins the GPUs of one machine; its rate is that of the card, so it is None here.
    A "network" joins machines; `adapters` says whether each GPU or each node has one. `share` is
    achieved / rate.
    """

    name: str
    reach: Reach
    share: float
    source: str
    bytes_per_s: float | None = None
    adapters: Literal["gpu", "node"] | None = None


@cache
def interconnects() -> dict[str, Interconnect]:
    """The rows of `data/speed.toml` by name."""
    return {row["name"]: Interconnect(**row) for row in data_of("speed.toml")["interconnects"]}


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
    joins_nodes = named is not None and named.reach == "network"
    network = named if named is not None and joins_nodes else interconnects()[USUAL_NETWORK]
    assert network.bytes_per_s is not None  # a network has a rate
    adapters = together if network.adapters == "gpu" else 1
    whole = network.bytes_per_s * network.share * adapters
    between = Link(whole / together, network.name)
    ring = within if within.bytes_per_s < whole else Link(whole, network.name)
    return Links(within, between, ring, host)


def host_link(gpu: GpuFacts) -> Link | None:
    """Copies between the card and pinned host memory; None if its slot is not known."""
    return _of_slot(gpu, PINNED_COPIES)


def _within(gpu: GpuFacts, together: int, named: Interconnect | None) -> Link | None:
    nvlink, pcie = (interconnects()[name] for name in ("nvlink", "pcie"))
    bridged = any(word in gpu.name for word in BRIDGED)
    reaches_all = together <= 2 or not bridged
    wanted = named is nvlink or (named is not pcie and reaches_all)
    if wanted and gpu.nvlink_bytes_per_s is not None:
        share = BRIDGE_SHARE if bridged else nvlink.share
        return Link(gpu.nvlink_bytes_per_s * share, nvlink.name)
    return _of_slot(gpu, PCIE_X16, pcie.share)


def _of_slot(gpu: GpuFacts, rates: Mapping[int, float], share: float = 1.0) -> Link | None:
    """What a card reaches of the rate of its slot, by generation; None if that is not known."""
    major = (gpu.compute_capability or "").partition(".")[0]
    generation = gpu.pcie_generation or _GENERATIONS.get(major)
    if generation is None:
        return None
    rate = rates[generation] * (gpu.pcie_lanes or _LANES) / _LANES
    return Link(rate * share, f"PCIe {generation}.0")
