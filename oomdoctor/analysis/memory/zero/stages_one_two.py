"""ZeRO-1 and ZeRO-2: the weights are whole, the states are split, gradients go through a bucket.

What a GPU holds, by DeepSpeed's stage_1_and_2.py:

    always      all weights, in one flat buffer; all of a reference model, which has stage 0; with
                states on the GPU the fp32 copy of the shard and its optimizer states; with states
                on the host a buffer for one gradient
    backward    the bucket (`setup_buckets`), into which gradients are copied. When it is full, its
                slices are flattened once more to be reduced (`allreduce_bucket`). Gradients of what
                this rank owns a part of are kept, whole (`grads_in_partition`). Stage 1 keeps all
                gradients until the last micro-batch; stage 2 only what it owns, in a second copy
                while micro-batches accumulate (`all_grad_tensors`)
    optimizer   the kept gradients, a flat copy of the shard's, and a copy of that in fp32
"""

from __future__ import annotations

from collections.abc import Sequence

from oomdoctor.analysis.memory.phases import Course, Parts, together
from oomdoctor.analysis.memory.zero.setting import Beside, Parameter, Setting, owned, shard_elements
from oomdoctor.records.facts.categories import GRADIENTS, OPTIMIZER, TEMPORARY, WEIGHTS
from oomdoctor.records.facts.dtypes import FLOAT32_BYTES


def course_of_stages_one_two(
    setting: Setting, parameters: Sequence[Parameter], beside: Beside, rank: int
) -> Course:
    """The bytes by category on one rank, from the load to the step of the optimizer."""
    trained = [p for p in parameters if p.trained]
    total = sum(p.elements for p in parameters)
    learning = sum(p.elements for p in trained)
    shard = shard_elements(learning, setting.ranks)
    mine = owned(trained, setting.ranks, rank)
    kept = sum(trained[number].elements for number in mine) * setting.short
    largest = max((p.elements for p in trained), default=0)
    frozen = 0 if setting.reference == "none" else total * setting.short
    base = {
        WEIGHTS: total * setting.short + frozen,
        OPTIMIZER: 0 if setting.optimizer_on_host else shard * (FLOAT32_BYTES + setting.states),
        TEMPORARY: largest * setting.short if setting.optimizer_on_host else 0,
    }
    if setting.stage == 1:
        backward = _backward_of_one(setting, trained, beside, kept)
    else:
        backward = _backward_of_two(setting, trained, beside, mine, kept)
    before = together(base, _before_forward(setting, learning, kept))
    return [
        ("load", _load(setting, learning, shard, base)),
        ("forward", together(before, beside.kept)),
        ("forward", together(before, beside.forward)),
        *(("backward", together(base, moment)) for moment in backward),
        ("optimizer", together(base, _optimizer(setting, largest, shard, kept, beside))),
    ]


def _load(setting: Setting, learning: int, shard: int, base: Parts) -> Parts:
    """Flattening doubles what is trained; later the fp32 copy and zeros for its gradients."""
    weights = base[WEIGHTS]
    flattening = learning * setting.short
    if setting.optimizer_on_host:
        later = max(shard * setting.short, base[TEMPORARY])
        return {WEIGHTS: weights, TEMPORARY: max(flattening, later)}
    states = shard * FLOAT32_BYTES
    if flattening > 2 * states:
        return {WEIGHTS: weights, TEMPORARY: flattening}
    return {WEIGHTS: weights, OPTIMIZER: states, TEMPORARY: states}


def _before_forward(setting: Setting, learning: int, kept: int) -> Parts:
    """What is there before the forward pass of a later micro-batch, after a backward pass."""
    if not setting.accumulates:
        return {}
    if setting.stage == 1:
        return {GRADIENTS: learning * setting.short, TEMPORARY: setting.bucket * setting.short}
    return {} if setting.optimizer_on_host else {GRADIENTS: kept}


def _backward_of_one(
    setting: Setting, trained: Sequence[Parameter], beside: Beside, kept: int
) -> list[Parts]:
    """All gradients exist at the end of the last backward pass; only then they are reduced."""
    learning = sum(p.elements for p in trained)
    bucket = setting.bucket * setting.short
    all_gradients = learning * setting.short
    copied = min(setting.bucket, learning) * setting.short
    reduced = 0 if setting.optimizer_on_host else max(0, kept - copied)
    moments: list[Parts] = []
    made = 0
    for parameter in reversed(trained):
        size = parameter.elements
        held = beside.held_from(made, made + size)
        # Without earlier micro-batches the bucket is made after the first gradient. With them, each
        # gradient exists beside the sum that it is added to.
        gradients = all_gradients if setting.accumulates else made * setting.short
        copies = bucket if made or setting.accumulates else 0
        moments.append(together({GRADIENTS: gradients, TEMPORARY: copies}, held))
        made += size
    end = {GRADIENTS: all_gradients + reduced, TEMPORARY: bucket}
    return [*moments, together(end, beside.kept)]


def _backward_of_two(
    setting: Setting, trained: Sequence[Parameter], beside: Beside, mine: frozenset[int], kept: int
) -> list[Parts]:
    """Gradients come from the last parameter to the first; a full bucket is reduced at once."""
    on_host = setting.optimizer_on_host
    before = kept if setting.accumulates and not on_host else 0
    bucket = setting.bucket * setting.short
    moments: list[Parts] = []
    filled = made = own = 0
    touches = False

    def add(extra: int, held: Parts) -> None:
        copies = bucket + extra * setting.short
        moments.append(together({GRADIENTS: before + own, TEMPORARY: copies}, held))

    for number in reversed(range(len(trained))):
        size = trained[number].elements
        held = beside.held_from(made, made + size)
        if not made:  # the bucket is made after the first gradient
            moments.append(together({GRADIENTS: before}, held))
        if filled and filled + size > setting.bucket:
            add(filled, held)
            own, filled, touches = kept if touches and not on_host else own, 0, False
        if made:
            add(0, held)
        filled += size
        made += size
        touches = touches or number in mine
    add(filled, beside.kept)
    if touches and not on_host:
        own = kept
    add(0, beside.kept)
    return moments


def _optimizer(setting: Setting, largest: int, shard: int, kept: int, beside: Beside) -> Parts:
    if setting.optimizer_on_host:
        return beside.kept
    copy = shard * FLOAT32_BYTES
    flat = shard * setting.short
    # Gradients that are in fp32 already are not copied again.
    converting = flat + copy if setting.short != FLOAT32_BYTES else flat
    stepping = copy * (1 + setting.copies)
    # The norm is computed in double precision, gradient by gradient.
    norm = 8 * min(shard, largest)
    return together({GRADIENTS: kept, TEMPORARY: max(converting, stepping, norm)}, beside.kept)
