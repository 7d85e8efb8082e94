"""The remedies of training on a GPU: when each can help, what it gives back, the lines to type."""

from __future__ import annotations

from oomdoctor.analysis.oom.case import Case
from oomdoctor.analysis.oom.memory_model import STATE_BYTES
from oomdoctor.analysis.oom.remedies import (
    Effect,
    Row,
    always,
    changing,
    difference,
    held,
    next_batch,
    rule,
)
from oomdoctor.analysis.oom.remedy_rows_other import OTHER_ROWS
from oomdoctor.units import format_bytes

# Families whose linear cross-entropy liger-kernel replaces.
_LIGER = (
    "llama", "mistral", "mixtral", "gemma", "qwen", "phi3", "granite", "olmo", "glm4", "smollm",
)  # fmt: skip
_EIGHT_BIT = frozenset({"adamw_bnb_8bit", "adamw_8bit", "lion_8bit", "adafactor", "sgd"})


def _many_sequences(case: Case) -> bool:
    """A batch of more than one, in a phase whose memory grows with it."""
    if case.phase in ("eval", "generate", "load", "save", "optimizer"):
        return False
    return case.batch is None or case.batch > 1


def _smaller_batch(case: Case) -> Effect:
    size = next_batch(case)
    if size is None or case.batch is None:
        text = "what grows with the batch halves"
        return difference(case, {}, text, request=0.5)
    share = 1 - size / case.batch
    text = f"what grows with the batch shrinks to {size}/{case.batch}"
    return difference(case, {"micro_batch_size": size}, text, request=share)


