"""The remedies for gradients and optimizer states: other optimizers, adapters, more cards."""

from __future__ import annotations

from oomdoctor.explain.diagnosis.case import Case
from oomdoctor.explain.memory.states import STATE_BYTES
from oomdoctor.explain.remedies.row import Effect, Row, changing, difference, rule
from oomdoctor.units import format_bytes

_EIGHT_BIT = frozenset({"adamw_bnb_8bit", "adamw_8bit", "lion_8bit", "adafactor", "sgd"})


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


def _temporaries(case: Case) -> Effect:
    """_multi_tensor_adamw makes one temporary as large as the second moment."""
    states = case.term("optimizer states")
    name = case.training.optimizer if case.training else ""
    if states is None or not states.size_bytes or STATE_BYTES.get(name, (0, False))[0] != 2:
        return Effect(None, "rule", "one temporary as large as the parameters is not made")
    size = states.size_bytes // 2
    return Effect(size, "arithmetic", f"half of the states once more: {format_bytes(size)}")


STATES_ROWS: tuple[Row, ...] = (
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
)  # fmt: skip
