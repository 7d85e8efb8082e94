"""Bytes and seconds of communication, against numbers worked out by hand."""

from __future__ import annotations

from dataclasses import replace
from typing import get_args

import pytest
from analysis_make import COUNTS, gpu_facts, timing

from oomdoctor.analysis.speed.communication import (
    communication,
    exposed_seconds,
    has_estimate,
    with_communication,
)
from oomdoctor.analysis.speed.links import Link, Links, host_link, interconnects, links_of
from oomdoctor.analysis.speed.throughput import CountedModel, mfu, tokens_per_s
from oomdoctor.analysis.speed.traffic import gathered_bytes, host_updates, traffic_of
from oomdoctor.records.configuration.config import TrainConfig
from oomdoctor.records.report.plan import Interconnect
from oomdoctor.system import catalogue

P = COUNTS.total
CONFIG = TrainConfig(
    world_size=4, sharding="fsdp", micro_batch_size=2, effective_batch_size=16, sequence_length=1000
)
H100 = replace(
    gpu_facts(bf16_flops=1e15), nvlink_bytes_per_s=450e9, pcie_generation=5, pcie_lanes=16
)


def sent(config: TrainConfig = CONFIG, trainable: int | None = None) -> dict[str, float]:
    """Bytes by name."""
    return {t.name: t.size_bytes for t in traffic_of(config, COUNTS, trainable)}


def test_one_gpu_sends_nothing():
    alone = TrainConfig(micro_batch_size=2)
    assert traffic_of(alone, COUNTS, None) == ()
    assert with_communication(timing(), alone, COUNTS, None, H100) == timing()


def test_ddp_reduces_all_gradients_once_a_step():
    ddp = replace(CONFIG, sharding="ddp")
    (only,) = traffic_of(ddp, COUNTS, None)
    assert only.size_bytes == 2 * 3 / 4 * P * 2
    assert (only.when, only.hidden_by) == ("last_micro_step", "backward")
    (each,) = traffic_of(replace(ddp, sync_each_batch=True), COUNTS, None)
    assert (each.size_bytes, each.when) == (only.size_bytes, "micro_step")
    plain = traffic_of(replace(ddp, weights_dtype="float32"), COUNTS, None)
    assert plain[0].size_bytes == 2 * only.size_bytes


def test_fsdp_gathers_twice_and_scatters_once():
    assert sent() == {
        "all-gather of weights": 2 * 3 / 4 * P * 2,
        "reduce-scatter of gradients": 3 / 4 * P * 2,
    }
    kept = sent(replace(CONFIG, sharding="fsdp_grad_op"))
    assert kept["all-gather of weights"] == 3 / 4 * P * 2
    exact = sent(replace(CONFIG, reduce_dtype="float32"))
    assert exact["reduce-scatter of gradients"] == 3 / 4 * P * 4


def test_hybrid_gathers_in_a_node_and_reduces_shards_between_nodes():
    hybrid = replace(CONFIG, sharding="hybrid", world_size=8, gpus_per_node=4)
    found = {t.name: t for t in traffic_of(hybrid, COUNTS, None)}
    assert found["all-gather of weights"].size_bytes == 2 * 3 / 4 * P * 2
    assert found["all-gather of weights"].reach == "within"
    between = found["all-reduce between nodes"]
    assert (between.size_bytes, between.reach) == (2 * 1 / 2 * P * 2 / 4, "between")


@pytest.mark.parametrize(("stage", "when"), [("zero1", "last_micro_step"), ("zero2", "micro_step")])
def test_zero_one_and_two_hide_nothing(stage, when):
    reduce, gather = traffic_of(replace(CONFIG, sharding=stage), COUNTS, None)
    assert (reduce.size_bytes, reduce.when) == (2 * 3 / 4 * P * 2, when)
    assert (gather.size_bytes, gather.when) == (3 / 4 * P * 2, "optimizer_step")
    assert {reduce.hidden_by, gather.hidden_by} == {"nothing"}


def test_zero_three_reduces_each_micro_batch():
    found = traffic_of(replace(CONFIG, sharding="zero3"), COUNTS, None)
    assert {t.when for t in found} == {"micro_step"}
    assert sum(t.size_bytes for t in found) == 3 * 3 / 4 * P * 2


