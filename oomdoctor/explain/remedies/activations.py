"""Remedies for memory that grows with batch and length: activations, attention scores, logits."""

from __future__ import annotations

from oomdoctor.explain.diagnosis.case import Case
from oomdoctor.explain.remedies.row import (
    Effect,
    Row,
    always,
    difference,
    next_batch,
    rule,
    setting,
)
from oomdoctor.records.facts.architectures import LIGER_FAMILIES

_LANGUAGE = r"CausalLM|lm_head|/trl/|\btrl\b|sft|llama|qwen|mistral|gemma|phi-?3|loss_utils"
_NOT_LANGUAGE = r"/(?:bert|roberta|deberta\w*|vit|resnet|clip|wav2vec2|whisper)/modeling_"


def _step_is_on(case: Case) -> bool:
    """Whether memory grows with the batch in this phase; XLA compiles the whole step in `init`."""
    if case.phase == "init":
        return case.dialect in ("xla", "tpu")
    return case.phase not in ("load", "save", "optimizer", "clip")


def _many_sequences(case: Case) -> bool:
    """Whether a smaller training batch can help; evaluation and generation have their own batch."""
    if case.phase in ("eval", "generate") or not _step_is_on(case):
        return False
    return case.batch is None or case.batch > 1


def _long_sequences(case: Case) -> bool:
    return _step_is_on(case) and (case.setup.sequence_length or 2**20) > 256


def _smaller_batch(case: Case) -> Effect:
    size = next_batch(case)
    if size is None or case.batch is None:
        text = "halves everything that grows with the batch"
        return difference(case, {}, text, request=0.5)
    share = 1 - size / case.batch
    text = f"everything that grows with the batch shrinks to {size}/{case.batch}"
    return difference(case, {"micro_batch_size": size}, text, request=share)


