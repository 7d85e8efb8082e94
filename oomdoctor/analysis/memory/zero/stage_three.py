"""ZeRO-3: weights, gradients and states are split; weights are gathered for each module.

What a GPU holds, by DeepSpeed's stage3.py and partitioned_param_coordinator.py:

    always      the shards of the weights and of their gradients; the fp32 copy of the shard and the
                optimizer's states of it; the bucket; small parameters as a whole. What is on the
                host is not here. Of a reference model, the shards; what it gathers for its own
                forward pass is there while the step runs it
    passes      gathered weights. Prefetching gathers ahead through the rest of the forward pass and
                the backward pass, until `max_live_parameters` are there. So a smaller model is
                gathered as a whole. Without prefetching, weights stay if they are used again within
                `max_reuse_distance`
    backward    a gradient, and when the bucket is full a copy of it in the order of the ranks
                (`reduce_scatter_coalesced`)
    optimizer   for each group of at most `sub_group_size` elements a flat copy of its gradients,
                and one in fp32
"""

from __future__ import annotations

from collections.abc import Sequence

from oomdoctor.analysis.memory.phases import Course, Parts, size_of, together
from oomdoctor.analysis.memory.zero.setting import (
    MAX_LIVE,
    MAX_REUSE_DISTANCE,
    SUB_GROUP,
    Beside,
    Parameter,
    Setting,
    gathered_shard,
)
from oomdoctor.records.facts.categories import GRADIENTS, OPTIMIZER, TEMPORARY, WEIGHTS
from oomdoctor.records.facts.dtypes import FLOAT32_BYTES


def course_of_stage_three(
    setting: Setting, parameters: Sequence[Parameter], beside: Beside
) -> Course:
    """The bytes by category, from the load to the step of the optimizer."""
    trained = [p for p in parameters if p.trained]
    shard = gathered_shard(trained, setting.ranks)
    small = sum(p.elements for p in parameters if p.elements < setting.persistence)
    whole = sum(p.elements for p in parameters)
    shards = 0 if setting.weights_on_host else gathered_shard(parameters, setting.ranks)
    on_host = setting.optimizer_on_host
    frozen = 0 if setting.reference == "none" else shards
    kept = small if setting.reference == "run" else 0
    small_trained = sum(p.elements for p in trained if p.elements < setting.persistence)
    split = shards * setting.short + (0 if setting.weights_on_host else shard * setting.wider)
    base = {
        WEIGHTS: split + (frozen + small + kept) * setting.short + small_trained * setting.wider,
        GRADIENTS: 0 if on_host else shard * setting.short,
        OPTIMIZER: 0 if on_host else shard * (FLOAT32_BYTES + setting.states),
        TEMPORARY: setting.bucket * setting.short,
    }
    gathered = live_elements(setting, parameters)
    adapters = sum(p.elements for p in trained) - small_trained
    live = gathered * setting.short + min(gathered, adapters) * setting.wider
    largest = max((p.elements for p in trained), default=0) * (setting.short + setting.wider)
    asked = live if setting.reference == "run" else 0
    forward = together({WEIGHTS: live + asked}, beside.forward)
    backward = _backward(setting, trained, whole - small, live, beside)
    return [
        ("load", _load(setting, split + frozen * setting.short, shard, largest, base)),
        ("forward", together(base, beside.kept)),
        ("forward", together(base, forward)),
        *(("backward", together(base, moment)) for moment in backward),
        ("optimizer", together(base, _optimizer(setting, shard, beside))),
    ]


def live_elements(setting: Setting, parameters: Sequence[Parameter]) -> int:
    """The most elements of gathered weights at a time."""
    sizes = [p.elements for p in parameters if p.elements >= setting.persistence]
    if setting.prefetches:
        return min(sum(sizes), MAX_LIVE)
    # From the end of the forward pass back: each parameter is used again after all that follow it,
    # in the rest of this pass and in the next, in which checkpointing uses each twice.
    uses = 3 if setting.recomputes else 2
    distance = live = 0
    for size in reversed(sizes):
        distance += uses * size
        if distance - size > MAX_REUSE_DISTANCE:
            break
        live += size
    return max(live, max(sizes, default=0))


def _load(setting: Setting, shards: int, shard: int, largest: int, base: Parts) -> Parts:
    """The fp32 copy is made twice (`converted.clone`), then zeros of its size; no moments yet.

    `shards` and `largest` are bytes, `shard` is elements.
    """
    if setting.weights_on_host:
        largest += -(-largest // setting.ranks)  # its shard comes to the GPU first
    if setting.optimizer_on_host:
        return base | {WEIGHTS: base[WEIGHTS] + largest}
    master = shard * FLOAT32_BYTES
    twice = {WEIGHTS: shards, OPTIMIZER: master, TEMPORARY: master}
    done = base | {OPTIMIZER: master, WEIGHTS: base[WEIGHTS] + largest}
    return max(twice, done, key=size_of)


def _backward(
    setting: Setting, trained: Sequence[Parameter], gathered: int, live: int, beside: Beside
) -> list[Parts]:
    """Gradients come from the last parameter to the first; weights are released behind them."""
    learning = sum(p.elements for p in trained)
    moments = [together({WEIGHTS: live}, beside.held_from(0, 1))]
    filled = made = 0
    for parameter in reversed(trained):
        size = parameter.elements
        held = beside.held_from(made, made + size)
        left = round(gathered * (1 - made / learning)) * setting.short
        flushed = filled if filled and filled + size > setting.bucket else 0
        moments.append(
            together({WEIGHTS: min(live, left), TEMPORARY: flushed * setting.short}, held)
        )
        filled = size + (0 if flushed else filled)
        made += size
    moments.append(together({TEMPORARY: filled * setting.short}, beside.kept))
    return moments


def _optimizer(setting: Setting, shard: int, beside: Beside) -> Parts:
    if setting.optimizer_on_host:
        return beside.kept
    group = min(shard, SUB_GROUP)
    copy = group * FLOAT32_BYTES
    converting = copy + (group * setting.short if setting.short != FLOAT32_BYTES else 0)
    return together({TEMPORARY: max(converting, copy * (1 + setting.copies))}, beside.kept)
