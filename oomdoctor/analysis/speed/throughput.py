"""Tokens per second from measured times, their spread, and the share of the card's peak.

Model FLOPs follow appendix B of PaLM (Chowdhery et al., 2022, arXiv:2204.02311): 6N + 12LHQT per
token. Recomputed activations do not count; this distinguishes MFU from hardware utilization.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from oomdoctor.analysis.memory.shape import Shape, attended_positions, shape_of
from oomdoctor.records.capability import capability_numbers
from oomdoctor.records.configuration.adapters import compute_dtype
from oomdoctor.records.configuration.config import TrainConfig, has_reference_pass, scored_tokens
from oomdoctor.records.job.machine import GpuFacts
from oomdoctor.records.job.measurement import Timing
from oomdoctor.records.job.model import (
    ON_SOUND,
    WITHOUT_LENGTH,
    ParameterCounts,
    Task,
    sequences_in_sample,
)

_AMPERE = (8, 0)


@dataclass(frozen=True, slots=True)
class CountedModel:
    """A model whose parameters were counted, `trainable` ones with gradients; None if unknown.

    `config` is the content of its config.json.
    """

    counts: ParameterCounts
    trainable: int | None
    config: Mapping[str, Any]
    task: Task | None


def step_seconds(timing: Timing, config: TrainConfig) -> float:
    """Seconds of one optimizer step at the effective batch: every micro-step and one update."""
    return config.accumulation_steps() * timing.micro_step_s + timing.optimizer_step_s


def tokens_per_s(timing: Timing, config: TrainConfig, task: Task | None = None) -> float:
    """Tokens trained per second at the effective batch, by all GPUs together."""
    sequences = config.effective_batch_size * sequences_in_sample(config, task)
    tokens = sequences * config.sequence_length
    return tokens / step_seconds(timing, config)


def tokens_per_s_spread(timing: Timing, config: TrainConfig) -> float | None:
    """The relative spread of `tokens_per_s`; None if a part was timed less than twice.

    The spread of the micro-step counts in full for every accumulation step, because what slows a
    step (clock, heat, another process) lasts longer than one step. The two parts are independent.
    """
    if timing.micro_step_spread is None or timing.optimizer_step_spread is None:
        return None
    micro = config.accumulation_steps() * timing.micro_step_s * timing.micro_step_spread
    update = timing.optimizer_step_s * timing.optimizer_step_spread
    return math.hypot(micro, update) / step_seconds(timing, config)


def peaks_by_dtype(facts: GpuFacts) -> dict[str, float | None]:
    """The card's dense peaks in FLOP/s by the type of a product; None if unknown."""
    return {"bfloat16": facts.bf16_flops, "float16": facts.fp16_flops, "float32": facts.fp32_flops}


def peak_flops(config: TrainConfig, facts: GpuFacts | None) -> float | None:
    """The card's dense peak in FLOP/s for the type of the rung's products; None if unknown.

    Plain float32 uses the float32 rate, because PyTorch leaves TF32 off for matrix products. With
    `tf32` it is that of TF32, if the card has it.
    """
    if facts is None:
        return None
    in_tf32 = config.tf32 and compute_dtype(config) == "float32" and not lacks_tf32(facts)
    return facts.tf32_flops if in_tf32 else peaks_by_dtype(facts)[compute_dtype(config)]


def lacks_tf32(facts: GpuFacts) -> bool:
    """Whether the card has no TF32, which came with Ampere: it computes in float32 then."""
    capability = facts.compute_capability
    return capability is not None and capability_numbers(capability) < _AMPERE


def mfu(
    rate: float,
    config: TrainConfig,
    model: CountedModel | None,
    peak: float | None,
    attention: int = 12,
) -> float | None:
    """Model FLOPs utilization at `rate` tokens per second against `peak` FLOP/s of each GPU.

    None if the peak, the counts or the formula are missing (see `flops_per_token`).
    """
    if model is None or not peak:
        return None
    flops = flops_per_token(config, model, attention)
    return None if flops is None else flops * rate / (peak * config.world_size)


def flops_per_token(config: TrainConfig, model: CountedModel, attention: int = 12) -> float | None:
    """Model FLOPs of training on one token, by PaLM's appendix B.

    N counts the parameters a token is multiplied with: no input embeddings, and only the active
    routed experts. Full training costs 6N; a frozen base 4N (forward and input gradients) plus 6
    for each adapter parameter. The attention term is left out if the config does not give its
    sizes, so the figure may be too low but not too high. PaLM counts the scores of all pairs of
    tokens (`attention` is 12); a causal kernel may skip half of them (6). DPO adds the forward pass
    of its reference. None for encoder-decoders, where a token passes only one half, for models with
    a tower that text does not enter, for images, and for a frozen base with an unknown number of
    trainable parameters.
    """
    size, trainable = multiplied_parameters(model, config), model.trainable
    if size is None:
        return None
    document = config.document_length if config.packing == "packed" else config.sequence_length
    length = min(document, config.sequence_length)  # of the tokens that attend to each other
    scores = attention * _attention_products(shape_of(model.config), model.config, length)
    # GRPO's reference is asked once, when completions are generated.
    passes = config.objective == "dpo" and has_reference_pass(config)
    reference = 2 * size + scores / 3 if passes else 0.0
    if config.frozen_layers:
        if trainable is None:
            return None
        return _after_frozen(size, model.counts, trainable) + scores / 3 + reference
    if config.method == "full":
        return 6 * size + scores + reference
    return None if trainable is None else 4 * size + 6 * trainable + scores + reference


def _after_frozen(size: float, counts: ParameterCounts, trainable: int) -> float:
    """FLOPs for each token if the first layers are frozen: these have a forward pass only.

    How many of the frozen parameters are multiplied is not known, so all are taken to be.
    """
    trained = max(0.0, size - (counts.total - trainable))
    return 6 * trained + 2 * (size - trained)


def multiplied_parameters(model: CountedModel, config: TrainConfig) -> float | None:
    """The parameters that every token is multiplied with; None where `flops_per_token` is.

    DPO multiplies the output head with the tokens of completions only.
    """
    shape, counts, task = shape_of(model.config), model.counts, model.task
    if shape.encoder_decoder or shape.towers or task in ("seq2seq-lm", *ON_SOUND, *WITHOUT_LENGTH):
        return None
    size = float(counts.total - counts.embedding)
    if counts.experts:
        size -= counts.routed_experts * (1 - counts.experts_per_token / counts.experts)
    if task in ("sequence-classification", "embedding") or config.objective == "reward":
        return size
    if shape.vocabulary is None or shape.embedding is None:
        return None
    # The output head is a product even if it shares its weights with the embedding.
    share = scored_tokens(config) / config.sequence_length
    return size + share * min(counts.embedding, shape.vocabulary * shape.embedding)


def _attention_products(shape: Shape, config: Mapping[str, Any], length: int) -> float:
    """L x H x Q x T of PaLM, with T limited to the window of a layer; 0 if unknown."""
    if shape.layers is None or shape.heads is None or shape.head_width is None:
        return 0.0
    reach = attended_positions(config, length) or 0  # unknown where only some layers have a window
    return shape.heads * shape.head_width * reach
