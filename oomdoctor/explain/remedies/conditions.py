"""When a remedy can help, beyond the cause that calls for it: a condition for each that has one."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

from oomdoctor.explain.diagnosis.case import Case
from oomdoctor.explain.diagnosis.causes.conditions import offloads, own_workers
from oomdoctor.explain.reading.logged_settings import WHOLE_NODE
from oomdoctor.explain.reading.programs import around_of
from oomdoctor.explain.remedies.text_values import (
    SHORTEST,
    device_of,
    fitting_context,
    lower_share,
    share_of,
)
from oomdoctor.explain.training.assumed import stage_of
from oomdoctor.records.facts.architectures import LIGER_FAMILIES, WITHOUT_SDPA
from oomdoctor.records.facts.optimizers import is_paged, optimizer_named
from oomdoctor.units import GIB

Condition = Callable[[Case], bool]

_LOADS = ("load", "init", "generate")  # phases in which a model comes onto the GPU
_USEFUL_SHARE = 0.05  # of the GPU: an engine with less cannot hold a model
_SEVERAL_RANKS = r"torchrun|local_rank|\brank \d|\[rank\d|nproc|deepspeed|accelerate|fsdp"


# What grows with batch and length.


def _step_is_on(case: Case) -> bool:
    """Whether memory grows with the batch in this phase; XLA compiles the whole step in `init`."""
    if case.phase == "init":
        return case.dialect in ("xla", "tpu")
    return case.phase not in ("load", "save", "optimizer", "clip")


def _many_sequences(case: Case) -> bool:
    """Whether a smaller training batch can help; evaluation and generation have their own batch."""
    if case.phase in ("eval", "generate") or not _step_is_on(case):
        return False
    if case.batch is None:
        return "batch of one" not in case.facts.mentions
    return case.batch > 1


def _long_sequences(case: Case) -> bool:
    other = case.program.images or _generates(case)
    return _step_is_on(case) and not other and (case.setup.get("sequence_length") or 2**20) > 256


def _of_unsloth(case: Case) -> bool:
    """Whether Unsloth trains: its losses are fused, and its checkpointing offloads activations."""
    return case.program.name.startswith("unsloth")


def _can_liger(case: Case) -> bool:
    """Whether Liger supports the model and its loss is not in use yet."""
    if case.setup.get("loss") == "liger" or case.resource != "gpu" or not case.writes_text:
        return False
    if not (case.in_training or case.phase == "unknown"):
        return False
    # Unsloth's losses are fused already, and torchtune has a loss for this.
    if _of_unsloth(case) or case.program.name.startswith("torchtune"):
        return False
    # They patch the loss that a model computes from labels, and preferences have none.
    if case.program.name in ("llama-factory", "axolotl") and _by_preferences(case):
        return False
    before = case.phase == "forward" and not case.innermost(r"lm_head|logits")
    if (before and not case.beyond) or case.phase in ("load", "init", "clip", "optimizer"):
        return False
    if case.incident.recomputing and not case.beyond:  # layers are recomputed after the loss
        return False
    model = case.sizes.model_type if case.sizes else (case.setup.get("model") or "").lower()
    return not model or any(name in model for name in LIGER_FAMILIES)


def _can_sdpa(case: Case) -> bool:
    """Whether eager attention is in use, and the model has sdpa."""
    if case.setup.get("attention") != "eager":
        return False
    if case.shows(rf"modeling_(?:{'|'.join(WITHOUT_SDPA)})\.py"):
        return False
    return case.sizes is None or not case.sizes.capped_scores


def trl_computes_loss(case: Case) -> bool:
    """Whether the loss is that of TRL's SFTTrainer."""
    return case.framework == "trl" and case.shows(r"sft_trainer")


def _by_preferences(case: Case) -> bool:
    """Whether it trains on preferences, as its trainer or the settings in the log say."""
    named = case.shows(r"(?i)(?:dpo|kto|orpo)_?trainer|/(?:dpo|kto|rm)/workflow")
    return named or bool(case.logged(r"^\s*(?:stage|rl): *(?:dpo|kto|orpo|simpo|ipo|rm)\b"))


def _generates(case: Case) -> bool:
    """Whether what is trained on is generated first, as by GRPO."""
    return case.program.kind == "rl" or case.shows(r"(?i)(?:grpo|rloo)_?(?:trainer|accumulated)")


def _not_checkpointed(case: Case) -> bool:
    if case.incident.recomputing or "checkpointing on" in case.facts.mentions:
        return False
    if case.setup.get("activation_checkpointing") not in (None, "none"):
        return False
    if case.training is not None and case.training.checkpoints:
        return False
    in_step = case.phase in ("forward", "loss", "backward") and case.in_training
    return case.phase == "unknown" or in_step


# Optimizer, gradients and weights.


def _full(case: Case) -> bool:
    return case.setup.get("method") in (None, "full")


