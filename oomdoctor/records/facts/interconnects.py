"""What links GPUs: how fast, and what share of it collectives reach.

Rates are of one direction, in bytes/s. Everything was measured by others, on few machines; nothing
here was measured with oomdoctor.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Literal

from oomdoctor.package_data import data_of

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
    share: float
    source: str
    bytes_per_s: float | None = None
    adapters: Literal["gpu", "node"] | None = None


@cache
def interconnects() -> dict[str, Interconnect]:
    """The rows of `data/speed.toml` by name."""
    return {row["name"]: Interconnect(**row) for row in data_of("speed.toml")["interconnects"]}


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
