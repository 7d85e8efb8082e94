"""Bytes and seconds of communication, against numbers worked out by hand."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import get_args

import pytest
from analysis_make import COUNTS, gpu_facts, timing

from oomdoctor.analysis.memory.zero.setting import Parameter
from oomdoctor.analysis.speed.collectives import collective_s
from oomdoctor.analysis.speed.communication import (
    Communication,
    communication,
    exposed_seconds,
    has_estimate,
    with_communication,
)
from oomdoctor.analysis.speed.links import Link, Links, host_link, interconnects, links_of
from oomdoctor.analysis.speed.throughput import CountedModel, mfu, tokens_per_s
from oomdoctor.analysis.speed.traffic import (
    SentModel,
    Transfer,
    buckets,
    gathered_bytes,
    host_updates,
    traffic_of,
)
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
EMBEDDING, LAYERS, IN_LAYER = 200_000_000, 20, 40_000_000
# An embedding, and 20 layers of a matrix.
MODEL = SentModel(COUNTS, LAYERS, (Parameter(EMBEDDING), *[Parameter(IN_LAYER)] * LAYERS))
MIB = 1 << 20


def lora(trained: int = 50_000) -> SentModel:
    """The same model with an adapter in each layer."""
    frozen = (replace(each, trained=False) for each in MODEL.parameters)
    return replace(MODEL, parameters=(*frozen, *[Parameter(trained)] * LAYERS))


def sent(config: TrainConfig = CONFIG, model: SentModel = MODEL) -> dict[str, tuple[float, int]]:
    """Bytes and calls by name."""
    return {t.name: (t.size_bytes, t.calls) for t in traffic_of(config, model)}


def whole(config: TrainConfig, model: SentModel = MODEL) -> dict[str, float]:
    """Bytes by kind."""
    sizes: Counter[str] = Counter()
    for each in traffic_of(config, model):
        sizes[each.kind] += each.size_bytes
    return dict(sizes)


def test_one_gpu_sends_nothing():
    alone = TrainConfig(micro_batch_size=2)
    assert traffic_of(alone, MODEL) == ()
    assert with_communication(timing(), alone, MODEL, H100) == timing()
    one = replace(CONFIG, sharding="ddp", world_size=1)
    assert communication(one, MODEL, H100, 0.1) == Communication(0.0, 0.0, 0.0)


def test_ddp_reduces_all_gradients_once_a_step():
    ddp = replace(CONFIG, sharding="ddp")
    usual, last = traffic_of(ddp, MODEL)
    assert usual.size_bytes + last.size_bytes == P * 2
    assert (usual.when, usual.hidden_by, last.when) == (
        *("last_micro_step", "backward"),
        "last_micro_step",
    )
    each = traffic_of(replace(ddp, sync_each_batch=True), MODEL)
    assert {t.when for t in each} == {"micro_step"}
    plain = traffic_of(replace(ddp, weights_dtype="float32"), MODEL)
    assert sum(t.size_bytes for t in plain) == 2 * P * 2


def test_nothing_hides_the_reduction_of_the_embedding():
    ddp = replace(CONFIG, sharding="ddp")
    _, last = traffic_of(ddp, MODEL)
    assert (last.size_bytes, last.calls, last.hidden_by) == (EMBEDDING * 2, 1, "nothing")
    # Without it, that is a bucket.
    usual, last = traffic_of(ddp, lora(3 * MIB))
    assert (last.size_bytes, usual.size_bytes) == (5 * 6 * MIB, 15 * 6 * MIB)


def test_gradients_are_reduced_in_buckets():
    assert list(buckets([10, 10, 10, 50, 1], 25)) == [30, 50, 1]
    assert list(buckets([], 25)) == []
    ddp = replace(CONFIG, sharding="ddp")
    assert sent(ddp)["all-reduce of gradients"] == (LAYERS * IN_LAYER * 2, LAYERS)
    larger = sent(replace(ddp, bucket_elements=10 * IN_LAYER))
    assert larger["all-reduce of gradients"][1] == 2
    small = sent(ddp, lora())
    assert list(small) == ["last all-reduce of gradients"]  # all of 2 MB in one bucket


def test_more_buckets_take_longer():
    few, many = (replace(CONFIG, sharding="zero1", bucket_elements=n) for n in (10**9, 10**6))
    small = replace(MODEL, parameters=(*[Parameter(100_000)] * 10_000,))
    waits = [communication(each, small, H100, 0.1).micro_step_exposed_s for each in (few, many)]
    assert waits[1] > 1.5 * waits[0]


def test_fsdp_gathers_twice_and_scatters_once():
    found = sent()
    assert found == {
        "first all-gather of weights": (EMBEDDING * 2, 1),
        "all-gather of weights": (2 * P * 2 - EMBEDDING * 2, 2 * 21 - 1),
        "reduce-scatter of gradients": ((P - EMBEDDING) * 2, 20),
        "last reduce-scatter of gradients": (EMBEDDING * 2, 1),
    }
    hidden = {t.name: t.hidden_by for t in traffic_of(CONFIG, MODEL)}
    assert [name for name, by in hidden.items() if by == "nothing"] == [
        "first all-gather of weights",
        "last reduce-scatter of gradients",
    ]
    assert whole(replace(CONFIG, sharding="fsdp_grad_op"))["all_gather"] == P * 2
    assert whole(replace(CONFIG, reduce_dtype="float32"))["reduce_scatter"] == P * 4


def test_hybrid_gathers_in_a_node_and_reduces_shards_between_nodes():
    hybrid = replace(CONFIG, sharding="hybrid", world_size=8, gpus_per_node=4)
    assert whole(hybrid) == {
        "all_gather": 2 * P * 2,
        "reduce_scatter": P * 2,
        "all_reduce": P * 2 / 4,
    }
    among = {t.kind: t.among for t in traffic_of(hybrid, MODEL)}
    assert among == {"all_gather": "within", "reduce_scatter": "within", "all_reduce": "between"}


@pytest.mark.parametrize(("stage", "when"), [("zero1", "last_micro_step"), ("zero2", "micro_step")])
def test_zero_one_and_two_hide_nothing(stage, when):
    zero = replace(CONFIG, sharding=stage)
    found = traffic_of(zero, MODEL)
    assert whole(zero) == {"all_reduce": P * 2, "all_gather": P * 2}
    assert {t.when for t in found} == {when, "optimizer_step"}
    assert {t.hidden_by for t in found} == {"nothing"}
    assert found[-1].calls == 2  # of 500 million elements


def test_zero_three_reduces_each_micro_batch():
    zero = replace(CONFIG, sharding="zero3")
    assert {t.when for t in traffic_of(zero, MODEL)} == {"micro_step"}
    assert whole(zero) == {"all_gather": 2 * P * 2, "reduce_scatter": P * 2}
    assert sent(zero)["last reduce-scatter of gradients"][0] == (P - 13 * IN_LAYER) * 2


def test_adapters_are_reduced_and_the_base_is_gathered():
    found = whole(replace(CONFIG, method="lora"), lora())
    assert found["reduce_scatter"] == 1_000_000 * 2
    assert found["all_gather"] == 2 * (P + 1_000_000) * 2


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
    assert moved["gradients to the host"][0] == P * 2 / 4
    assert moved["updated weights to the GPU"][0] == P * 2 / 4
    both = replace(CONFIG, offload="parameters")
    assert sent(both)["weights to the GPU"][0] == 2 * P * 2 / 4
    assert "updated weights to the GPU" not in sent(both)
    assert host_updates(both, P) == P
    assert host_updates(replace(both, world_size=16, gpus_per_node=8), P) == P / 2
    assert host_updates(CONFIG, P) == 0


def test_links_come_from_the_card_or_the_option():
    found = links_of(H100, 8, 8)
    assert found.within == Link(450e9 * 0.815, "nvlink")
    assert found.in_switch_per_s == 450e9 * 0.60
    assert links_of(H100, 8, 8, "pcie").within == Link(63e9 * 0.5, "PCIe 5.0")
    assert found.network is None and (found.per_node, found.nodes) == (8, 1)
    assert found.host == Link(45e9, "PCIe 5.0")
    plain = replace(H100, nvlink_bytes_per_s=None, pcie_lanes=8)
    assert links_of(plain, 2, 8, "nvlink").within == Link(63e9 / 2 * 0.5, "PCIe 5.0")
    assert links_of(replace(plain, pcie_generation=None, compute_capability=None), 2, 8) is None


def test_a_bridge_joins_two_cards_only():
    bridged = catalogue.find_gpu("A100 80GB PCIe")
    assert links_of(bridged, 2, 8).within == Link(300e9 * 0.69, "nvlink")
    assert links_of(bridged, 4, 8).within.name == "PCIe 4.0"
    switched = links_of(catalogue.find_gpu("A100-SXM4-80GB"), 4, 8)
    assert switched.within == Link(300e9 * 0.78, "nvlink")
    assert switched.in_switch_per_s is None


def test_a_network_joins_nodes():
    slow = links_of(H100, 16, 8, "ethernet-10g")
    assert slow.network == Link(1.25e9 * 0.6, "ethernet-10g")
    assert (slow.per_node, slow.nodes, slow.hop_s) == (8, 2, 80e-6)
    assert slow.within == links_of(H100, 8, 8).within
    assert links_of(H100, 20, 8).nodes == 3
    assert links_of(H100, 16, 8).network == Link(25e9 * 0.95 * 8, "infiniband-hdr")


# So slow that latencies do not count.
LINKS = Links(Link(1e6, "a"), Link(1e6, "b"), per_node=4)


def exposed(config: TrainConfig, computing: float) -> float:
    return exposed_seconds(traffic_of(config, MODEL), LINKS, computing)


def test_what_the_engine_computes_meanwhile_hides_transfers():
    ddp = replace(CONFIG, sharding="ddp")  # 3,000 s, of which 600 s at the end
    assert exposed(ddp, 6000.0) == pytest.approx(600, rel=0.01)
    assert exposed(ddp, 3000.0) == pytest.approx(3000 - 2000, rel=0.01)
    # 4,500 s, 300 s of it at the beginning and 300 s at the end.
    assert exposed(CONFIG, 9000.0) == pytest.approx(600, rel=0.01)
    assert exposed(CONFIG, 3400.0) == pytest.approx(1100, rel=0.01)
    zero = traffic_of(replace(CONFIG, sharding="zero1"), MODEL)[:-1]
    assert exposed_seconds(zero, LINKS, 100_000.0) == pytest.approx(3000, rel=0.01)


def test_transfers_to_the_host_run_beside_those_of_the_gpus():
    # 4,500 s between the GPUs, 1,500 s to and from the host.
    moved = replace(CONFIG, offload="parameters")
    assert exposed(moved, 3400.0) == pytest.approx(1100, rel=0.01)


def test_a_step_of_the_emulated_gpu_waits_for_each_call():
    one, many = (
        [Transfer("all_reduce", "all_reduce", 1 << 20, "micro_step", "nothing", ranks=2)] * count
        for count in (1, 100)
    )
    fast = links_of(H100, 4, 8)
    waits = [exposed_seconds(each, fast, 1.0) for each in (one, many)]
    assert waits[1] == pytest.approx(100 * waits[0]) and waits[0] > 10e-6


def test_the_last_micro_step_waits_for_the_gradients():
    found = communication(replace(CONFIG, sharding="ddp"), MODEL, H100, 0.0003)
    usual, last = (
        calls * collective_s("all_reduce", size, links_of(H100, 4, 8))
        for calls, size in ((LAYERS, IN_LAYER * 2), (1, EMBEDDING * 2))
    )
    assert found.micro_step_exposed_s == pytest.approx((usual + last - 0.0002) / 2)
    assert found.micro_step_hidden_s == pytest.approx(0.0002 / 2)
    assert found.update_exposed_s == 0


ZERO = replace(CONFIG, sharding="zero1")


def reduced_and_gathered() -> tuple[float, float]:
    """Seconds of ZeRO-1: the reduction of two buckets, and the gathers of two after the update."""
    fast = links_of(H100, 4, 8)
    reduced = [520_000_000 * 2, (P - 520_000_000) * 2]
    gathered = 2 * collective_s("all_gather", P, fast)
    return sum(collective_s("all_reduce", size, fast) for size in reduced), gathered


def test_times_and_their_uncertainty_grow_by_what_is_exposed():
    found = with_communication(timing(0.5, 0.1, 0.1), ZERO, MODEL, H100)
    reduced, gathered = reduced_and_gathered()
    assert found.micro_step_s == pytest.approx(0.5 + reduced / 2)
    assert found.optimizer_step_s == pytest.approx(0.1 + gathered)
    expected = (0.5 * 0.1 + reduced / 2 * 0.5) / (0.5 + reduced / 2)
    assert found.micro_step_spread == pytest.approx(expected)
    assert found.optimizer_step_spread > 0.1


def test_a_step_that_mostly_waits_is_bound_by_its_links():
    reduced = reduced_and_gathered()[0] / 2
    # What takes most: the links may take less than all of the computation, but more than its bound.
    for alone, bound in ((0.5, "compute"), (1.2 * reduced, "communication")):
        own = replace(timing(alone, 0.1), bound="compute", bound_s=0.6 * alone)
        found = with_communication(own, ZERO, MODEL, H100)
        waits = found.micro_step_s - alone
        assert found.bound == bound and waits == pytest.approx(reduced)
        assert found.bound_s == (own.bound_s if bound == "compute" else pytest.approx(waits))


def test_the_host_takes_over_the_update():
    moved = replace(CONFIG, sharding="zero2", offload="optimizer")
    found = with_communication(timing(0.5, 0.1), moved, MODEL, H100)
    gathered, copied = reduced_and_gathered()[1], 0.5e9 / 45e9
    assert found.optimizer_step_s == pytest.approx(gathered + copied + P / 1.3e9)


def test_each_rank_updates_its_shard_of_a_whole_model():
    fsdp = with_communication(timing(0.5, 0.1), CONFIG, MODEL, H100, updates_all=True)
    assert fsdp.optimizer_step_s == pytest.approx(0.1 / 4)
    ddp = replace(CONFIG, sharding="ddp")
    copied = with_communication(timing(0.5, 0.1), ddp, MODEL, H100, updates_all=True)
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
        assert (row.hop_s > 0) == is_network
        assert all(0 < share < 1 for share in (*row.share_of.values(), *row.in_switch.values()))
        assert interconnects()[row.name] is row


def test_every_card_of_the_catalogue_has_a_link_if_its_slot_is_known():
    for gpu in catalogue.gpus():
        assert (host_link(gpu) is None) == (
            gpu.pcie_generation is None and gpu.compute_capability is None
        ), gpu.name