def _unpaged(case: Case) -> bool:
    optimizer = case.setup.get("optimizer") or ""
    row = optimizer_named(optimizer)
    return (row is None or not row.lean) and not is_paged(optimizer)


def _wide_states(case: Case) -> bool:
    seen = case.phase in ("optimizer", "clip") or case.sizes or case.setup.get("optimizer")
    failed = case.shows("get_paged|cget_managed_ptr")  # a paged optimizer that found no memory
    return bool(seen) and _full(case) and (_unpaged(case) or failed)


def _on_device(case: Case) -> bool:
    return case.setup.get("offload") not in ("optimizer", "parameters") and _full(case)


def _launched(case: Case) -> bool:
    """Whether a launcher started a process for each of several GPUs."""
    several = (case.setup.get("world_size") or 1) > 1 or (case.incident.rank or 0) > 0
    return several or case.program.name == "megatron"


def _several_cards(case: Case) -> bool:
    several = _launched(case) or case.shows("_ddp_init_helper")
    return several and stage_of(case.setup.get("sharding")) < 3


def _hugging_face(case: Case) -> bool:
    """Whether the model comes from transformers, where adapters take one line."""
    is_named = case.sizes is not None or case.setup.get("model") is not None or not case.frames
    return is_named or case.shows(r"/(?:transformers|trl|peft)/")


def _trainable_by_lora(case: Case) -> bool:
    starts = case.phase in ("load", "init")
    return _hugging_face(case) and _full(case) and (case.in_training or starts)


def _quantisable(case: Case) -> bool:
    trains = case.in_training and case.setup.get("method") is not None
    return trains and _hugging_face(case) and case.setup.get("method") != "qlora"


def _whole_experts(case: Case) -> bool:
    """Whether QLoRA may leave the experts of a mixture as they are."""
    mixture = case.sizes is not None and case.sizes.experts > 0
    setup = case.setup
    quantizes = setup.get("method") == "qlora" and setup.get("quantization", "nf4") == "nf4"
    shards = setup.get("sharding") not in (None, "none", "ddp")
    own = setup.get("quantize_experts") or shards or _of_unsloth(case)
    return mixture and quantizes and not own


def _wide_weights(case: Case) -> bool:
    if case.program.half:
        return False
    dtype = case.setup.get("weights_dtype")
    if dtype is not None:
        return dtype == "float32"
    return case.phase in ("load", "init") and _unquantized(case)


def _unquantized(case: Case) -> bool:
    whole = case.setup.get("method") != "qlora" and case.setup.get("quantization") in (None, "none")
    asked = r"quantization_config *= *\w|load_in_[48]bit *= *True|quantized_tensor_to"
    told = "quantized" in case.facts.mentions or case.shows(asked)
    return whole and not told and case.phase in _LOADS


# Evaluation, host memory, servers and the card.


def _without_gradients(case: Case) -> bool:
    if case.phase == "eval" and case.program.name in ("pytorch", "vision"):
        return case.grads
    return not case.shows(r"train|backward|loss|transformers/generation") and case.grads


def _workers(case: Case) -> bool:
    """Whether DataLoader workers are configured or mentioned."""
    if "workers" in case.setup:
        return case.setup["workers"] > 0
    named = r"num_workers|DataLoader|data ?loader|pt_data_worker"
    if case.dialect.startswith("dataloader") or case.logged(named) or case.shows(named):
        return True
    loads = case.resource == "host" and case.phase == "data"
    return loads and not case.logged(r"\bMap\b|num_proc|okeniz")


def _scheduled(case: Case) -> bool:
    """Whether a scheduler limits the job's memory."""
    return bool(case.around & around_of("scheduler"))


def _can_ask_for_more(case: Case) -> bool:
    """Whether a scheduler's job has not asked for all the memory of its node yet."""
    return _scheduled(case) and WHOLE_NODE not in case.facts.evidence


def _contained(case: Case) -> bool:
    """Whether the text shows a container, whose limit may be what was reached."""
    return bool(case.around & around_of("container")) and not _scheduled(case)


def _can_swap(case: Case) -> bool:
    """Whether the machine is one's own, and its system takes a swap file."""
    elsewhere = {"colab", "windows", "mac", "wsl"} & case.around
    return not (elsewhere or _scheduled(case) or _contained(case))


def _several_ranks(case: Case) -> bool:
    several = (case.setup.get("world_size") or 0) > 1 or _several_cards(case)
    return several or bool(case.logged(_SEVERAL_RANKS))


def _quantizes(case: Case) -> bool:
    """Whether bitsandbytes can run on the device."""
    return device_of(case.dialect, case.message).quantizes


def _mlx_trains(case: Case) -> bool:
    return bool(case.logged(r"mlx_(?:lm|vlm)\S* --?(?:train|data)|mlx_(?:lm|vlm)\.lora|--train\b"))


def _has_gaps(case: Case) -> bool:
    """Whether reserved but unallocated memory would cover the request."""
    return (case.unallocated or 0) >= (case.requested or 1)


