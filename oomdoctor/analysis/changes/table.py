"""The changes of a training that can save memory: one row each, the cheapest first.

`explain`, `plan`, `probe` and `--from` read what a change is called, what it sets, what it costs
and what it can free from these rows. `oomdoctor.analysis.changes.search` combines them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from enum import IntEnum
from functools import lru_cache
from typing import Any, Literal

from oomdoctor.records.configuration.config import TrainConfig, steps_in_backward
from oomdoctor.records.facts.choices import AUTO
from oomdoctor.records.facts.optimizers import OPTIMIZERS, is_paged

Part = Literal["weights", "gradients", "optimizer", "activations", "logits"]
Settings = Mapping[str, Any]
Steps = Iterator[Settings]

_LEAST_PART = 4  # shorter rows than this part of the length come after everything else
_SHORTEST = 128  # tokens: shorter sequences are not worth training on
_STEP_TOKENS = 64
_MOST_DIVIDED = 4096  # a batch beyond that is a mistake, or counts tokens
_EIGHTHS = (7, 6, 5, 4, 3, 2)  # of the length, down to a quarter
_ADAMW = "adamw_torch_fused"


class Tier(IntEnum):
    """What a change costs at most. All sets of a tier come before those of the next one."""

    SAME = 0  # the training computes the same, or nearly the same
    BATCH = 1  # another effective batch size
    LORA = 2
    QLORA = 3
    SHORTER = 4  # rows of at least a quarter of the length
    SHORTEST = 5


@dataclass(frozen=True, slots=True)
class Change:
    """One row of the table.

    `words` name the change; `{key}` is the value that it sets. `steps` are the settings that
    differ from a configuration, the mildest first; none if the change does not apply to it.
    `frees` are the parts of a peak that it can make smaller, besides temporaries. Two changes with
    the same `group` exclude each other; the last of a group in the table saves the most.
    `of_experts` says that it helps mixtures of experts only, `of_engine` that what it frees is
    vLLM's, which no part of a peak shows.
    """

    key: str
    words: str
    steps: Callable[[TrainConfig], Steps]
    frees: frozenset[Part]
    group: str
    tier: Tier = Tier.SAME
    package: str | None = None
    of_experts: bool = False
    of_engine: bool = False

    def text(self, config: TrainConfig) -> str:
        """The words for the change of a configuration that has it."""
        return self.words.format_map({name: getattr(config, name) for name in _SHOWN})


_SHOWN = ("micro_batch_size", "sequence_length", "world_size", "vllm_gpu_memory_utilization")


def _if(condition: bool, **settings: Any) -> Steps:
    if condition:
        yield settings


@lru_cache
def smaller_batches(batch: int) -> tuple[int, ...]:
    """The batches that divide this one, the largest first; only halves of a very large one."""
    if batch > _MOST_DIVIDED:
        return tuple(batch >> power for power in range(1, batch.bit_length()))
    return tuple(size for size in range(batch // 2, 0, -1) if batch % size == 0)


def _smaller_batch(config: TrainConfig) -> Steps:
    """Smaller micro-batches that divide this one; the effective batch stays the same."""
    size = config.micro_batch_size
    if size != AUTO and not steps_in_backward(config):
        yield from ({"micro_batch_size": smaller} for smaller in smaller_batches(size))


def _loss(kind: str) -> Callable[[TrainConfig], Steps]:
    return lambda config: _if(config.loss == "default", loss=kind)


def _sharded_further(config: TrainConfig) -> Steps:
    further = {"zero1": "zero3", "zero2": "zero3", "fsdp_grad_op": "fsdp", "ddp": "fsdp"}
    instead = further.get(config.sharding)
    if instead is None or (config.sharding == "ddp" and config.method == "qlora"):
        return
    yield {"sharding": instead} | ({"bucket_elements": 0} if config.sharding == "ddp" else {})


def _has_moments(config: TrainConfig) -> bool:
    """Whether the optimizer is an AdamW or similar, with states on the device."""
    row = OPTIMIZERS.get(config.optimizer)
    return row is not None and row.moments == 2 and config.offload == "none"


def _fused(config: TrainConfig) -> Steps:
    by_lists = _has_moments(config) and OPTIMIZERS[config.optimizer].kernel == "foreach"
    return _if(by_lists, optimizer=_ADAMW)


def _eight_bit(config: TrainConfig) -> Steps:
    small = OPTIMIZERS[config.optimizer].eight_bit if _has_moments(config) else True
    return _if(not small, optimizer="adamw_bnb_8bit")


def _paged(config: TrainConfig) -> Steps:
    stays = _has_moments(config) and not is_paged(config.optimizer)
    return _if(stays, optimizer="paged_adamw_8bit")


def _offloaded(config: TrainConfig) -> Steps:
    """With an optimizer that can step on the host."""
    if not _has_moments(config) or is_paged(config.optimizer):
        return
    stays = OPTIMIZERS[config.optimizer].steps_on_host
    yield {"offload": "optimizer"} | ({} if stays else {"optimizer": _ADAMW})


def _half_weights(config: TrainConfig) -> Steps:
    wide = config.weights_dtype == "float32" and config.autocast_dtype != "float16"
    return _if(wide, weights_dtype="bfloat16")


def _in_backward(config: TrainConfig) -> Steps:
    alone = (config.method, config.sharding, config.offload) == ("full", "none", "none")
    batch = {"micro_batch_size": 1, "effective_batch_size": 1}
    return _if(alone and not steps_in_backward(config), optimizer_in_backward=True, **batch)


def _trained_whole(config: TrainConfig) -> dict[str, Any]:
    """The settings that only full fine-tuning has, without effect."""
    whole = {"frozen_layers": 0, "fp8": "none", "optimizer_in_backward": False}
    return {name: value for name, value in whole.items() if getattr(config, name) != value}


def _lora(config: TrainConfig) -> Steps:
    return _if(config.method == "full", method="lora", **_trained_whole(config))


def _qlora(config: TrainConfig) -> Steps:
    quantized = {"method": "qlora", "quantization": "nf4"} | _trained_whole(config)
    return _if(config.method != "qlora", **quantized)


def _unprepared(config: TrainConfig) -> Steps:
    """peft casts what is not quantized to float32, such as fused experts and large embeddings."""
    cast = config.method == "qlora" and config.kbit_prepare == "peft"
    return _if(cast, kbit_prepare="none")


def _sleeping(config: TrainConfig) -> Steps:
    """vLLM gives its share back while a step runs."""
    awake = config.vllm_gpu_memory_utilization > 0 and not config.vllm_enable_sleep_mode
    return _if(awake, vllm_enable_sleep_mode=True)


def _smaller_share(config: TrainConfig) -> Steps:
    """Three quarters, half and a quarter of the share of the card that vLLM has."""
    share = config.vllm_gpu_memory_utilization
    smaller = (round(share * part / 4, 2) for part in (3, 2, 1))
    yield from ({"vllm_gpu_memory_utilization": less} for less in smaller if 0 < less < share)


def _experts(config: TrainConfig) -> Steps:
    """bitsandbytes quantizes linear layers, and the experts of a layer are one tensor."""
    whole = config.quantization == "nf4" and not config.quantize_experts
    alone = config.sharding in ("none", "ddp") and config.library == "transformers"
    return _if(whole and alone and not config.lora_target_parameters, quantize_experts=True)


def _shorter(config: TrainConfig) -> Steps:
    least = max(_SHORTEST, _whole_steps(config.sequence_length // _LEAST_PART))
    for eighths in _EIGHTHS:
        tokens = _whole_steps(config.sequence_length * eighths // 8)
        if least <= tokens < config.sequence_length:
            yield {"sequence_length": tokens}


def _shortest(config: TrainConfig) -> Steps:
    length = config.sequence_length // (2 * _LEAST_PART)
    while length >= _SHORTEST:
        yield {"sequence_length": _whole_steps(length)}
        length //= 2


def _whole_steps(tokens: int) -> int:
    return tokens // _STEP_TOKENS * _STEP_TOKENS


_GROWS: frozenset[Part] = frozenset({"activations", "logits"})
_LOGITS: frozenset[Part] = frozenset({"logits"})
_STATES: frozenset[Part] = frozenset({"optimizer"})
_TRAINED: frozenset[Part] = _GROWS | {"gradients", "optimizer"}
_ALL: frozenset[Part] = _TRAINED | {"weights"}

TABLE: tuple[Change, ...] = (
    Change("smaller_batch", "micro-batch size {micro_batch_size}", _smaller_batch, _GROWS,
           "batch"),
    Change("sdpa", "SDPA attention",
           lambda config: _if(config.attention == "eager", attention="sdpa"), _GROWS, "attention"),
    Change("fused_optimizer", "the fused optimizer", _fused, frozenset(), "states"),
    Change("expandable_segments", "expandable_segments",
           lambda config: _if(config.allocator == "default", allocator="expandable_segments"),
           frozenset(), "allocator"),
    Change("rollout_sleep", "vLLM's sleep mode", _sleeping, frozenset(), "sleep",
           of_engine=True),
    Change("engine_share_lower", "{vllm_gpu_memory_utilization:g} of the card for vLLM",
           _smaller_share, frozenset(), "share", of_engine=True),
    Change("checkpointing", "activation checkpointing",
           lambda config: _if(config.activation_checkpointing == "none",
                              activation_checkpointing="full"),
           frozenset({"activations"}), "checkpointing"),
    Change("chunked", "TRL's loss in chunks", _loss("chunked"), _LOGITS, "loss", package="trl"),
    Change("liger", "Liger's loss", _loss("liger"), _LOGITS, "loss", package="liger-kernel"),
    Change("shard", "full sharding", _sharded_further, _ALL, "sharding"),
    Change("adamw_8bit", "8-bit AdamW", _eight_bit, _STATES, "states", package="bitsandbytes"),
    Change("paged_adamw", "paged 8-bit AdamW", _paged, _STATES, "states", package="bitsandbytes"),
    Change("half_weights", "bf16 weights", _half_weights, _ALL, "precision"),
    Change("uncast_weights", "unquantized weights in their own dtype", _unprepared,
           frozenset({"weights"}), "prepared"),
    Change("quantized_experts", "4-bit experts (axolotl)", _experts, frozenset({"weights"}),
           "experts", package="bitsandbytes", of_experts=True),
    Change("offload_optimizer", "optimizer offload", _offloaded, _STATES, "states"),
    Change("optimizer_in_backward",
           "the optimizer in the backward pass (effective batch size 1)", _in_backward,
           _TRAINED, "batch", Tier.BATCH),
    Change("lora", "LoRA", _lora, _TRAINED, "method", Tier.LORA, "peft"),
    Change("qlora", "QLoRA", _qlora, _ALL, "method", Tier.QLORA, "bitsandbytes"),
    Change("shorter_sequence", "sequence length {sequence_length:,}", _shorter, _GROWS, "length",
           Tier.SHORTER),
    Change("shortest_sequence", "sequence length {sequence_length:,}", _shortest, _GROWS, "length",
           Tier.SHORTEST),
)  # fmt: skip
BY_KEY = {change.key: change for change in TABLE}
