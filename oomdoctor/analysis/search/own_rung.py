"""Changes of the rung that a user already trains with: to make it fit, or to make it faster.

Each changes one thing, or a usual set of things where one is not enough. What it does is not
estimated here; every change is simulated.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from oomdoctor.analysis.search.changes import LEAST_PART, changes_of, least_tokens
from oomdoctor.records.config import TrainConfig, is_zero, joins_rows
from oomdoctor.records.facts.optimizers import OPTIMIZERS, is_paged
from oomdoctor.records.result import ProbeResult
from oomdoctor.records.rung.choices import AUTO
from oomdoctor.records.rung.faults import config_faults

_FUSED = "adamw_torch_fused"


@dataclass(frozen=True, slots=True)
class OneChange:
    """A change in words, and the configuration with it.

    `cost` orders changes that make a rung fit: up to 4 the result is the same, above that numbers,
    method or data change. With the micro-batch size "auto" the best one is searched for. What
    `shortens` the rows changes what is learned, so it comes after all others.
    """

    words: str
    config: TrainConfig
    cost: int
    shortens: bool = False


def to_fit(row: ProbeResult, usable_bytes: int) -> tuple[OneChange, ...]:
    """What may make the rung fit, cheapest first: one key each, then several together."""
    config = row.config
    found = [*_kept_result(config), *_other_result(config)]
    found += [*_several(config), *_all_together(config)]
    known = {one.words for one in found}
    for number, change in enumerate(changes_of(row, usable_bytes)):
        if change.words not in known:
            shortens = "sequence_length" in change.settings
            cost = 20 + number + 100 * shortens
            found.append(OneChange(change.words, change.of(config), cost, shortens))
    return _possible(found, config)


def to_run(row: ProbeResult) -> tuple[OneChange, ...]:
    """What may run where the rung does not, because a package is missing here."""
    config = row.config
    found = []
    if config.loss != "default":
        found.append(_of(config, "the usual loss", 2, loss="default"))
    if config.attention not in ("sdpa", "eager"):
        found.append(_of(config, "SDPA attention", 2, attention="sdpa"))
    if len(found) == 2:
        found.append(
            _of(config, "the usual loss and SDPA attention", 3, loss="default", attention="sdpa")
        )
    return _possible(found, config)


def to_speed_up(row: ProbeResult) -> tuple[OneChange, ...]:
    """What may make a rung that fits faster, with the same effective batch and length."""
    config = row.config
    found = [OneChange("another micro-batch", config.with_micro_batch(AUTO), 1)]
    if config.activation_checkpointing != "none":
        found.append(_of(config, "no activation checkpointing", 1, activation_checkpointing="none"))
        if config.activation_checkpointing != "every_n":
            found.append(
                _of(config, "activation checkpointing of every second layer", 1,
                    activation_checkpointing="every_n", checkpoint_every=2)
            )  # fmt: skip
    if config.attention == "eager":
        found.append(_of(config, "SDPA attention", 1, attention="sdpa"))
    if joins_rows(config):
        found.append(_of(config, "FlashAttention 2", 1, attention="flash_attention_2"))
    if config.offload != "none":
        found.append(_of(config, "no offload", 1, offload="none"))
    known = OPTIMIZERS.get(config.optimizer)
    if config.optimizer != _FUSED and known is not None and known.moments == 2:
        found.append(_of(config, "fused AdamW", 1, optimizer=_FUSED))
    if config.weights_dtype == "float32" and config.autocast_dtype == "none":
        found.append(_of(config, "bf16 mixed precision", 5, autocast_dtype="bfloat16"))
    if config.method == "qlora":
        found.append(_of(config, "LoRA without quantization", 6, method="lora",
                         quantization="none"))  # fmt: skip
    found += _losses(config)
    if config.sharding in ("fsdp", "zero3"):
        instead = "fsdp_grad_op" if config.sharding == "fsdp" else "zero2"
        found.append(_of(config, f"{instead} instead of {config.sharding}", 1, sharding=instead))
    return _possible(found, config)


def _kept_result(config: TrainConfig) -> Iterator[OneChange]:
    """Changes after which the training computes the same."""
    if config.attention == "eager":
        yield _of(config, "SDPA attention", 1, attention="sdpa")
    if config.allocator == "default":
        yield _of(config, "expandable_segments", 1, allocator="expandable_segments")
    yield from _losses(config)
    if config.micro_batch_size not in (AUTO, 1):
        yield OneChange("a smaller micro-batch", config.with_micro_batch(AUTO), 3)
    if config.sharding in ("zero1", "zero2"):
        yield _of(config, "ZeRO stage 3", 3, sharding="zero3")
    if config.sharding == "fsdp_grad_op":
        yield _of(config, "full sharding", 3, sharding="fsdp")
    if config.sharding == "ddp" and config.method != "qlora":
        yield _of(config, "full sharding by FSDP", 3, sharding="fsdp", bucket_elements=0)
    if config.activation_checkpointing == "none":
        yield _of(config, "activation checkpointing", 4, activation_checkpointing="full")
    if is_zero(config) and config.offload == "none":
        yield _of(config, "optimizer offload", 4, offload="optimizer")


def _losses(config: TrainConfig) -> Iterator[OneChange]:
    """Losses without the full logits; whether the packages are there, the simulation says."""
    if config.loss == "default":
        yield _of(config, "Liger's loss", 2, loss="liger")
        yield _of(config, "TRL's loss in chunks", 2, loss="chunked")


def _other_result(config: TrainConfig) -> Iterator[OneChange]:
    """Changes after which numbers differ a little."""
    known = OPTIMIZERS.get(config.optimizer)
    if config.offload == "none" and known is not None and known.moments == 2:
        if not known.eight_bit:
            yield _of(config, "8-bit AdamW", 5, optimizer="adamw_bnb_8bit")
        if not is_paged(config.optimizer):
            yield _of(config, "paged 8-bit AdamW", 6, optimizer="paged_adamw_8bit")


def _several(config: TrainConfig) -> Iterator[OneChange]:
    """Several keys at once, for a rung that one change cannot save: fewer bytes, then LoRA."""
    small: dict[str, Any] = {"activation_checkpointing": "full"}
    if config.micro_batch_size not in (AUTO, 1):
        small["micro_batch_size"] = 1
    words = "activation checkpointing"
    if config.activation_checkpointing != "none":
        del small["activation_checkpointing"]
        words = "micro-batch size 1"
    if config.weights_dtype == "float32":
        small["weights_dtype"] = "bfloat16"
        words = f"bf16 weights and {words}"
        yield _of(config, words, 12, **small)
    known = OPTIMIZERS.get(config.optimizer)
    if known is not None and known.moments == 2 and not known.eight_bit and not is_zero(config):
        eight = small | {"optimizer": "adamw_bnb_8bit"}
        yield _of(config, f"8-bit AdamW, {words}", 13, **eight)
    if config.method == "full":
        lora: dict[str, Any] = small | {"method": "lora"}
        yield _of(config, f"LoRA, {words}", 14, **lora)
        quantized = lora | {"method": "qlora", "quantization": "nf4"}
        yield _of(config, f"QLoRA, {words}", 15, **quantized)
    elif config.method == "lora":
        quantized = small | {"method": "qlora", "quantization": "nf4"}
        yield _of(config, f"QLoRA, {words}", 15, **quantized)


def _all_together(config: TrainConfig) -> Iterator[OneChange]:
    """All changes that keep the result, together; then with small states, then on 4-bit weights.

    Shorter rows come last.
    """
    small: dict[str, Any] = {}
    names = []
    if config.attention == "eager":
        small["attention"] = "sdpa"
        names.append("SDPA attention")
    if config.activation_checkpointing == "none":
        small["activation_checkpointing"] = "full"
        names.append("activation checkpointing")
    if config.micro_batch_size not in (AUTO, 1):
        small["micro_batch_size"] = 1
        names.append("micro-batch size 1")
    losses = {"liger": "Liger's loss", "chunked": "TRL's loss in chunks"}
    known = OPTIMIZERS.get(config.optimizer)
    moments = known is not None and known.moments == 2 and not is_zero(config)
    for loss, name in losses.items() if config.loss == "default" else ((config.loss, None),):
        every = small | {"loss": loss}
        text = ", ".join([name, *names] if name else names)
        if text:
            yield _of(config, text, 16, **every)
        if moments and not is_paged(config.optimizer):
            paged = every | {"optimizer": "paged_adamw_8bit"}
            yield _of(config, f"paged 8-bit AdamW, {text}".removesuffix(", "), 17, **paged)
        if config.method != "qlora":
            every |= {"method": "qlora", "quantization": "nf4"}
            text = f"QLoRA, {text}".removesuffix(", ")
            yield _of(config, text, 18, **every)
        for part in (2, LEAST_PART):
            length = config.sequence_length // part // 64 * 64
            if length >= least_tokens(config.sequence_length):
                shorter = replace(config, **every, sequence_length=length)
                words = ", ".join(filter(None, (text, f"sequence length {length:,}")))
                yield OneChange(words, shorter, 150 + part, shortens=True)


def _of(config: TrainConfig, words: str, cost: int, **settings: Any) -> OneChange:
    return OneChange(words, replace(config, **settings), cost)


def _possible(found: list[OneChange], config: TrainConfig) -> tuple[OneChange, ...]:
    """Those that change something and do not contradict themselves, each once."""
    kept: dict[str, OneChange] = {}
    for one in sorted(found, key=lambda change: change.cost):
        if one.config != config and not config_faults(one.config):
            kept.setdefault(one.config.key(), one)
    return tuple(kept.values())