def _older_torch(case: Case) -> bool:
    """Whether torch is older than 2.1: its message has one bracket with all figures."""
    return bool(re.search(r"already allocated; .{0,120}(?:reserved in total|cached)", case.message))


def _gaps_cover(case: Case) -> bool:
    """Whether expandable segments exist here, are off, and would make gaps usable."""
    windows = case.shows(r'File "[A-Za-z]:[\\/]') or case.dialect != "cuda_caching_allocator"
    off = case.setup.get("allocator") != "expandable_segments"
    return _has_gaps(case) and not windows and off and not _older_torch(case)


def _of_others(case: Case) -> bool:
    """Whether processes may hold memory that are not part of this job, nor its own workers."""
    if case.program.kind == "rl" or case.ranks_share or own_workers(case):
        return False
    return bool(case.others) or case.capacity is None or case.dialect == "vllm"


WHEN: Mapping[str, Condition] = {
    "stop_others": _of_others,
    "other_card": lambda case: _of_others(case) and case.dialect != "mps",
    "raise_fraction": lambda case: case.incident.event.allowed_bytes is not None,
    "expandable_segments": _gaps_cover,
    "empty_cache": _has_gaps,
    "max_split": lambda case: _has_gaps(case) and (_older_torch(case) or case.dialect == "hip"),
    "bigger_card": lambda case: case.resource == "gpu" and case.dialect != "tpu",
    "liger": _can_liger,
    "chunked": lambda case: case.setup.get("loss") in (None, "default") and trl_computes_loss(case),
    "completion_only": lambda case: not _generates(case),
    "fewer_generations": _generates,
    "sdpa": _can_sdpa,
    "smaller_batch": _many_sequences,
    "checkpointing": lambda case: _not_checkpointed(case) and not case.one_buffer,
    "offload_activations": lambda case: (
        not _of_unsloth(case)
        and (case.batch == 1 or case.setup.get("activation_checkpointing") not in (None, "none"))
    ),
    "shorter_sequence": _long_sequences,
    "adamw_8bit": lambda case: _wide_states(case) and _quantizes(case),
    "paged_adamw": lambda case: _unpaged(case) and _quantizes(case),
    "adafactor": _wide_states,
    "offload_optimizer": _on_device,
    "optimizer_in_backward": lambda case: _full(case) and case.in_training,
    "shard": _several_cards,
    "lora": _trainable_by_lora,
    "qlora": lambda case: _quantisable(case) and _quantizes(case),
    "quantized_experts": lambda case: _whole_experts(case) and _quantizes(case),
    "half_weights": _wide_weights,
    "quantized_load": lambda case: _unquantized(case) and _quantizes(case),
    "device_map": lambda case: (
        not _launched(case) and "launcher" not in case.facts.mentions and case.dialect != "mps"
    ),
    "zero_grad_none": lambda case: not case.shows(r"transformers/trainer\.py"),
    "eval_to_host": lambda case: case.setup.get("eval_accumulation_steps") is None,
    "smaller_eval": lambda case: (
        (case.phase == "eval" or case.shows("prediction_step|evaluation_loop"))
        and case.setup.get("eval_batch_size") != 1
    ),
    "no_grad": _without_gradients,
    "more_job_memory": _can_ask_for_more,
    "more_host_memory": _can_swap,
    "larger_node": lambda case: WHOLE_NODE in case.facts.evidence,
    "wsl_limit": lambda case: "wsl" in case.around or case.dialect == "wsl_pinned",
    "shard_load": _several_ranks,
    "fewer_workers": _workers,
    "less_offload": lambda case: bool(offloads(case)),
    "sharded_save": lambda case: (
        (case.phase == "save" or "saving" in case.around) and _several_ranks(case)
    ),
    "chunk": lambda case: case.resource == "gpu" or (case.requested or GIB) >= GIB,
    "smaller_generation": lambda case: case.setup.get("eval_batch_size") != 1,
    "engine_share_lower": lambda case: lower_share(case) >= _USEFUL_SHARE,
    "engine_share_higher": lambda case: share_of(case) < 0.95,
    "engine_context": lambda case: (fits := fitting_context(case)) is None or fits >= SHORTEST,
    "mixed_precision": lambda case: (
        _step_is_on(case)
        and case.setup.get("autocast_dtype") in (None, "none")
        and not case.program.half
    ),
    "smaller_image": lambda case: case.program.kind == "diffusion" or _step_is_on(case),
    "more_limit": _contained,
    "mlx_less": _mlx_trains,
    "mlx_cache": lambda case: not _mlx_trains(case),
    "smaller_input": lambda case: case.program.name != "mlx" or _mlx_trains(case),
    "jax_unified": lambda case: case.dialect != "tpu",
    "jax_remat": lambda case: not case.shows(r"predict|generate|infer"),
    "check_labels": lambda case: not case.requested and case.program.kind not in ("engine", "rl"),
}
