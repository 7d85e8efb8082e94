"""What a GRPO job needs outside its training step: generation, and weights for the engine.

Computed, not simulated. TRL 1.16 generates the completions of a whole optimizer step at once, with
the weights and the optimizer states on the card. transformers keeps the keys and values of all of
them; while it reads the prompts, a decoder layer also has three tensors of the width of its MLP and
four of the width of the model for each token. Two runs on the emulated GPU (Qwen2 with 24 layers,
16-bit) needed 191.1 and 262.8 MiB, where this gives 190.0 and 263.5. With `use_vllm` next to the
training, vLLM takes `vllm_gpu_memory_utilization` of the card, whatever it needs: what its weights
and its profiling run leave becomes keys and values (`determine_available_memory` of its GPU
worker). In sleep mode it holds that share while it generates, and only its weights while it is
given new ones (`VLLMGeneration.sync_weights`). What the step leaves on the card is that of its
replay with an empty cache, as TRL and vLLM empty it: of TRL's own script on the emulated A100
(`trl-grpo-sleep` of the scripts of others, with a stand-in of vLLM) 7.17 GB of 7.37 GB reserved
were left, where this gives 7.18 and 7.32. Left out is what a sleeping engine keeps (CUDA graphs,
its own context), which nobody publishes.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from oomdoctor.analysis.memory.closed_form import shards_of, state_width, weights_bytes
from oomdoctor.analysis.memory.shape import attended_positions, shape_of, size_in, text_part
from oomdoctor.records.configuration.adapters import compute_dtype
from oomdoctor.records.configuration.config import (
    TrainConfig,
    engine_bytes,
    has_reference_model,
    is_zero,
    scored_tokens,
)
from oomdoctor.records.facts.architectures import family_of
from oomdoctor.records.facts.dtypes import FLOAT32_BYTES, dtype_bytes
from oomdoctor.records.facts.rollouts import ROLLOUTS
from oomdoctor.records.job.measurement import Measurement, Moment
from oomdoctor.records.job.model import ParameterCounts

_MLP_TENSORS, _HIDDEN_TENSORS = 3, 4  # of a layer that reads prompts
_SCORES_BYTES = 2 + 4 * 4  # of a next token: logits, and in float32 what samples from them


def moments_of(
    config: TrainConfig,
    model: Mapping[str, Any],
    counts: ParameterCounts | None,
    step: Measurement,
    total_bytes: int,
) -> tuple[Moment, ...]:
    """The moments of a GRPO job on a card of `total_bytes`, the training step first.

    `model` is the content of config.json, `step` what was predicted or measured of a step on that
    card. Empty for other objectives, and where the step does not say what weights and states take.
    """
    parts, device = step.breakdown, step.peak_device_bytes
    if config.objective != "grpo" or counts is None or device is None:
        return ()
    if parts is not None:
        weights, states = parts.weights_bytes, parts.optimizer_bytes
    else:  # an engine that does not say which of its memory is which
        weights, states = _at_rest(config, counts.total, step.trainable_parameters)
    engine, sleeps = engine_bytes(config, total_bytes), config.vllm_enable_sleep_mode
    outside = (step.overhead_bytes or 0) - (0 if sleeps else engine)  # context and libraries
    resting = weights + states
    if step.resting is not None:
        resting = step.resting.peak_allocated_bytes
    contexts = (processes_of(config) - 1) * outside + _cached_by_reference(config, model)
    step_bytes = step.peak_allocated_bytes
    moments = [Moment("step", device + contexts, step_bytes, 0 if sleeps else engine)]
    beside = models_beside(config, model, counts)
    outside += contexts
    if engine:
        if step.resting is not None:  # weights and states hold segments open that have free parts
            outside += (step.resting.peak_reserved_bytes or resting) - resting
        moved = states if config.rollout_offload != "none" else 0
        held = resting - moved + _handed_over(config, model, counts)
        resting -= moved + (weights if config.rollout_offload == "all" else 0)
        # Nothing is given back for an engine that is always awake: it keeps what a step reserved.
        least = 0 if sleeps else moments[0].device_bytes
        taken = max(resting + outside + engine, least)
        moments.append(Moment("generate", taken, resting, engine))
        awake = engine_weights(config, counts) if sleeps else engine
        moments.append(Moment("sync", max(held + outside + awake, least), held, awake))
    elif (kept := _generated(config, model)) is not None:
        held = resting + kept
        if config.sharding == "zero3":  # TRL's ds3_gather_for_generation
            held += counts.total * dtype_bytes(compute_dtype(config))
        moments.append(Moment("generate", held + outside, held, 0))
    return tuple(_with(moment, beside) for moment in moments)


def processes_of(config: TrainConfig) -> int:
    """The processes of a job on each card, each of which has a CUDA context."""
    facts = ROLLOUTS[config.rl_program]
    others = (has_reference_model(config), config.critic != "none", config.reward_model != "none")
    return facts.processes + (sum(others) if facts.own_processes else 0)


def _has_own_reference(config: TrainConfig) -> bool:
    """Whether a reference model has another process on the card."""
    return has_reference_model(config) and ROLLOUTS[config.rl_program].reference == "process"


def _cached_by_reference(config: TrainConfig, model: Mapping[str, Any]) -> int:
    """What the process of a reference keeps reserved: logits in 16 bits, and in float32."""
    if not _has_own_reference(config):
        return 0
    tokens = config.micro_batch() * config.sequence_length
    return (2 + FLOAT32_BYTES) * tokens * (shape_of(model).vocabulary or 0)


def _with(moment: Moment, beside: int) -> Moment:
    """The moment with what other models have on the card."""
    device, allocated = moment.device_bytes + beside, moment.allocated_bytes + beside
    return replace(moment, device_bytes=device, allocated_bytes=allocated)


def models_beside(config: TrainConfig, model: Mapping[str, Any], counts: ParameterCounts) -> int:
    """What the critic, the reward model and the reference have on each GPU all the time.

    The first two are the model with a score instead of its output head, and sharded as it is. The
    critic is trained whole, in the dtypes and with the optimizer of the model (verl 0.9, OpenRLHF
    0.11). Its own step has no scores of a vocabulary, so with the same micro-batch it needs less
    than the model's, next to the same states. A reference counts here if it has another process.
    """
    weights, states = _critic(config, model, counts)
    critic = {"card": weights + states, "weights": weights}.get(config.critic, 0)
    shards = shards_of(config) if config.sharding == "zero3" else 1
    reference = counts.total if _has_own_reference(config) else 0
    reward = _scored(model, counts) if config.reward_model != "none" else 0
    return critic + 2 * reference // shards + 2 * reward // shards


def _critic(
    config: TrainConfig, model: Mapping[str, Any], counts: ParameterCounts
) -> tuple[int, int]:
    """The weights and states of the critic on a GPU; those of DeepSpeed in float32."""
    parameters = _scored(model, counts)
    return (0, 0) if config.critic == "none" else _at_rest(config, parameters, parameters)


def _at_rest(config: TrainConfig, parameters: int, trained: int) -> tuple[int, int]:
    """The weights and states of a model on a GPU; those of DeepSpeed in float32."""
    if config.offload == "parameters":
        return 0, 0
    each = dtype_bytes(config.weights_dtype)
    copied = config.sharding in ("zero1", "zero2")  # the states alone are sharded
    weights = each * parameters // (1 if copied else shards_of(config))
    width = state_width(config.optimizer, FLOAT32_BYTES if is_zero(config) else each) or 0
    if is_zero(config):
        width += FLOAT32_BYTES  # of the master weights
    states = 0 if config.offload == "optimizer" else width * trained // shards_of(config)
    return weights, states


def _scored(model: Mapping[str, Any], counts: ParameterCounts) -> int:
    """The parameters of the model without its output head, if that is not its embedding."""
    return counts.total - (0 if is_tied(model) else counts.embedding // 2)


def is_tied(model: Mapping[str, Any]) -> bool:
    """Whether the output head is the embedding."""
    text = text_part(model)
    tied = text.get("tie_word_embeddings", model.get("tie_word_embeddings"))
    return bool(family_of(str(text.get("model_type", ""))).tied if tied is None else tied)


def engine_fault(
    config: TrainConfig, model: Mapping[str, Any], counts: ParameterCounts, total_bytes: int
) -> str | None:
    """Why vLLM does not start with its share of the card; None if nothing speaks against it."""
    share = config.vllm_gpu_memory_utilization
    least = least_share(config, model, counts, total_bytes)
    if not share or least <= share:
        return None
    needed = f"vLLM needs at least {math.ceil(100 * least) / 100:.2f} of the card"
    if least > 1:
        needed = "vLLM needs more than the card"
    return f"{needed} for its weights and one sequence; vllm_gpu_memory_utilization is {share:g}"


def least_share(
    config: TrainConfig, model: Mapping[str, Any], counts: ParameterCounts, total_bytes: int
) -> float:
    """The share of a card below which vLLM does not start.

    It needs its weights and the keys and values of one sequence; its profiling run takes more.
    """
    cache = cache_bytes(config, model, 1, config.sequence_length)
    return (engine_weights(config, counts) + (cache or 0)) / total_bytes


def engine_weights(config: TrainConfig, counts: ParameterCounts) -> int:
    """The bytes of vLLM's copy of the weights: 16 bits, or 4 bits as the training has them."""
    if config.quantization == "nf4":
        return weights_bytes(replace(config, kbit_prepare="none"), counts)
    return counts.total * 2


