"""The time of one collective of NCCL, from its kind, its size and the links of a training.

    t = L + x + sqrt(L x)

`x` is the time at the full rate, `L` that of an empty message. The last term is the pipeline that
fills and drains. `data/speed.toml` has the constants and where they are from.
"""

from __future__ import annotations

from math import log2, sqrt
from typing import Any, Literal

from oomdoctor.analysis.speed.links import Links
from oomdoctor.package_data import data_of

Collective = Literal[
    "all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast", "reduce", "send"
]
# Which of the GPUs exchange data: all, those of a node, or one of each node, as all of them do at
# the same time.
Among = Literal["all", "within", "between"]
_CONSTANTS: dict[str, Any] = data_of("speed.toml")["collectives"]
_IN_RING = 4  # up to so many GPUs NCCL prefers a ring to the switch


def collective_s(
    kind: Collective,
    size_bytes: float,
    links: Links,
    among: Among = "all",
    ranks: int | None = None,
) -> float:
    """Seconds of one collective; 0 on one GPU.

    `size_bytes` is the whole tensor: what a rank has after a gather, or before a scatter or an
    exchange. `ranks` are those that take part if not all do; they are neighbors.
    """
    per_node, nodes = links.per_node, links.nodes
    if ranks is not None:
        per_node, nodes = min(per_node, ranks), -(-ranks // per_node)
    if among == "within":
        nodes = 1
    elif among == "between":
        per_node = 1
    if per_node * nodes == 1 or not size_bytes:
        return 0.0
    least = _latency_s(kind, per_node, nodes, links)
    full = size_bytes / min(_rates(kind, per_node, nodes, links))
    return least + full + sqrt(least * full)


def sent_share(kind: Collective, ranks: int) -> float:
    """Bytes that a rank sends of each byte of the whole tensor.

    A ring all-gather or reduce-scatter sends all but a rank's own part, an all-reduce twice that
    (Patarasuk and Yuan, 2009, doi:10.1016/j.jpdc.2008.09.002).
    """
    if kind in ("broadcast", "reduce", "send"):
        return 1.0
    return (2 if kind == "all_reduce" else 1) * (ranks - 1) / ranks


def _latency_s(kind: Collective, per_node: int, nodes: int, links: Links) -> float:
    passes = {"all_reduce": 2, "send": 0}.get(kind, 1)
    in_node = _CONSTANTS["base_s"] + _CONSTANTS["step_s"] * passes * (per_node - 1)
    return float(in_node + links.hop_s * log2(nodes))


def _rates(kind: Collective, per_node: int, nodes: int, links: Links) -> list[float]:
    """Bytes of the whole tensor in a second, in a node and between nodes."""
    sent, rates = sent_share(kind, per_node * nodes), []
    if per_node > 1:
        ring = links.within.bytes_per_s / sent
        in_switch = kind == "all_reduce" and per_node > _IN_RING
        rates.append(max(ring, links.in_switch_per_s or 0.0) if in_switch else ring)
    if links.network is not None and nodes > 1:
        # The GPUs that stay out of it send the same, so the adapters are shared.
        shared = links.network.bytes_per_s * per_node / links.per_node
        if kind == "all_reduce":
            rates.append(shared * (_CONSTANTS["many_nodes"] if nodes > 2 else 1.0))
        elif kind == "all_to_all":  # each GPU sends for itself
            rates.append(shared / per_node * nodes / (nodes - 1))
        else:
            rates.append(shared * _CONSTANTS["across_nodes"] / sent)
    return rates
