"""How fast GPUs of a training exchange data, from the facts of a card and a named interconnect.

The rates are bus bandwidths, as nccl-tests defines them: a ring moves its bytes at this rate, which
is of one direction, in bytes/s. All figures were measured by others, on few machines; none was
measured with oomdoctor.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
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
    return {row["name"]: Interconnect(**row) for row in _DATA["interconnects"]}


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
    network = interconnects()[_LINKS["usual_network"]]
    if named is not None and named.reach == "network":
        network = named
    assert network.bytes_per_s is not None  # a network has a rate
    adapters = together if network.adapters == "gpu" else 1
    whole = network.bytes_per_s * network.share * adapters
    between = Link(whole / together, network.name)
    ring = within if within.bytes_per_s < whole else Link(whole, network.name)
    return Links(within, between, ring, host)


def host_link(gpu: GpuFacts) -> Link | None:
    """Copies between the card and pinned host memory; None if its slot is not known."""
    return _of_slot(gpu, "pinned_copies")


def _within(gpu: GpuFacts, together: int, named: Interconnect | None) -> Link | None:
    nvlink, pcie = (interconnects()[name] for name in ("nvlink", "pcie"))
    bridged = any(word in gpu.name for word in _LINKS["bridged"])
    reaches_all = together <= 2 or not bridged
    wanted = named is nvlink or (named is not pcie and reaches_all)
    if wanted and gpu.nvlink_bytes_per_s is not None:
        share = _LINKS["bridge_share"] if bridged else nvlink.share
        return Link(gpu.nvlink_bytes_per_s * share, nvlink.name)
    return _of_slot(gpu, "pcie_x16", pcie.share)


def _of_slot(gpu: GpuFacts, rates: str, share: float = 1.0) -> Link | None:
    """What a card reaches of the rate of its slot, by generation; None if that is not known."""
    major = (gpu.compute_capability or "").partition(".")[0]
    generation = gpu.pcie_generation or _LINKS["generations"].get(major)
    if generation is None:
        return None
    rate = _LINKS[rates][str(generation)] * (gpu.pcie_lanes or _LANES) / _LANES
    return Link(rate * share, f"PCIe {generation}.0")