def _shorter(case: Case) -> Effect:
    length = case.setup.sequence_length
    text = "what grows with the length halves"
    changes = {} if length is None else {"sequence_length": max(1, length // 2)}
    return difference(case, changes, text, request=0.5)


_LANGUAGE = r"CausalLM|lm_head|/trl/|\btrl\b|sft|llama|qwen|mistral|gemma|phi-?3|loss_utils"
_NOT_LANGUAGE = r"/(?:bert|roberta|deberta\w*|vit|resnet|clip|wav2vec2|whisper)/modeling_"


def _can_liger(case: Case) -> bool:
    """A causal language model of a known family that learns with a loss that is not fused yet."""
    if case.setup.liger or case.incident.resource != "gpu" or case.shows(_NOT_LANGUAGE):
        return False
    if not (case.in_training or case.phase == "unknown") or case.framework == "vllm":
        return False
    known = case.sizes.model_type if case.sizes else (case.setup.model or "").lower()
    if known:
        return any(name in known for name in _LIGER)
    return case.shows(f"(?i:{_LANGUAGE})") or bool(case.logged(_LANGUAGE))


def _liger(case: Case) -> Effect:
    text = "the logits of all tokens never exist at once; the loss is the same"
    in_loss = case.phase == "loss" or case.tensor_is("logits")
    return difference(case, {"liger": True}, text, request=1.0 if in_loss else 0.0)


def _scores(case: Case) -> Effect:
    text = "the scores of a layer (batch x heads x length x length) never exist at once"
    share = 1.0 if case.tensor_is("attention scores") else 0.0
    return difference(case, {"attention": "sdpa"}, text, request=share)


def _unlike_windows(case: Case) -> bool:
    return not case.shows(r'File "[A-Za-z]:[\\/]') and case.dialect == "cuda_caching_allocator"


def _gaps_cover(case: Case) -> bool:
    """Only where reserved-but-unallocated memory would cover the request."""
    covers = (case.unallocated or 0) >= (case.requested or 1)
    return covers and _unlike_windows(case) and not case.setup.expandable_segments


def _full(case: Case) -> bool:
    return case.setup.method in (None, "full")


def _adam(case: Case) -> bool:
    name = case.setup.optimizer
    return name is None or name not in _EIGHT_BIT


def _wide_states(case: Case) -> bool:
    seen = case.phase in ("optimizer", "clip") or case.sizes or case.setup.optimizer
    return (
        bool(seen)
        and _adam(case)
        and _full(case)
        and not (case.setup.optimizer or "").startswith("paged")
    )


def _on_device(case: Case) -> bool:
    return not case.setup.offload_optimizer and _full(case)


def _several_cards(case: Case) -> bool:
    return (case.setup.world_size or 1) > 1 and case.setup.sharding() < 3


def _unsharded(case: Case) -> Effect:
    text = "weights, gradients and states are split over the cards"
    return difference(case, {"stage": 3, "master_weights": False}, text)


def _wide_weights(case: Case) -> bool:
    known = case.setup.weights_dtype
    if known is not None:
        return known == "float32"
    return case.phase in ("load", "init") and case.setup.method != "qlora"


def _hugging_face(case: Case) -> bool:
    """A model of transformers, for which adapters are a line to type."""
    known = case.sizes is not None or case.setup.model is not None or not case.frames
    return known or case.shows(r"/(?:transformers|trl|peft)/")


def _trainable_by_lora(case: Case) -> bool:
    return (
        _hugging_face(case) and _full(case) and (case.in_training or case.phase in ("load", "init"))
    )


def _quantisable(case: Case) -> bool:
    trains = case.in_training and case.setup.method is not None
    return trains and _hugging_face(case) and case.setup.method != "qlora"


def _not_checkpointed(case: Case) -> bool:
    if case.setup.checkpointing or case.incident.recomputing:
        return False
    return case.phase == "unknown" or (
        case.phase in ("forward", "loss", "backward") and case.in_training
    )


def _offloadable(case: Case) -> bool:
    smallest = case.batch == 1 or case.setup.checkpointing
    return bool(smallest) and case.phase in ("forward", "backward", "loss")


ROWS: tuple[Row, ...] = (
    Row("stop_others", 0, "end the other process that holds the card",
        lambda case: bool(case.others) or case.capacity is None,
        lambda case: held(case, case.others, "held by others"),
        {"shell": "nvidia-smi; fuser -v /dev/nvidia*; kill PID"},
        "fuser finds processes that nvidia-smi hides, such as a notebook of before"),
    Row("other_card", 1, "use a card that is free", lambda case: (case.others or 0) > 0,
        lambda case: held(case, case.others, "held by others on this card"),
        {"shell": "CUDA_VISIBLE_DEVICES=N python train.py"}),
    Row("raise_fraction", 0, "raise the memory fraction or drop it (now $share of the card)",
        lambda case: case.incident.event.allowed_bytes is not None,
        lambda case: held(case, max(0, (case.capacity or 0)
                                    - (case.incident.event.allowed_bytes or 0)) or None,
                          "kept back by the limit"),
        {"pytorch": "torch.cuda.set_per_process_memory_fraction(1.0)"}),
    Row("expandable_segments", 0, "let the allocator grow its segments", _gaps_cover,
        lambda case: held(case, case.unallocated, "reserved but unallocated, usable again"),
        {"shell": "export $alloc_conf=expandable_segments:True",
         "pytorch": "set it before torch is imported"}),
    Row("empty_cache", 1, "give cached blocks back between the parts that alternate",
        lambda case: (case.unallocated or 0) >= (case.requested or 1),
        rule("helps only where two parts of the program use very different sizes in turn"),
        {"pytorch": "torch.cuda.empty_cache()",
         "transformers": "TrainingArguments(torch_empty_cache_steps=10)"}),
    Row("no_cuda_graphs", 2, "do without CUDA graphs", always,
        lambda case: held(case, case.incident.event.private_pools_bytes, "in private pools"),
        {"pytorch": 'torch.compile(model, mode="default")', "vllm": "--enforce-eager"}),
    Row("pool_limit", 1, "look for a limit or a pool of its own in the program", always,
        rule("torch.cuda.MemPool, set_per_process_memory_fraction, a container's limit"),
        {"shell": "grep -rn 'MemPool\\|memory_fraction' ."}),
    # activations and logits
    Row("liger", 0, "compute the loss in chunks (fused linear cross-entropy)", _can_liger, _liger,
        {"transformers": "TrainingArguments(use_liger_kernel=True)",
         "trl": "SFTConfig(use_liger_kernel=True)",
         "pytorch": "from liger_kernel.transformers import LigerFusedLinearCrossEntropyLoss",
         "shell": "pip install liger-kernel"},
        "for models that liger-kernel knows; faster as a rule"),
    Row("sdpa", 0, "use fused attention instead of eager attention",
        lambda case: case.setup.attention == "eager", _scores,
        {"transformers": 'AutoModel.from_pretrained(..., attn_implementation="sdpa")',
         "trl": 'SFTConfig(model_init_kwargs={"attn_implementation": "sdpa"})',
         "pytorch": "torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)"}),
    Row("smaller_batch", 2, "smaller micro-batch$was, more accumulation", _many_sequences,
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
        "the same gradient; a little slower where the card was busy"),
    Row("checkpointing", 3, "activation checkpointing", _not_checkpointed,
        changing("gives back 40 to 70 % of the activations for 20 to 35 % of the speed",
                 checkpointing=True),
        {"transformers": "TrainingArguments(gradient_checkpointing=True, "
                         'gradient_checkpointing_kwargs={"use_reentrant": False})',
         "trl": "SFTConfig(gradient_checkpointing=True)",
         "accelerate": "fsdp_config: {fsdp_activation_checkpointing: true}",
         "deepspeed": "model.gradient_checkpointing_enable()",
         "pytorch": "model.gradient_checkpointing_enable()  # or torch.utils.checkpoint.checkpoint("
                    "layer, x, use_reentrant=False)"},
        "each layer is computed twice: about a third slower, the same result"),
    Row("offload_activations", 4, "keep activations in host memory", _offloadable,
        rule("what the layers keep moves over PCIe; slow, the same result"),
        {"trl": "SFTConfig(activation_offloading=True)",
         "pytorch": "with torch.autograd.graph.save_on_cpu(pin_memory=True): loss = model(x)"}),
    Row("shorter_sequence", 6, "shorter sequences (of images: fewer pixels)",
        lambda case: (case.setup.sequence_length or 2**20) > 256, _shorter,
        {"transformers": "tokenizer(..., truncation=True, max_length=$length)",
         "trl": "SFTConfig(max_length=$length)",
         "pytorch": "input_ids = input_ids[:, :$length]"},
        "what is cut off is not learnt"),
    Row("completion_only", 1, "keep logits only where there is a label",
        lambda case: case.shows(r"dpo|kto|orpo|grpo|logprob|logp"),
        rule("prompts have no label, yet their logits are made"),
        {"trl": "DPOConfig(max_prompt_length=512, precompute_ref_log_probs=True)"}),
    Row("chunk", 1, "do the computation in pieces", always,
        rule("the request falls with the number of pieces"),
        {"pytorch": "torch.cat([f(part) for part in x.split(SIZE)])"}),
    # gradients and states
    Row("fused_optimizer", 0, "use the fused optimizer, which needs no temporaries",
        lambda case: case.shows(r"_foreach_|_multi_tensor"),
        lambda case: _temporaries(case),
        {"transformers": 'TrainingArguments(optim="adamw_torch_fused")',
         "trl": 'SFTConfig(optim="adamw_torch_fused")',
         "pytorch": "torch.optim.AdamW(params, fused=True)  # or foreach=False"}),
    Row("adamw_8bit", 1, "8-bit AdamW", _wide_states,
        changing("states take 2 bytes a parameter instead of 4 (16-bit weights) or 8 (32-bit)",
                 optimizer="adamw_bnb_8bit"),
        {"transformers": 'TrainingArguments(optim="adamw_bnb_8bit")',
         "trl": 'SFTConfig(optim="adamw_bnb_8bit")',
         "pytorch": "bitsandbytes.optim.AdamW8bit(model.parameters(), lr=...)"},
        "published results show no loss of quality"),
    Row("paged_adamw", 2, "paged 8-bit AdamW, whose states may leave the card",
        lambda case: _adam(case) and not (case.setup.optimizer or "").startswith("paged"),
        changing("states move to host memory under pressure", optimizer="paged_adamw_8bit"),
        {"transformers": 'TrainingArguments(optim="paged_adamw_8bit")',
         "trl": 'SFTConfig(optim="paged_adamw_8bit")',
         "pytorch": "bitsandbytes.optim.PagedAdamW8bit(model.parameters(), lr=...)"}),
    Row("adafactor", 5, "Adafactor", _wide_states,
        changing("states nearly vanish", optimizer="adafactor"),
        {"transformers": 'TrainingArguments(optim="adafactor")',
         "trl": 'SFTConfig(optim="adafactor")'},
        "another optimizer: learning rate and result differ"),
    Row("offload_optimizer", 4, "optimizer states in host memory (ZeRO offload)", _on_device,
        changing("states move to host memory; the step gets slow", offload_optimizer=True),
        {"deepspeed": '"zero_optimization": {"stage": 2, '
                      '"offload_optimizer": {"device": "cpu", "pin_memory": true}}',
         "accelerate": "deepspeed_config: {zero_stage: 2, offload_optimizer_device: cpu}"},
        "needs 12 bytes a parameter of host memory"),
    Row("shard", 2, "shard over the cards (FSDP or ZeRO-3)", _several_cards, _unsharded,
        {"accelerate": "distributed_type: FSDP, fsdp_config: {fsdp_version: 2}",
         "deepspeed": '"zero_optimization": {"stage": 3}',
         "transformers": 'TrainingArguments(fsdp="full_shard auto_wrap")',
         "pytorch": "torch.distributed.fsdp.fully_shard(layer)"}),
    Row("lora", 5, "LoRA instead of full fine-tuning", _trainable_by_lora,
        changing("gradients and states only for the adapters, about 1 % of the parameters",
                 method="lora", master_weights=False),
        {"trl": 'SFTTrainer(..., peft_config=LoraConfig(r=16, target_modules="all-linear"))',
         "transformers": "model = peft.get_peft_model(model, LoraConfig(r=16, "
                         'target_modules="all-linear"))',
         "pytorch": 'model = peft.get_peft_model(model, LoraConfig(target_modules="all-linear"))'},
        "another training: close in quality for most tasks"),
    Row("qlora", 6, "QLoRA: the base in 4 bits", _quantisable,
        changing("the base takes about 0.5 bytes a parameter", method="qlora",
                 quantization="nf4", master_weights=False),
        {"transformers": 'BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_quant_type="nf4", '
                         "bnb_4bit_compute_dtype=torch.bfloat16)",
         "trl": "ModelConfig(load_in_4bit=True, use_peft=True)"},
        "another training, and slower"),
    Row("clip_loop", 1, "clip tensor by tensor", lambda case: case.phase == "clip",
        rule("no temporaries of all gradients at once"),
        {"pytorch": "torch.nn.utils.clip_grad_norm_(params, 1.0, foreach=False)"}),
    # weights
    Row("half_weights", 1, "load the weights in bfloat16", _wide_weights,
        changing("4 bytes a parameter become 2", weights_dtype="bfloat16"),
        {"transformers": "AutoModelForCausalLM.from_pretrained(..., dtype=torch.bfloat16)",
         "trl": 'SFTConfig(model_init_kwargs={"dtype": "bfloat16"})',
         "pytorch": "model.to(torch.bfloat16)"},
        "torch_dtype= before transformers 4.56; training in pure bfloat16 loses a little accuracy"),
    Row("quantised_load", 5, "load the weights in 4 bits",
        lambda case: case.setup.method != "qlora" and case.setup.quantization is None
        and case.phase in ("load", "init", "generate"),
        changing("0.5 bytes a parameter instead of 2", method="qlora", quantization="nf4"),
        {"transformers": "AutoModelForCausalLM.from_pretrained(..., quantization_config="
                         "BitsAndBytesConfig(load_in_4bit=True))"}),
    Row("device_map", 3, "spread the model over the cards and the host",
        lambda case: case.phase in ("load", "init", "generate") and not _distributed(case),
        rule("what does not fit on this card goes to the next one"),
        {"transformers": 'AutoModelForCausalLM.from_pretrained(..., device_map="auto")'},
        'for inference; instead of .to("cuda")'),
    Row("load_on_cpu", 0, "load into host memory first, then copy into the model",
        lambda case: case.shows(r"torch\.load\(|load_state_dict|optimizer_and_scheduler"),
        rule("the file's copy never lies on the card"),
        {"pytorch": 'torch.load(path, map_location="cpu", mmap=True)'}),
    Row("no_reference_copy", 1, "do without the second copy of the model",
        lambda case: case.shows(r"ref_model|create_reference_model|deepcopy|dpo|kto"),
        lambda case: _one_copy(case),
        {"trl": "DPOConfig(precompute_ref_log_probs=True)  # or a peft_config: the base is the "
                "reference"}),
    Row("bigger_card", 8, "a card with more memory", lambda case: case.incident.resource == "gpu",
        rule("`oomdoctor probe $model --vram SIZE` tells which size is enough"), {}),
    # growth and long batches
    Row("detach", 0, "keep numbers, not tensors: what holds a loss holds its graph", always,
        rule("each kept loss keeps all activations of its step"),
        {"pytorch": "total += loss.item()  # or loss.detach()"}),
    Row("empty_lists", 0, "move kept outputs off the card, or drop them each step", always,
        rule("a list of outputs grows by one batch a step"),
        {"pytorch": "outputs.append(output.detach().cpu())"}),
    Row("zero_grad_none", 0, "free gradients after the step",
        lambda case: not case.shows(r"transformers/trainer\.py"),
        rule("gradients that are only set to zero keep their memory"),
        {"pytorch": "optimizer.zero_grad(set_to_none=True)"}),
    Row("longest_first", 0, "find out before the run: the longest batch first", always,
        rule("if that one fits, all fit"),
        {"pytorch": 'dataset = dataset.sort("length", reverse=True)  # for one step',
         "transformers": "TrainingArguments(group_by_length=True)  # longest batch first"}),
    # evaluation
    Row("reduce_logits", 0, "reduce the logits before they are gathered",
        lambda case: case.phase == "eval",
        rule("from vocabulary-wide rows to one number a token"),
        {"transformers": "Trainer(..., preprocess_logits_for_metrics=lambda logits, labels: "
                         "logits.argmax(-1))"}),
    Row("loss_only", 1, "evaluate the loss only", lambda case: case.phase == "eval",
        rule("no predictions are kept"),
        {"transformers": "TrainingArguments(prediction_loss_only=True)"}),
    Row("eval_to_host", 2, "move predictions to host memory every few steps",
        lambda case: case.phase == "eval" and case.setup.eval_accumulation_steps is None,
        rule("the card is relieved, host memory fills instead"),
        {"transformers": "TrainingArguments(eval_accumulation_steps=8)"}),
    Row("smaller_eval", 1, "smaller evaluation batch",
        lambda case: case.phase == "eval" and case.setup.eval_batch_size != 1,
        lambda case: difference(case, {}, "no gradient is involved; only speed changes", 0.5),
        {"transformers": "TrainingArguments(per_device_eval_batch_size=1)",
         "trl": "SFTConfig(per_device_eval_batch_size=1)",
         "pytorch": "DataLoader(eval_set, batch_size=1)"},
        "the default is 8, whatever the training batch"),
    Row("no_grad", 0, "evaluate and generate without gradients",
        lambda case: not case.shows(r"train|backward|loss|transformers/generation") and case.grads,
        rule("otherwise what the layers make is kept for a backward pass that never comes"),
        {"pytorch": "with torch.inference_mode(): ..."}),
)  # fmt: skip

TABLE = {row.key: row for row in (*ROWS, *OTHER_ROWS)}


def _distributed(case: Case) -> bool:
    return (case.setup.world_size or 1) > 1


def _temporaries(case: Case) -> Effect:
    """_multi_tensor_adamw makes one temporary as large as the second moment."""
    states = case.term("optimizer states")
    name = case.training.optimizer if case.training else ""
    if states is None or not states.size_bytes or STATE_BYTES.get(name, (0, False))[0] != 2:
        return Effect(None, "rule", "one temporary as large as the parameters is not made")
    size = states.size_bytes // 2
    return Effect(size, "arithmetic", f"half of the states once more: {format_bytes(size)}")


def _one_copy(case: Case) -> Effect:
    weights = case.term("weights") or case.term("quantised weights")
    if weights is None:
        return Effect(None, "rule", "one copy of the weights less")
    return Effect(weights.size_bytes, "arithmetic", f"one copy less: {weights.text()}")