def test_adapters_are_reduced_and_the_base_is_gathered():
    lora = replace(CONFIG, method="lora")
    found = sent(lora, trainable=1_000_000)
    assert found["reduce-scatter of gradients"] == 3 / 4 * 1_000_000 * 2
    assert found["all-gather of weights"] == 2 * 3 / 4 * (P + 1_000_000) * 2


def test_packed_weights_are_gathered_only_if_they_are_sharded():
    qlora = replace(CONFIG, method="qlora", quantization="nf4")
    others = (P - COUNTS.linear) * 2 + 1000 * 2
    assert gathered_bytes(qlora, COUNTS, 1000) == others
    stored = replace(qlora, quant_storage="bfloat16")
    assert gathered_bytes(stored, COUNTS, 1000) - others == pytest.approx(
        COUNTS.linear / 2 + COUNTS.linear / 64, rel=0.01
    )


def test_offload_copies_shards_and_updates_on_the_host():
    moved = sent(replace(CONFIG, sharding="zero2", offload="optimizer"))
    assert moved["gradients to the host"] == P * 2 / 4
    assert moved["updated weights to the GPU"] == P * 2 / 4
    both = replace(CONFIG, offload="parameters")
    assert sent(both)["weights to the GPU"] == 2 * P * 2 / 4
    assert "updated weights to the GPU" not in sent(both)
    assert host_updates(both, P) == P
    assert host_updates(replace(both, world_size=16, gpus_per_node=8), P) == P / 2
    assert host_updates(CONFIG, P) == 0


def test_links_come_from_the_card_or_the_option():
    assert links_of(H100, 8, 8).ring == Link(450e9 * 0.78, "nvlink")
    assert links_of(H100, 8, 8, "pcie").ring == Link(63e9 * 0.45, "PCIe 5.0")
    assert links_of(H100, 8, 8).between is None
    assert links_of(H100, 8, 8).host == Link(45e9, "PCIe 5.0")
    plain = replace(H100, nvlink_bytes_per_s=None, pcie_lanes=8)
    assert links_of(plain, 2, 8, "nvlink").ring == Link(63e9 / 2 * 0.45, "PCIe 5.0")
    assert links_of(replace(plain, pcie_generation=None, compute_capability=None), 2, 8) is None


def test_a_bridge_joins_two_cards_only():
    bridged = catalogue.find_gpu("A100 80GB PCIe")
    assert links_of(bridged, 2, 8).ring == Link(300e9 * 0.69, "nvlink")
    assert links_of(bridged, 4, 8).ring.name == "PCIe 4.0"
    switched = catalogue.find_gpu("A100-SXM4-80GB")
    assert links_of(switched, 4, 8).ring == Link(300e9 * 0.78, "nvlink")


def test_a_ring_over_nodes_is_as_fast_as_their_network():
    slow = links_of(H100, 16, 8, "ethernet-10g")
    assert slow.ring == Link(1.25e9 * 0.6, "ethernet-10g")
    assert slow.between == Link(1.25e9 * 0.6 / 8, "ethernet-10g")
    assert slow.within == links_of(H100, 8, 8).within
    # Eight adapters together are faster than the links of a node.
    assert links_of(H100, 16, 8, "infiniband-ndr").ring.name == "nvlink"
    assert links_of(H100, 16, 8).ring == Link(25e9 * 0.86 * 8, "infiniband-hdr")


LINKS = Links(Link(1e9, "a"), None, Link(1e9, "a"), Link(1e9, "b"))


def test_what_the_engine_computes_meanwhile_hides_transfers():
    ddp = traffic_of(replace(CONFIG, sharding="ddp"), COUNTS, None)  # 3 s at 1 GB/s
    assert exposed_seconds(ddp, LINKS, 6.0) == 0
    assert exposed_seconds(ddp, LINKS, 3.0) == pytest.approx(3 - 2)
    fsdp = traffic_of(CONFIG, COUNTS, None)  # 4.5 s
    assert exposed_seconds(fsdp, LINKS, 4.0) == pytest.approx(0.5)
    zero = traffic_of(replace(CONFIG, sharding="zero1"), COUNTS, None)[:1]
    assert exposed_seconds(zero, LINKS, 100.0) == pytest.approx(3)


def test_transfers_to_the_host_run_beside_those_of_the_gpus():
    moved = traffic_of(replace(CONFIG, offload="parameters"), COUNTS, None)
    # 4.5 s between the GPUs, 1.5 s to and from the host.
    assert exposed_seconds(moved, LINKS, 4.0) == pytest.approx(0.5)


