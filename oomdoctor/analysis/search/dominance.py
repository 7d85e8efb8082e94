"""Whether one rung certainly needs at least as much memory as another: a partial order.

A rung may be skipped only if the reason is certain. So every rule below holds for each moment of
the step, not just on average, and values without a rule must be equal. Two traps shape the rules.
16-bit training needs *more* than 32-bit training where a library casts to float32 (the logits of
the loss, the scores of eager attention). And a micro-batch as large as the effective batch has no
gradients yet while it computes activations.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from oomdoctor.analysis.memory.closed_form import (
    keeps_all_gradients,
    state_bytes,
    state_ceiling,
    weights_bytes,
)
from oomdoctor.analysis.memory.shape import shape_of
from oomdoctor.records.capability import MODERN, capability_numbers
from oomdoctor.records.configuration.adapters import compute_dtype
from oomdoctor.records.configuration.config import (
    TrainConfig,
    changed_keys,
    has_reference_model,
    masks_pairs,
    trains_with_trl,
)
from oomdoctor.records.configuration.keys import KEYS, Order, settled
from oomdoctor.records.facts.attention import ATTENTIONS
from oomdoctor.records.facts.dtypes import dtype_bytes
from oomdoctor.records.facts.optimizers import OPTIMIZERS, canonical
from oomdoctor.records.job.machine import DeviceType
from oomdoctor.records.job.model import ParameterCounts

_FOLLOW = ("weights_dtype", "autocast_dtype")
_CHECKPOINTING = ("activation_checkpointing", "checkpoint_every")
_TILE_TOKENS, _TILE_WORDS = 4096, 32768  # of TRL 1.16 kernels/chunked_logprob.py
_BATCH = ("micro_batch_size", "effective_batch_size")


@dataclass(frozen=True, slots=True)
class Setting:
    """What the rules need to know besides the two rungs; None if unknown.

    `model_config` is the content of config.json.
    """

    device_type: DeviceType
    counts: ParameterCounts | None = None
    model_config: Mapping[str, Any] = field(default_factory=dict)
    compute_capability: str | None = None


def needs_more(more: TrainConfig, less: TrainConfig, setting: Setting) -> tuple[str, ...] | None:
    """The keys in which `more` needs more than `less`, if it needs at least as much in all others.

    Both have an integer micro-batch size. None if the two are equal or cannot be compared.
    """
    more, less = _relevant(more), _relevant(less)
    micro_more, micro_less = more.micro_batch(), less.micro_batch()
    if micro_more < micro_less:
        return None
    if more.accumulation_steps() == 1 and less.accumulation_steps() > 1:
        return None
    differing = changed_keys(less, more)
    if differing.keys() & set(_FOLLOW) and not _precision_at_least(more, less, setting):
        return None
    if differing.keys() & set(_CHECKPOINTING) and not _keeps_at_least(more, less):
        return None
    judged = [name for name in (*_FOLLOW, *_CHECKPOINTING) if name in differing]
    others = [name for name in differing if name not in (*judged, *_BATCH)]
    if not all(_at_least(name, more, less, setting) for name in others):
        return None
    raised = ["micro_batch_size"] if micro_more > micro_less else []
    return (*raised, *judged, *others) or None


def _relevant(config: TrainConfig) -> TrainConfig:
    """The configuration without the values that do not change memory."""
    values = {key.name: key.default() for key in KEYS.values() if key.memory == "none"}
    if config.activation_checkpointing == "every_n" and config.checkpoint_every == 1:
        values["activation_checkpointing"] = "full"
    values["optimizer"] = canonical(config.optimizer)
    if config.offload == "optimizer":
        values["optimizer"] = KEYS["optimizer"].default()  # the device has none of its states
    return settled(replace(config, **values))


def _at_least(name: str, more: TrainConfig, less: TrainConfig, setting: Setting) -> bool:
    a, b = getattr(more, name), getattr(less, name)
    order = KEYS[name].memory
    if order is not None:
        return _in_order(order, a, b)
    if name == "lora_dropout":
        return bool(b == 0)  # dropout keeps a mask and its output
    if name == "reference":
        return has_reference_model(more) and not has_reference_model(less)
    if name == "offload":
        return bool(a == "none" and b == "optimizer")
    if name == "attention":
        if masks_pairs(less):
            return False  # the mask decides the kernel
        scores = ATTENTIONS[a].stores_scores is True and ATTENTIONS[b].stores_scores is False
        return scores and _fast_attention(compute_dtype(less), setting)
    if name == "loss":
        outweighs = {"liger": _logits_outweigh, "chunked": _logits_outweigh_tiles}.get(b)
        return a == "default" and outweighs is not None and outweighs(less, setting)
    if name == "optimizer_in_backward":  # the update takes no memory beside the activations
        row = OPTIMIZERS.get(less.optimizer)
        return bool(b) and row is not None and (row.kernel == "fused" or row.gradient_copies == 0)
    if name == "optimizer" and less.offload == "optimizer":
        return keeps_all_gradients(more)
    if name == "optimizer":
        row = OPTIMIZERS.get(b)
        listed = row is not None and a in row.at_least
        return listed or _states_at_least(more, less, setting)
    return False


def _in_order(order: Order, more: Any, less: Any) -> bool:
    """Whether a value of a key with an order in memory needs at least as much as another one."""
    if isinstance(order, tuple):
        return order.index(more) >= order.index(less)
    if order == "less":
        more, less = less, more
    return set(more) >= set(less) if isinstance(more, tuple) else bool(more >= less)


def _keeps_at_least(more: TrainConfig, less: TrainConfig) -> bool:
    """Whether `more` checkpoints a subset of what `less` checkpoints.

    A layer that is recomputed then has all its activations, just as without checkpointing, so fewer
    checkpoints never need less. Checkpoints of attention or MLP alone recompute less at a time than
    those of whole layers, which matters if there are few layers; these are not compared.
    """
    a, b = more.activation_checkpointing, less.activation_checkpointing
    if a == "none":
        return True
    whole = {"every_n", "full", "offload"}
    if a == "offload" or not {a, b} <= whole:
        return False
    return _every(more) % _every(less) == 0


def _every(config: TrainConfig) -> int:
    return config.checkpoint_every if config.activation_checkpointing == "every_n" else 1


def _states_at_least(more: TrainConfig, less: TrainConfig, setting: Setting) -> bool:
    counts = setting.counts
    if counts is None or more.method != "full" or more.offload != "none":
        return False
    least = state_bytes(more, counts)
    linear, others = counts.linear, counts.total - counts.linear
    most = state_ceiling(less.optimizer, dtype_bytes(less.weights_dtype), linear, others)
    return least is not None and most is not None and least >= most


def _precision_at_least(more: TrainConfig, less: TrainConfig, setting: Setting) -> bool:
    """float32 weights, alone or with autocast, against the same training in 16 bits.

    Certain only if the wider weights outweigh the float32 copies that 16-bit training makes of
    its logits: at most 8 bytes for each of micro-batch x length x vocabulary.
    """
    computed = compute_dtype(less)
    wider = (
        less.autocast_dtype == "none"
        and less.weights_dtype != "float32"
        and more.weights_dtype == "float32"
        and more.autocast_dtype in ("none", computed)
    )
    vocabulary = shape_of(setting.model_config).vocabulary
    if trains_with_trl(more):
        return False  # TRL's head makes other copies
    if not wider or setting.counts is None or vocabulary is None:
        return False
    scores = any(ATTENTIONS[config.attention].stores_scores is True for config in (more, less))
    if scores or masks_pairs(more) or masks_pairs(less) or not _fast_attention(computed, setting):
        return False
    gained = weights_bytes(more, setting.counts) - weights_bytes(less, setting.counts)
    return gained >= 8 * less.micro_batch() * less.rank_length() * vocabulary


def _fast_attention(dtype: str, setting: Setting) -> bool:
    """Whether scaled-dot-product attention has a kernel for `dtype` that stores no scores.

    Below compute capability 8.0 there is none for bfloat16, so PyTorch computes in float32.
    """
    if setting.device_type == "cpu" or dtype != "bfloat16":
        return True
    return capability_numbers(setting.compute_capability) >= MODERN


def _logits_outweigh(config: TrainConfig, setting: Setting) -> bool:
    """Whether whole logits are larger than the extra head gradient of the fused loss.

    The fused loss computes the gradient of the output head in the forward pass, and holds it twice
    while it adds up the chunks. Whole logits cost at least 8 bytes per token and vocabulary entry,
    and one such gradient.
    """
    hidden = shape_of(setting.model_config).hidden
    if hidden is None:
        return False
    tokens = config.micro_batch() * config.rank_length()
    return 8 * tokens >= 2 * dtype_bytes(config.weights_dtype) * hidden


def _logits_outweigh_tiles(config: TrainConfig, setting: Setting) -> bool:
    """Whether whole logits are larger than all that TRL's loss in chunks has at a time.

    It has a tile of scores of 4,096 tokens and 32,768 words, two copies of the head's rows for
    them, and float32 gradients of the head and of the hidden states, each with a copy. On the CPU
    a tile has several copies in float32, which no rule counts.
    """
    shape = shape_of(setting.model_config)
    if setting.device_type == "cpu" or shape.hidden is None or shape.vocabulary is None:
        return False
    tokens = config.micro_batch() * config.rank_length()
    tile = 4 * min(tokens, _TILE_TOKENS) * _TILE_WORDS
    rows = 2 * 4 * _TILE_WORDS * shape.hidden
    gradients = 8 * (shape.vocabulary + tokens) * shape.hidden
    hidden = 8 * tokens * shape.hidden
    return 8 * tokens * shape.vocabulary >= tile + rows + gradients + hidden
