"""A training in the terms of DeepSpeed: parameters, types, buckets."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import accumulate, pairwise
from typing import Literal

from oomdoctor.analysis.memory.closed_form import state_width
from oomdoctor.analysis.memory.phases import Parts, size_of
from oomdoctor.records.configuration.adapters import compute_dtype, kept_dtype, saved_dtype
from oomdoctor.records.configuration.config import TrainConfig, has_own_step, has_reference_model
from oomdoctor.records.facts.choices import AUTO
from oomdoctor.records.facts.dtypes import FLOAT32_BYTES, dtype_bytes
from oomdoctor.records.facts.optimizers import optimizer_named

# DeepSpeed's defaults (runtime/zero/config.py), in elements.
REDUCE_BUCKET = 500_000_000
PERSISTENCE_THRESHOLD = 100_000
MAX_LIVE = 1_000_000_000
MAX_REUSE_DISTANCE = 1_000_000_000
SUB_GROUP = 1_000_000_000


@dataclass(frozen=True, slots=True)
class Parameter:
    """One parameter of a model, in the order of its modules."""

    elements: int
    trained: bool = True


@dataclass(frozen=True, slots=True)
class Beside:
    """What a micro-step holds besides weights, gradients and optimizer states, on one GPU.

    All are bytes by category. `forward` is the peak of the forward pass. `backward` has pairs in
    the order of the backward pass: elements of gradients made so far, and the most that was held
    since the pair before, with the gradient that is being made. One pair with the peak will do.
    What is `kept` stays between steps (workspaces) and is in the others too.
    """

    forward: Parts
    backward: tuple[tuple[int, Parts], ...]
    kept: Parts = field(default_factory=dict)

    def held_from(self, before: int, made: int) -> Parts:
        """The most that is held while gradients `before` to `made` are computed."""
        if not self.backward:
            return self.kept
        number = bisect_right(self.backward, before, key=lambda pair: pair[0])
        steps = list(self.backward[number : number + 1]) or [self.backward[-1]]
        while steps[-1][0] < made and number + len(steps) < len(self.backward):
            steps.append(self.backward[number + len(steps)])
        return max((held for _, held in steps), key=size_of)


@dataclass(frozen=True, slots=True)
class Setting:
    """A training with ZeRO in the terms of DeepSpeed. Sizes are bytes of one element.

    `short` is the type of weights and gradients, `states` what the optimizer keeps of each element
    beside its fp32 copy of the weights, `copies` the temporaries of its step in fp32 gradients.
    `wider` is what a trained weight takes beyond `short`: in stage 3 adapters may be in float32.
    `reference` is a second model without gradients (TRL's `prepare_deepspeed`), which a step runs
    or which is only kept: stage 3 splits it too, the others leave it whole on each rank.
    """

    stage: int
    ranks: int
    short: int
    states: int
    copies: int
    accumulates: bool
    bucket: int
    persistence: int
    prefetches: bool
    recomputes: bool
    optimizer_on_host: bool
    weights_on_host: bool
    reference: Literal["none", "kept", "run"] = "none"
    wider: int = 0


def setting_of(config: TrainConfig) -> Setting:
    """The setting of a rung with DeepSpeed's defaults for what it does not name.

    Raises:
        ValueError: the states of the optimizer are not known, or the weights are quantized.
    """
    if config.quantization != "none":
        raise ValueError("quantized weights are not in the model of ZeRO")
    states = state_width(config.optimizer, FLOAT32_BYTES)
    row = optimizer_named(config.optimizer)
    if states is None or row is None:
        raise ValueError(f"the states of {config.optimizer} are not known")
    return Setting(
        stage=int(config.sharding[-1]),
        ranks=config.world_size,
        short=dtype_bytes(compute_dtype(config)),
        states=states,
        copies=1 if row.kernel == "foreach" else 0,
        accumulates=config.micro_batch_size == AUTO or config.accumulation_steps() > 1,
        bucket=config.bucket_elements or REDUCE_BUCKET,
        persistence=PERSISTENCE_THRESHOLD,
        prefetches=config.prefetch != "none",
        recomputes=config.activation_checkpointing != "none",
        optimizer_on_host=config.offload in ("optimizer", "parameters"),
        weights_on_host=config.offload == "parameters",
        reference=_reference(config),
        wider=_wider(config),
    )


def _wider(config: TrainConfig) -> int:
    """What adapters take beyond other weights.

    Modules that are trained beside them in another type outweigh them, so those decide.
    """
    mixed = config.modules_to_save and saved_dtype(config) != kept_dtype(config)
    if config.method == "full" or mixed:
        return 0
    return dtype_bytes(kept_dtype(config)) - dtype_bytes(compute_dtype(config))


def _reference(config: TrainConfig) -> Literal["none", "kept", "run"]:
    """GRPO asks its reference before the step, while it scores completions."""
    if not has_reference_model(config) or has_own_step(config):  # then it has another process
        return "none"
    return "kept" if config.objective == "grpo" else "run"


# DeepSpeed aligns flat buffers so that every partition starts at a multiple of two elements.
_ALIGNMENT = 2


def shard_elements(trained: int, ranks: int) -> int:
    """Elements of one rank's partition in stages 1 and 2: all trained ones, padded and split."""
    alignment = _ALIGNMENT * ranks
    return -(-trained // alignment) * alignment // ranks


def gathered_shard(parameters: Sequence[Parameter], ranks: int) -> int:
    """Elements of one rank's shards in stage 3, which splits each parameter on its own."""
    return sum(-(-parameter.elements // ranks) for parameter in parameters)


def owned(parameters: Sequence[Parameter], ranks: int, rank: int) -> frozenset[int]:
    """The numbers of the trained parameters of which a rank owns a part in stages 1 and 2.

    `parameters` are the trained ones, in their order. DeepSpeed keeps whole gradients of these,
    even where a partition ends inside of one.
    """
    size = shard_elements(sum(p.elements for p in parameters), ranks)
    low, high = rank * size, (rank + 1) * size
    edges = pairwise(accumulate((p.elements for p in parameters), initial=0))
    return frozenset(n for n, (start, end) in enumerate(edges) if start < high and end > low)


def deciding_ranks(ranks: int) -> tuple[int, ...]:
    """The ranks that may need the most: all of a few, else a sample with the first and last."""
    if ranks <= 64:
        return tuple(range(ranks))
    return tuple(sorted({0, ranks - 1, *(ranks * part // 62 for part in range(62))}))
