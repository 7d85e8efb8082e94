"""Times of collectives against published ones, and what they depend on."""

from __future__ import annotations

import pytest

from oomdoctor.analysis.speed.collectives import Collective, collective_s, sent_share
from oomdoctor.analysis.speed.links import Links, links_of
from oomdoctor.system import catalogue

MB, GB = 1 << 20, 1 << 30
A100 = "A100-SXM4-80GB"


def links(card: str = A100, gpus: int = 8, interconnect: str = "auto") -> Links:
    gpu = catalogue.find_gpu(card)
    assert gpu is not None
    found = links_of(gpu, gpus, 8, interconnect)
    assert found is not None
    return found


def test_one_gpu_and_an_empty_tensor_take_no_time() -> None:
    assert collective_s("all_reduce", GB, links(gpus=1)) == 0
    assert collective_s("all_reduce", GB, links(), ranks=1) == 0
    assert collective_s("all_reduce", 0, links()) == 0


@pytest.mark.parametrize(
    ("card", "size", "low_us", "high_us"),
    [
        # 50.7 us, 269 us, 64.9 ms and 34.6 us (github Azure/AI-benchmarking-guide @8fd0c6e).
        (A100, MB, 25, 60),
        (A100, 16 * MB, 190, 350),
        (A100, 8 * GB, 60_000, 70_000),
        ("NVIDIA H200", MB, 25, 60),
    ],
)
def test_an_all_reduce_takes_about_as_long_as_published(
    card: str, size: int, low_us: float, high_us: float
) -> None:
    assert low_us < collective_s("all_reduce", size, links(card)) * 1e6 < high_us


def test_large_messages_move_at_the_bus_bandwidth_of_a_ring() -> None:
    ring = 8 * GB * 2 * 7 / 8 / (300e9 * 0.78)
    assert collective_s("all_reduce", 8 * GB, links()) == pytest.approx(ring, rel=0.03)
    gather = 8 * GB * 7 / 8 / (300e9 * 0.78)
    assert collective_s("all_gather", 8 * GB, links()) == pytest.approx(gather, rel=0.03)


def test_switches_of_hopper_add_up_for_more_than_four_gpus() -> None:
    of_eight, of_four = links("H100 80GB HBM3"), links("H100 80GB HBM3", 4)
    ring = 8 * GB * 2 * 7 / 8 / of_eight.within.bytes_per_s
    assert collective_s("all_reduce", 8 * GB, of_eight) < 0.8 * ring
    assert collective_s("all_gather", 8 * GB, of_eight) > ring / 2
    of_ring = 8 * GB * 2 * 3 / 4 / of_four.within.bytes_per_s
    assert collective_s("all_reduce", 8 * GB, of_four) > of_ring
    over_pcie = links("H100 80GB HBM3", interconnect="pcie")
    assert over_pcie.in_switch_per_s is None


@pytest.mark.parametrize(
    ("nodes", "moved", "close"),
    [(2, 381e9, 0.05), (4, 197e9, 0.05)],  # stas00/ml-engineering @744d01e, B200 with 8 NDR
)
def test_an_all_reduce_across_nodes_is_no_ring(nodes: int, moved: float, close: float) -> None:
    across = links("B200", 8 * nodes, "infiniband-ndr")
    assert 16 * GB / collective_s("all_reduce", 16 * GB, across) == pytest.approx(moved, rel=close)


def test_a_gather_across_nodes_is_a_ring() -> None:
    across = links("B200", 16, "infiniband-ndr")
    bus = 16 * GB * 15 / 16 / collective_s("all_gather", 16 * GB, across)
    assert bus == pytest.approx(308e9, rel=0.05)  # 2 nodes of 8 B200 with 8 NDR


def test_more_nodes_take_longer_to_begin() -> None:
    times = [
        collective_s("all_reduce", 1, links(gpus=gpus, interconnect=name))
        for gpus, name in ((8, "auto"), (16, "auto"), (32, "auto"), (32, "ethernet-10g"))
    ]
    assert times == sorted(times) and times[1] - times[0] == pytest.approx(40e-6, rel=0.1)
    assert times[3] - times[2] == pytest.approx(2 * 40e-6, rel=0.1)


def test_shards_of_all_gpus_of_a_node_share_its_adapters() -> None:
    across = links(gpus=16)
    alone = collective_s("all_reduce", GB, across, "between")
    assert alone == pytest.approx(GB / (25e9 * 0.95), rel=0.1)
    assert collective_s("all_reduce", GB, across, "within") == collective_s(
        "all_reduce", GB, links()
    )


def test_some_of_the_gpus_have_a_shorter_ring() -> None:
    two = collective_s("all_reduce", GB, links(), ranks=2)
    assert two == collective_s("all_reduce", GB, links(gpus=2))
    assert two < collective_s("all_reduce", GB, links())


def test_an_exchange_across_nodes_shares_the_adapters() -> None:
    across = links(gpus=16, interconnect="ethernet-10g")
    # Half of what each of 8 GPUs has goes to the other node.
    expected = GB / 2 * 8 / (1.25e9 * 0.6)
    assert collective_s("all_to_all", GB, across) == pytest.approx(expected, rel=0.05)


@pytest.mark.parametrize(
    ("kind", "share"),
    [("all_reduce", 2 * 3 / 4), ("all_gather", 3 / 4), ("reduce_scatter", 3 / 4), ("send", 1),
     ("broadcast", 1)],
)  # fmt: skip
def test_a_ring_sends_all_but_the_own_part(kind: Collective, share: float) -> None:
    assert sent_share(kind, 4) == share
