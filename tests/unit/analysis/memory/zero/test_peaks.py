"""The model of DeepSpeed's buffers, against DeepSpeed itself and the figures of its paper."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from oomdoctor.analysis.memory.phases import size_of
from oomdoctor.analysis.memory.zero.peaks import peaks_of, peaks_on
from oomdoctor.analysis.memory.zero.setting import (
    PERSISTENCE_THRESHOLD,
    REDUCE_BUCKET,
    Beside,
    Parameter,
    Setting,
    gathered_shard,
    owned,
    setting_of,
    shard_elements,
)
from oomdoctor.analysis.memory.zero.stage_three import live_elements
from oomdoctor.records.configuration.config import TrainConfig

# What DeepSpeed 0.19.8 allocated on the emulated GPU (scripts/evaluation/zero_memory.py).
FILE = Path(__file__).parents[4] / "data" / "emulated" / "zero.json"
REAL: dict[str, Any] = json.loads(FILE.read_text(encoding="utf-8"))["cases"]
GB = 1e9
SETTING = Setting(
    stage=2,
    ranks=4,
    short=2,
    states=8,
    copies=0,
    accumulates=False,
    bucket=REDUCE_BUCKET,
    persistence=PERSISTENCE_THRESHOLD,
    prefetches=True,
    recomputes=True,
    optimizer_on_host=False,
    weights_on_host=False,
)
NOTHING = Beside({}, ())


def llama(model: dict[str, Any], rank: int | None = None) -> list[Parameter]:
    """The parameters of a Llama, with adapters of `rank` on all its matrices."""
    hidden, inner = model["hidden_size"], model["intermediate_size"]
    keys = hidden // model["num_attention_heads"] * model["num_key_value_heads"]
    table, norm = Parameter(model["vocab_size"] * hidden, not rank), Parameter(hidden, not rank)
    found = [table]
    for _ in range(model["num_hidden_layers"]):
        for rows, columns in (
            (hidden, hidden),
            (hidden, keys),
            (hidden, keys),
            (hidden, hidden),
            (hidden, inner),
            (hidden, inner),
            (inner, hidden),
        ):
            found.append(Parameter(rows * columns, not rank))
            if rank:
                found += [Parameter(rows * rank), Parameter(columns * rank)]
        found += [norm, norm]
    return [*found, norm, table]


def setting(case: dict[str, Any]) -> Setting:
    zero, rung, hidden = case["zero"], case["rung"], case["model"]["hidden_size"]

    def value(key: str, auto: int, default: int) -> int:
        return {"auto": auto}.get(zero.get(key), zero.get(key, default))

    return Setting(
        stage=zero["stage"],
        ranks=case["gpus"],
        short=2 if rung["bf16"] else 4,
        states=8,
        copies=int(rung["optimizer"] == "adamw_torch"),
        accumulates=rung["accumulation"] > 1,
        bucket=value("reduce_bucket_size", hidden * hidden, REDUCE_BUCKET),
        persistence=value("stage3_param_persistence_threshold", 10 * hidden, PERSISTENCE_THRESHOLD),
        prefetches=True,
        recomputes=rung["checkpointing"],
        optimizer_on_host="offload_optimizer" in zero,
        weights_on_host="offload_param" in zero,
        wider=2 if rung.get("adapters") == "float32" else 0,
    )


def beside(case: dict[str, Any]) -> Beside:
    alone = case["alone"]
    backward = tuple((made, {"activations": held}) for made, held in alone["backward"])
    return Beside({"activations": alone["forward"]}, backward, {"activations": alone["kept"]})


@pytest.mark.parametrize("name", REAL)
def test_peaks_are_those_of_deepspeed(name):
    case = REAL[name]
    parameters = llama(case["model"], case["rung"].get("lora_rank"))
    for rank, real in enumerate(case["ranks"]):
        found = peaks_on(rank, setting(case), parameters, beside(case))
        phases = {phase: size_of(parts) for phase, parts in found.phases.items()}
        measured = {phase: size for phase, size in real["phases"].items() if phase in phases}
        assert max(phases.values()) == pytest.approx(max(measured.values()), rel=0.01)
        for phase, size in measured.items():
            assert phases[phase] == pytest.approx(size, rel=0.03), (rank, phase)


@pytest.mark.parametrize(("stage", "gigabytes"), [(1, 31.4), (2, 16.6), (3, 1.9)])
def test_the_table_of_the_paper(stage, gigabytes):
    """7.5e9 parameters on 64 GPUs (Rajbhandari et al., 2020, arXiv:1910.02054, figure 1).

    The paper counts weights, gradients and states only: no activations, no buffers, nothing that is
    gathered for a while. Without ZeRO it is 120 GB.
    """
    parameters = [Parameter(7_500_000)] * 1000
    case = replace(SETTING, stage=stage, ranks=64, accumulates=stage == 1)
    phases = peaks_of(case, parameters, NOTHING).phases
    phase = phases["backward" if stage == 1 else "optimizer"]
    named = {name: phase.get(name, 0) for name in ("weights", "gradients", "optimizer")}
    assert sum(named.values()) / GB == pytest.approx(gigabytes, abs=0.06)
    whole = 16 * sum(p.elements for p in parameters)
    assert whole / GB == 120


def models(count: int) -> list[tuple[int, list[Parameter]]]:
    """Random models of different sizes, each with a number of GPUs."""
    draw = random.Random(13)
    found = []
    for _ in range(count):
        sizes = [
            draw.randrange(1, 10 ** draw.randrange(1, 8)) for _ in range(draw.randrange(1, 60))
        ]
        found.append((draw.choice([1, 2, 3, 4, 8, 24, 64, 512]), [Parameter(s) for s in sizes]))
    return found


@pytest.mark.parametrize(("ranks", "parameters"), models(40))
def test_the_shards_of_all_ranks_add_up_to_the_whole(ranks, parameters):
    whole = sum(p.elements for p in parameters)
    shard = shard_elements(whole, ranks)
    assert whole <= shard * ranks < whole + 2 * ranks
    gathered = gathered_shard(parameters, ranks)
    assert whole <= gathered * ranks < whole + ranks * len(parameters)
    everyone = [owned(parameters, ranks, rank) for rank in range(ranks)]
    assert frozenset().union(*everyone) == frozenset(range(len(parameters)))


@pytest.mark.parametrize(("ranks", "parameters"), models(40))
@pytest.mark.parametrize("stage", [1, 2, 3])
def test_the_states_of_all_ranks_are_those_of_one_gpu(stage, ranks, parameters):
    case = replace(SETTING, stage=stage, ranks=ranks)
    whole = sum(p.elements for p in parameters)
    found = peaks_on(0, case, parameters, NOTHING).phases["optimizer"]
    padding = 12 * (2 * ranks + ranks * len(parameters))
    assert 12 * whole <= found["optimizer"] * ranks <= 12 * whole + padding
    if stage < 3:
        assert found["weights"] == 2 * whole


def test_a_rank_keeps_whole_gradients_of_what_it_owns_a_part_of():
    parameters = [Parameter(100), Parameter(10), Parameter(10), Parameter(40)]  # 40 for each of 4
    assert [sorted(owned(parameters, 4, rank)) for rank in range(4)] == [[0], [0], [0, 1, 2], [3]]
    found = peaks_on(2, SETTING, parameters, NOTHING).phases["optimizer"]
    assert found["gradients"] == 2 * (100 + 10 + 10)
    assert peaks_of(replace(SETTING, bucket=1), parameters, NOTHING).rank == 2


def test_offload_leaves_weights_and_buffers_on_the_gpu():
    parameters = [Parameter(4_000_000)] * 10
    moved = peaks_on(0, replace(SETTING, optimizer_on_host=True), parameters, NOTHING)
    assert moved.phases["optimizer"] == {
        "weights": 80_000_000,
        "optimizer": 0,
        "temporary": 8_000_000,
    }
    both = replace(SETTING, stage=3, optimizer_on_host=True, weights_on_host=True)
    found = peaks_of(both, parameters, NOTHING).phases["optimizer"]
    assert size_of(found) == 2 * REDUCE_BUCKET


def test_gathered_weights_are_limited_unless_nothing_is_prefetched():
    layers = [Parameter(50_000_000)] * 100
    three = replace(SETTING, stage=3)
    assert live_elements(three, layers[:10]) == 500_000_000
    assert live_elements(three, layers) == 1_000_000_000
    # What is used again within 1e9 elements: 3 x 7 layers do not fit, and the next is the first.
    reused = live_elements(replace(three, prefetches=False), layers)
    assert reused == 7 * 50_000_000
    kept = live_elements(replace(three, prefetches=False, recomputes=False), layers)
    assert kept == 10 * 50_000_000
    assert live_elements(replace(three, prefetches=False), [Parameter(2_000_000_000)]) == 2 * 10**9


def test_full_buckets_are_reduced_beside_a_copy():
    parameters = [Parameter(10_000_000)] * 100
    small = replace(SETTING, bucket=20_000_000)
    one, other = (
        peaks_on(0, case, parameters, NOTHING).phases["backward"]["temporary"]
        for case in (small, replace(small, bucket=40_000_000))
    )
    assert (one, other) == (2 * 2 * 20_000_000, 2 * 2 * 40_000_000)


def test_the_worst_rank_is_found_among_many():
    config = TrainConfig(world_size=1024, sharding="zero2", effective_batch_size=1024)
    parameters = [Parameter(1_000_000_000), *[Parameter(1_000_000)] * 1000]
    found = peaks_of(setting_of(config), parameters, NOTHING)
    assert found.phases["optimizer"]["gradients"] >= 2 * 1_000_000_000
    assert found.peak_bytes == max(map(size_of, found.phases.values()))
