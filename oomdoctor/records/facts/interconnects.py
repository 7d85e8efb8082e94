"""What links GPUs: how fast, and what share of it collectives reach.

Rates are of one direction, in bytes/s. The share is the "bus bandwidth" of large all-reduces in
nccl-tests over the rate of the link. It was measured by others, on few machines; nothing here was
measured with oomdoctor.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Reach = Literal["node", "network"]
AUTO_LINK = "auto"


@dataclass(frozen=True, slots=True)
class Interconnect:
    """One kind of link.

    A "node" link joins the GPUs of one machine; its rate is that of the card, so it is None here.
    A "network" joins machines; `adapters` says whether each GPU or each node has one. `share` is
    achieved / rate.
    """

    name: str
    reach: Reach
    bytes_per_s: float | None
    share: float
    adapters: Literal["gpu", "node"] | None
    source: str


# Adapters: one a GPU in NVIDIA's DGX and HGX machines; clouds and workstations have one a node.
INTERCONNECTS = (
    Interconnect(
        "nvlink",
        "node",
        None,
        0.78,
        None,
        "8 A100: 235 of 300 GB/s (github stas00/ml-engineering network/README.md @0030e63), 232.5 "
        "(github NVIDIA/nccl#1048); 8 H100 with rings: 370 of 450 (NVIDIA/nccl-tests#212)",
    ),
    Interconnect(
        "pcie",
        "node",
        None,
        0.45,
        None,
        "8 RTX 5090: 28 of 63 GB/s, 4 of them 35 (NVIDIA/nccl#1639); 3 A100 without a bridge: 20 "
        "of 31.5 (NVIDIA/nccl-tests#178)",
    ),
    Interconnect(
        "infiniband-hdr",
        "network",
        25e9,
        0.86,
        "gpu",
        "2 nodes with 4 adapters: 86 of 100 GB/s, with one adapter 24 of 25 (NVIDIA/nccl#1048)",
    ),
    Interconnect(
        "infiniband-ndr",
        "network",
        50e9,
        0.92,
        "gpu",
        "46-48 GB/s for each adapter are expected (NVIDIA/nccl-tests#290)",
    ),
    Interconnect(
        "ethernet-10g",
        "network",
        1.25e9,
        0.60,
        "node",
        "TCP: at most 60% of a 32 Gb/s network (NVIDIA/nccl#209)",
    ),
    Interconnect(
        "ethernet-25g",
        "network",
        3.125e9,
        0.60,
        "node",
        "TCP: at most 60% of a 32 Gb/s network (NVIDIA/nccl#209)",
    ),
    Interconnect(
        "ethernet-100g",
        "network",
        12.5e9,
        0.42,
        "node",
        "TCP: 5.2 of 12.5 GB/s (NVIDIA/nccl#450)",
    ),
)

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

NAMES = (AUTO_LINK, *(link.name for link in INTERCONNECTS))
_BY_NAME = {link.name: link for link in INTERCONNECTS}


def interconnect_named(name: str) -> Interconnect | None:
    """The row of a name; None for "auto" and unknown names."""
    return _BY_NAME.get(name)
