"""How fast GPUs of a training exchange data, from the facts of a card and a named interconnect.

The rates are of one direction, in bytes/s, for large messages; `collectives` turns them into times.
All figures were measured by others, on few machines; none was measured with oomdoctor.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from math import ceil
from typing import Any, Literal

from oomdoctor.package_data import data_of
from oomdoctor.records.job.machine import GpuFacts

Reach = Literal["node", "network"]
AUTO_LINK = "auto"
_DATA = data_of("speed.toml")
_LINKS: dict[str, Any] = _DATA["links"]
HOST_ADAM_PER_S: float = _LINKS["host_adam_per_s"]
SLOWEST_COPIES_PER_S: float = min(_LINKS["pinned_copies"].values())
"""Between the host and a card whose slot is not known."""
_LANES = 16


@dataclass(frozen=True, slots=True)
class Interconnect:
    """One kind of link.

    A "node" link joins the GPUs of one machine; its rate is that of the card, so it is None here.
    A "network" joins machines; `adapters` says whether each GPU or each node has one, and `hop_s`
    is what a doubling of the nodes adds to a collective. `share` is achieved / rate; `share_of` has
    it by major compute capability where it differs, `in_switch` that of all-reduces in NVSwitches.
    """

    name: str
    reach: Reach
    share: float
    source: str
    bytes_per_s: float | None = None
    adapters: Literal["gpu", "node"] | None = None
    hop_s: float = 0.0
    share_of: Mapping[str, float] = field(default_factory=dict)
    in_switch: Mapping[str, float] = field(default_factory=dict)


@cache
def interconnects() -> dict[str, Interconnect]:
    """The rows of `data/speed.toml` by name."""
    return {row["name"]: Interconnect(**row) for row in _DATA["interconnects"]}


@dataclass(frozen=True, slots=True)
class Link:
    """What a rank reaches in bytes/s, and the name of the link."""

    bytes_per_s: float
    name: str


@dataclass(frozen=True, slots=True)
class Links:
    """The links of a training on `nodes` with `per_node` GPUs each.

    `within` is the bus bandwidth of a ring in a node, and `in_switch_per_s` what an all-reduce
    moves in the node's switches, None if they do not add up. `network` is what all adapters of a
    node reach together, None on one node.
    """

    within: Link
    host: Link
    per_node: int
    nodes: int = 1
    in_switch_per_s: float | None = None
    network: Link | None = None
    hop_s: float = 0.0


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
    links = Links(within, host, together, in_switch_per_s=_in_switch(gpu, within))
    if world_size <= gpus_per_node:
        return links
    network = interconnects()[_LINKS["usual_network"]]
    if named is not None and named.reach == "network":
        network = named
    assert network.bytes_per_s is not None  # a network has a rate
    adapters = together if network.adapters == "gpu" else 1
    return replace(
        links,
        nodes=ceil(world_size / together),
        network=Link(network.bytes_per_s * network.share * adapters, network.name),
        hop_s=network.hop_s,
    )


def host_link(gpu: GpuFacts) -> Link | None:
    """Copies between the card and pinned host memory; None if its slot is not known."""
    return _of_slot(gpu, "pinned_copies")


def _within(gpu: GpuFacts, together: int, named: Interconnect | None) -> Link | None:
    nvlink, pcie = (interconnects()[name] for name in ("nvlink", "pcie"))
    bridged = any(word in gpu.name for word in _LINKS["bridged"])
    reaches_all = together <= 2 or not bridged
    wanted = named is nvlink or (named is not pcie and reaches_all)
    if wanted and gpu.nvlink_bytes_per_s is not None:
        share = nvlink.share_of.get(_major(gpu), nvlink.share)
        share = _LINKS["bridge_share"] if bridged else share
        return Link(gpu.nvlink_bytes_per_s * share, nvlink.name)
    return _of_slot(gpu, "pcie_x16", pcie.share)


def _in_switch(gpu: GpuFacts, within: Link) -> float | None:
    nvlink = interconnects()["nvlink"]
    share = nvlink.in_switch.get(_major(gpu))
    if share is None or within.name != nvlink.name or gpu.nvlink_bytes_per_s is None:
        return None
    return gpu.nvlink_bytes_per_s * share


def _major(gpu: GpuFacts) -> str:
    return (gpu.compute_capability or "").partition(".")[0]


def _of_slot(gpu: GpuFacts, rates: str, share: float = 1.0) -> Link | None:
    """What a card reaches of the rate of its slot, by generation; None if that is not known."""
    generation = gpu.pcie_generation or _LINKS["generations"].get(_major(gpu))
    if generation is None:
        return None
    rate = _LINKS[rates][str(generation)] * (gpu.pcie_lanes or _LANES) / _LANES
    return Link(rate * share, f"PCIe {generation}.0")