def test_the_last_micro_step_waits_for_the_gradients():
    found = communication(replace(CONFIG, sharding="ddp"), COUNTS, None, H100, 0.003)
    whole = 3e9 / (450e9 * 0.78)
    assert found.micro_step_exposed_s == pytest.approx((whole - 0.002) / 2)
    assert found.micro_step_hidden_s == pytest.approx(0.002 / 2)
    assert found.update_exposed_s == 0


def test_times_and_their_uncertainty_grow_by_what_is_exposed():
    zero = replace(CONFIG, sharding="zero1")
    found = with_communication(timing(0.5, 0.1, 0.1), zero, COUNTS, None, H100)
    reduced, gathered = 3e9 / (450e9 * 0.78), 1.5e9 / (450e9 * 0.78)
    assert found.micro_step_s == pytest.approx(0.5 + reduced / 2)
    assert found.optimizer_step_s == pytest.approx(0.1 + gathered)
    expected = (0.5 * 0.1 + reduced / 2 * 0.5) / (0.5 + reduced / 2)
    assert found.micro_step_spread == pytest.approx(expected)
    assert found.optimizer_step_spread > 0.1


def test_a_step_that_mostly_waits_is_bound_by_its_links():
    zero = replace(CONFIG, sharding="zero1")
    reduced = 3e9 / (450e9 * 0.78) / 2
    # What takes most: the links may take less than all of the computation, but more than its bound.
    for alone, bound in ((0.5, "compute"), (1.2 * reduced, "communication")):
        own = replace(timing(alone, 0.1), bound="compute", bound_s=0.6 * alone)
        found = with_communication(own, zero, COUNTS, None, H100)
        waits = found.micro_step_s - alone
        assert found.bound == bound and waits == pytest.approx(reduced)
        assert found.bound_s == (own.bound_s if bound == "compute" else pytest.approx(waits))


def test_the_host_takes_over_the_update():
    moved = replace(CONFIG, sharding="zero2", offload="optimizer")
    found = with_communication(timing(0.5, 0.1), moved, COUNTS, None, H100)
    gathered, copied = 1.5e9 / (450e9 * 0.78), 0.5e9 / 45e9
    assert found.optimizer_step_s == pytest.approx(gathered + copied + P / 1.3e9)


def test_each_rank_updates_its_shard_of_a_whole_model():
    fsdp = with_communication(timing(0.5, 0.1), CONFIG, COUNTS, None, H100, updates_all=True)
    assert fsdp.optimizer_step_s == pytest.approx(0.1 / 4)
    ddp = replace(CONFIG, sharding="ddp")
    copied = with_communication(timing(0.5, 0.1), ddp, COUNTS, None, H100, updates_all=True)
    assert copied.optimizer_step_s == pytest.approx(0.1)


def test_tokens_per_second_are_those_of_all_gpus():
    # Two micro-batches of 2 sequences on each of 4 GPUs.
    assert tokens_per_s(timing(0.5, 0.0), CONFIG) == pytest.approx(16 * 1000 / 1.0)
    model = CountedModel(COUNTS, None, {"vocab_size": 50_000, "hidden_size": 2000}, None)
    alone = replace(CONFIG, world_size=1, sharding="none")
    one = mfu(1000, alone, model, 1e12)
    assert mfu(1000, CONFIG, model, 1e12) == pytest.approx(one / 4)


def test_what_cannot_be_estimated():
    assert has_estimate(CONFIG)
    assert has_estimate(replace(CONFIG, offload="parameters"))
    assert not has_estimate(replace(CONFIG, offload="activations"))
    assert not has_estimate(replace(CONFIG, activation_checkpointing="offload"))
    assert not has_estimate(TrainConfig(offload="optimizer"))


def test_rows_of_interconnects_are_consistent():
    assert get_args(Interconnect) == ("auto", *interconnects())
    assert "auto" not in interconnects()
    for row in interconnects().values():
        assert 0 < row.share < 1 and row.source, row.name
        is_network = row.reach == "network"
        assert (row.bytes_per_s is not None) == (row.adapters is not None) == is_network
        assert interconnects()[row.name] is row


def test_every_card_of_the_catalogue_has_a_link_if_its_slot_is_known():
    for gpu in catalogue.gpus():
        assert (host_link(gpu) is None) == (
            gpu.pcie_generation is None and gpu.compute_capability is None
        ), gpu.name