def _shorter(case: Case) -> Effect:
    length = case.setup.sequence_length
    text = "halves everything that grows with the sequence length"
    changes = {} if length is None else {"sequence_length": max(1, length // 2)}
    return difference(case, changes, text, request=0.5)


def _can_liger(case: Case) -> bool:
    """Whether Liger supports the model and its loss is not in use yet."""
    if case.setup.loss == "liger" or case.incident.resource != "gpu" or case.shows(_NOT_LANGUAGE):
        return False
    if not (case.in_training or case.phase == "unknown") or case.framework == "vllm":
        return False
    before = case.phase == "forward" and not case.innermost(r"lm_head|logits")
    if (before and not case.beyond) or case.phase in ("load", "init", "clip", "optimizer"):
        return False
    if case.incident.recomputing and not case.beyond:  # layers are recomputed after the loss
        return False
    known = case.sizes.model_type if case.sizes else (case.setup.model or "").lower()
    if known:
        return any(name in known for name in LIGER_FAMILIES)
    return case.shows(f"(?i:{_LANGUAGE})") or bool(case.logged(_LANGUAGE))


def trl_computes_loss(case: Case) -> bool:
    """Whether the loss is that of TRL's SFTTrainer."""
    return case.framework == "trl" and case.shows(r"sft_trainer")


def _can_chunk(case: Case) -> bool:
    return case.setup.loss is None and trl_computes_loss(case)


def _liger(case: Case) -> Effect:
    text = "the full logits are never stored; same loss"
    in_loss = case.phase == "loss" or case.tensor_is("logits")
    return difference(case, {"loss": "liger"}, text, request=1.0 if in_loss else 0.0)


def _eager(case: Case) -> bool:
    """Whether eager attention runs and the model can do without it."""
    capped = case.sizes is not None and case.sizes.capped_scores
    return case.setup.attention == "eager" and not capped


def _scores(case: Case) -> Effect:
    text = "the attention scores (batch x heads x length x length) are never stored"
    seen = case.tensor_is("attention scores") or case.scores_line is not None
    share = 1.0 if seen else 0.0
    return difference(case, {"attention": "sdpa"}, text, request=share)


def _not_checkpointed(case: Case) -> bool:
    if case.setup.activation_checkpointing not in (None, "none") or case.incident.recomputing:
        return False
    if case.training is not None and case.training.checkpoints:
        return False
    return case.phase == "unknown" or (
        case.phase in ("forward", "loss", "backward") and case.in_training
    )


def _offloadable(case: Case) -> bool:
    smallest = case.batch == 1 or case.setup.activation_checkpointing not in (None, "none")
    return bool(smallest) and case.phase in ("forward", "backward", "loss")


ACTIVATION_ROWS: tuple[Row, ...] = (
    setting("liger", 0, "Compute the loss in chunks (fused linear cross-entropy)", _can_liger,
        _liger,
        {"pytorch": "from liger_kernel.transformers import LigerFusedLinearCrossEntropyLoss",
         "shell": "pip install liger-kernel"},
        "if liger-kernel supports the model; usually faster too", loss="liger"),
    setting("chunked", 0, "Compute TRL's loss in chunks", _can_chunk,
        "the full logits are never stored; same loss", {}, "needs TRL 1.4", loss="chunked"),
    setting("sdpa", 0, "Use fused attention (sdpa) instead of eager attention", _eager, _scores,
        {"transformers": 'AutoModelForCausalLM.from_pretrained(..., attn_implementation="sdpa")',
         "trl": 'SFTConfig(model_init_kwargs={"attn_implementation": "sdpa"})',
         "pytorch": "torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)"},
        'same result, faster; "flash_attention_2" does the same', attention="sdpa"),
    Row("smaller_batch", 2, "Use a smaller micro-batch$was and accumulate more", _many_sequences,
        _smaller_batch,
        {"transformers": "TrainingArguments(per_device_train_batch_size=$batch, "
                         "gradient_accumulation_steps=$steps)",
         "trl": "SFTConfig(per_device_train_batch_size=$batch, "
                "gradient_accumulation_steps=$steps)",
         "accelerate": "Accelerator(gradient_accumulation_steps=$steps); "
                       "DataLoader(..., batch_size=$batch)",
         "deepspeed": '"train_micro_batch_size_per_gpu": $batch, '
                      '"gradient_accumulation_steps": $steps',
         "lightning": "Trainer(accumulate_grad_batches=$steps); DataLoader(..., batch_size=$batch)",
         "pytorch": "DataLoader(..., batch_size=$batch); (loss / $steps).backward()"},
        "same gradients; may be slightly slower"),
    setting("checkpointing", 3, "Turn on activation checkpointing", _not_checkpointed,
        "frees 40 to 70% of the activations",
        {"accelerate": "fsdp_config: {fsdp_activation_checkpointing: true}",
         "deepspeed": "model.gradient_checkpointing_enable()",
         "pytorch": "model.gradient_checkpointing_enable()  # or torch.utils.checkpoint.checkpoint("
                    "layer, x, use_reentrant=False)"},
        "recomputes each layer in the backward pass: 20 to 35% slower, same result",
        activation_checkpointing="full"),
    setting("offload_activations", 4, "Offload activations to host memory", _offloadable,
        rule("saved activations move over PCIe; slow, same result"),
        {"pytorch": "with torch.autograd.graph.save_on_cpu(pin_memory=True): loss = model(x)"},
        offload="activations"),
    Row("shorter_sequence", 6, "Use shorter sequences (for images, fewer pixels)",
        _long_sequences, _shorter,
        {"transformers": "tokenizer(..., truncation=True, max_length=$length)",
         "trl": "SFTConfig(max_length=$length)",
         "pytorch": "input_ids = input_ids[:, :$length]"},
        "the model does not learn from tokens that are cut off"),
    Row("completion_only", 1, "Compute fewer logits: shorten pairs, precompute reference log-probs",
        lambda case: case.shows(r"dpo|kto|orpo|grpo|logprob|logp"),
        rule("both models compute logits for the prompts too, which have no labels"),
        {"trl": "DPOConfig(max_length=1024, precompute_ref_log_probs=True)"}),
    Row("chunk", 1, "Split the computation into chunks", always,
        rule("N chunks need an allocation N times smaller"),
        {"pytorch": "torch.cat([f(part) for part in x.split(SIZE)])"}),
)  # fmt: skip