def cache_bytes(
    config: TrainConfig, model: Mapping[str, Any], rows: int, tokens: int
) -> int | None:
    """Keys and values of `rows` sequences at most; None if the config does not give a size."""
    shape = shape_of(model)
    heads = size_in(text_part(model), "kv_heads") or shape.heads
    if heads is None or shape.head_width is None or shape.layers is None:
        return None
    positions = attended_positions(model, tokens) or shape.layers * tokens
    each = 2 * heads * shape.head_width * dtype_bytes(compute_dtype(config))
    return round(positions * each) * rows


def _generated(config: TrainConfig, model: Mapping[str, Any]) -> int | None:
    """What transformers adds to generate the completions of a step; None if a size is not known.

    Either while it reads the prompts, or at the last token.
    """
    rows, shape = config.rank_batch_size(), shape_of(model)
    prompt = config.sequence_length - scored_tokens(config)
    at_prompt, at_end = (
        cache_bytes(config, model, rows, tokens) for tokens in (prompt, config.sequence_length)
    )
    if at_prompt is None or at_end is None:
        return None
    scores = rows * (shape.vocabulary or 0) * _SCORES_BYTES
    return max(at_prompt + _reading(config, model) * rows * prompt, at_end + scores)


def _reading(config: TrainConfig, model: Mapping[str, Any]) -> int:
    """What a layer has for each token of a prompt."""
    text = text_part(model)
    used = size_in(text, "experts_per_token") or 1
    inner = (size_in(text, "expert_intermediate") or 0) * used or size_in(text, "intermediate") or 0
    width = _MLP_TENSORS * inner + _HIDDEN_TENSORS * (shape_of(model).hidden or 0)
    return round(width * dtype_bytes(compute_dtype(config)))


