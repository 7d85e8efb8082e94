"""Remedies for gradients and optimizer states: other optimizers, adapters, sharding, offload."""

from __future__ import annotations

from oomdoctor.explain.diagnosis.case import Case
from oomdoctor.explain.remedies.row import Effect, Row, changing, difference, rule, setting
from oomdoctor.explain.training.assumed import stage_of
from oomdoctor.records.facts.optimizers import is_paged, optimizer_named
from oomdoctor.units import format_bytes


def _full(case: Case) -> bool:
    return case.setup.method in (None, "full")


def _adam(case: Case) -> bool:
    row = optimizer_named(case.setup.optimizer or "")
    return row is None or not row.lean


def _wide_states(case: Case) -> bool:
    seen = case.phase in ("optimizer", "clip") or case.sizes or case.setup.optimizer
    return bool(seen) and _adam(case) and _full(case) and not _paged(case)


def _paged(case: Case) -> bool:
    return is_paged(case.setup.optimizer or "")


def _on_device(case: Case) -> bool:
    return case.setup.offload not in ("optimizer", "parameters") and _full(case)


def _several_cards(case: Case) -> bool:
    return (case.setup.world_size or 1) > 1 and stage_of(case.setup.sharding) < 3


def _unsharded(case: Case) -> Effect:
    text = "weights, gradients and optimizer states are split across the GPUs"
    return difference(case, {"sharding": "fsdp"}, text)


def _hugging_face(case: Case) -> bool:
    """Whether the model comes from transformers, where adapters take one line."""
    known = case.sizes is not None or case.setup.model is not None or not case.frames
    return known or case.shows(r"/(?:transformers|trl|peft)/")


def _trainable_by_lora(case: Case) -> bool:
    return (
        _hugging_face(case) and _full(case) and (case.in_training or case.phase in ("load", "init"))
    )


def _quantisable(case: Case) -> bool:
    trains = case.in_training and case.setup.method is not None
    return trains and _hugging_face(case) and case.setup.method != "qlora"


def _temporaries(case: Case) -> Effect:
    """`_multi_tensor_adamw` allocates one temporary as large as the second moment."""
    states = case.term("optimizer states")
    row = optimizer_named(case.training.config.optimizer if case.training else "")
    if states is None or not states.size_bytes or row is None or row.moments != 2:
        return Effect(None, "rule", "avoids one temporary as large as the parameters")
    size = states.size_bytes // 2
    return Effect(
        size,
        "arithmetic",
        f"no temporary of half the states: {format_bytes(size)}",
    )


OPTIMIZER_ROWS: tuple[Row, ...] = (
    setting("fused_optimizer", 0, "Use the fused optimizer, which needs no temporaries",
        lambda case: case.shows(r"_foreach_|_multi_tensor"),
        lambda case: _temporaries(case),
        {"pytorch": "torch.optim.AdamW(params, fused=True)  # or foreach=False"},
        optimizer="adamw_torch_fused"),
    setting("adamw_8bit", 1, "Use 8-bit AdamW", _wide_states,
        "states take 2 bytes per parameter instead of 4 (16-bit weights) or 8 (32-bit)",
        {"pytorch": "bitsandbytes.optim.AdamW8bit(model.parameters(), lr=...)"},
        "published results show no loss of quality", optimizer="adamw_bnb_8bit"),
    setting("paged_adamw", 2, "Use paged 8-bit AdamW, which can move its states to host memory",
        lambda case: _adam(case) and not _paged(case),
        "states move to host memory when the GPU is full",
        {"pytorch": "bitsandbytes.optim.PagedAdamW8bit(model.parameters(), lr=...)"},
        optimizer="paged_adamw_8bit"),
    setting("adafactor", 5, "Use Adafactor", _wide_states, "almost no optimizer states", {},
        "a different optimizer: learning rate and results change", optimizer="adafactor"),
    Row("offload_optimizer", 4, "Keep optimizer states in host memory (ZeRO offload)", _on_device,
        changing("states move to host memory; slower optimizer step", offload="optimizer"),
        {"deepspeed": '"zero_optimization": {"stage": 2, '
                      '"offload_optimizer": {"device": "cpu", "pin_memory": true}}',
         "accelerate": "deepspeed_config: {zero_stage: 2, offload_optimizer_device: cpu}"},
        "needs 12 bytes of host memory per parameter"),
    Row("optimizer_in_backward", 4, "Update each parameter in the backward pass (batch 1)",
        lambda case: _full(case) and case.in_training,
        changing("only the gradient of one tensor is held", optimizer_in_backward=True,
                 micro_batch_size=1, effective_batch_size=1),
        {"pytorch": "parameter.register_post_accumulate_grad_hook(step)  # step: an optimizer of "
                    "this parameter, then parameter.grad = None"},
        "gradients cannot be accumulated or clipped: the effective batch size is 1"),
    Row("shard", 2, "Shard across the GPUs (FSDP or ZeRO-3)", _several_cards, _unsharded,
        {"accelerate": "distributed_type: FSDP, fsdp_config: {fsdp_version: 2}",
         "deepspeed": '"zero_optimization": {"stage": 3}',
         "transformers": 'TrainingArguments(fsdp="full_shard auto_wrap")',
         "pytorch": "torch.distributed.fsdp.fully_shard(layer)"}),
    setting("lora", 5, "Use LoRA instead of full fine-tuning", _trainable_by_lora,
        "gradients and states only for the adapters, about 1% of the parameters",
        {"trl": 'SFTTrainer(..., peft_config=LoraConfig(r=16, target_modules="all-linear"))',
         "transformers": "model = peft.get_peft_model(model, LoraConfig(r=16, "
                         'target_modules="all-linear"))',
         "pytorch": 'model = peft.get_peft_model(model, LoraConfig(target_modules="all-linear"))'},
        "a different method: close in quality on most tasks", method="lora"),
    setting("qlora", 6, "Use QLoRA: keep the base model in 4 bits", _quantisable,
        "the base model takes about 0.5 bytes per parameter",
        {"transformers": 'BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_quant_type="nf4", '
                         "bnb_4bit_compute_dtype=torch.bfloat16)",
         "trl": "ModelConfig(load_in_4bit=True, use_peft=True)"},
        "a different method, and slower", method="qlora", quantization="nf4"),
    Row("clip_loop", 1, "Clip one tensor at a time", lambda case: case.phase == "clip",
        rule("avoids temporaries for all gradients at once"),
        {"pytorch": "torch.nn.utils.clip_grad_norm_(params, 1.0, foreach=False)"}),
)  # fmt: skip