def _handed_over(config: TrainConfig, model: Mapping[str, Any], counts: ParameterCounts) -> int:
    """What a GPU holds beside the weights to hand them to vLLM: copies, and a buffer for them.

    verl fills the buffer from a state_dict, in which FSDP 1 has copies of all weights if there is
    one GPU, of tied ones twice. Weights that are in host memory otherwise are back there by then.
    """
    facts, each = ROLLOUTS[config.rl_program], dtype_bytes(config.weights_dtype)
    alone = config.world_size == 1
    if facts.copies == "whole" and alone and config.method == "full":
        copies = (counts.total + counts.embedding * is_tied(model)) * each
        weights = counts.total * each if config.rollout_offload == "all" else 0
        return copies + max(facts.sync_bytes - weights, 0)
    if facts.copies == "none" or config.sharding == "zero3":
        return _gathered(config, counts) + facts.sync_bytes
    largest = counts.embedding // (1 if is_tied(model) else 2)
    return largest * each + facts.sync_bytes


def _gathered(config: TrainConfig, counts: ParameterCounts) -> int:
    """What is gathered of sharded weights at a time, to hand them to vLLM.

    With adapters, ZeRO-3 gathers the whole model, because they are merged into it first. Otherwise
    it is a parameter at a time, of which the embedding is the largest.
    """
    if config.sharding == "none" or config.sharding in ("ddp", "zero1", "zero2"):
        return 0
    whole = config.sharding == "zero3" and config.method != "full"
    return (counts.total if whole else counts.embedding) * 2
