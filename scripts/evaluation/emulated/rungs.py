"""The rungs that are both simulated and run on the emulated card.

Twelve architectures from 0.1B to 70B parameters; for each a few methods, optimizers, lengths and
micro-batch sizes, on cards that choose other kernels. What differs from the defaults is spelled as
on the command line: `method=lora,sequence_length=512`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields, replace
from typing import Any

from oomdoctor.records.configuration.config import TrainConfig

CARDS = ("A100 SXM4 80GB", "H100 SXM", "RTX 4090", "T4")


@dataclass(frozen=True, slots=True)
class EmulatedRung:
    """A rung of a model of the catalogue, on a card of the catalogue."""

    card: str
    model: str
    settings: str

    @property
    def name(self) -> str:
        return f"{self.card} | {self.model} | {self.settings}"

    @property
    def config(self) -> TrainConfig:
        return replace(TrainConfig(), **dict(_values(self.settings)))


# name -> what differs from the defaults
_METHODS = {
    "full": "",
    "fp32": "weights_dtype=float32",
    "amp": "weights_dtype=float32,autocast_dtype=bfloat16",
    "amp16": "weights_dtype=float32,autocast_dtype=float16",
    "ckpt": "activation_checkpointing=full",
    "every": "activation_checkpointing=every_n",
    "ckpt-attn": "activation_checkpointing=attention",
    "ckpt-mlp": "activation_checkpointing=mlp",
    "offload": "activation_checkpointing=offload",
    "eager": "attention=eager",
    "liger": "loss=liger",
    "8bit": "optimizer=adamw_bnb_8bit",
    "paged": "optimizer=paged_adamw_8bit",
    "paged32": "optimizer=paged_adamw_32bit",
    "foreach": "optimizer=adamw_torch",
    "adafactor": "optimizer=adafactor",
    "sgd": "optimizer=sgd",
    "lion": "optimizer=lion_8bit",
    "rmsprop": "optimizer=rmsprop",
    "lora": "method=lora",
    "lora-drop": "method=lora,lora_dropout=0.05",
    "lora-attn": "method=lora,lora_targets=attention",
    "lora-ckpt": "method=lora,activation_checkpointing=full",
    "qlora": "method=qlora,quantization=nf4",
    "qlora-ckpt": "method=qlora,quantization=nf4,activation_checkpointing=full",
    "qlora-paged": (
        "method=qlora,quantization=nf4,activation_checkpointing=full,optimizer=paged_adamw_8bit"
    ),
    "int8": "method=qlora,quantization=int8,activation_checkpointing=full",
    "ckpt-8bit": "activation_checkpointing=full,optimizer=adamw_bnb_8bit",
    "ckpt-paged": "activation_checkpointing=full,optimizer=paged_adamw_8bit",
    "ckpt-adafactor": "activation_checkpointing=full,optimizer=adafactor",
    "ckpt-liger": "activation_checkpointing=full,loss=liger",
    "fp16-lora": "method=lora,weights_dtype=float16,autocast_dtype=float16",
    "fp16-qlora": (
        "method=qlora,quantization=nf4,weights_dtype=float16,autocast_dtype=float16,"
        "activation_checkpointing=full"
    ),
    "expandable": "allocator=expandable_segments",
    "packed": "packing=packed,document_length=100",
    "padding-free": "packing=padding_free,method=lora",
    "dora": "method=lora,use_dora=true",
    "dora-qlora": "method=qlora,quantization=nf4,use_dora=true,activation_checkpointing=full",
    "fp8": "fp8=torchao",
    "fp8-ckpt": "fp8=torchao,activation_checkpointing=full",
    "chunked": "loss=chunked",
    "chunked-amp16": "loss=chunked,weights_dtype=float32,autocast_dtype=float16",
    "apollo": "optimizer=apollo_adamw",
    "apollo-layerwise": "optimizer=apollo_adamw_layerwise,effective_batch_size=4",
    "flex": "attention=flex_attention",
    "flex-lora": "attention=flex_attention,method=lora",
    "flex-ckpt": "attention=flex_attention,activation_checkpointing=full",
    "flex-packed": "attention=flex_attention,packing=packed,document_length=100",
    "reward": "objective=reward",
    "dpo": "objective=dpo",
    "dpo-ckpt": "objective=dpo,activation_checkpointing=full,completion_length=1024",
    "dpo-qlora": "objective=dpo,method=qlora,quantization=nf4,activation_checkpointing=full",
    "dpo-fp16": "objective=dpo,method=lora,weights_dtype=float16,autocast_dtype=float16",
    "dpo-precomputed": (
        "objective=dpo,reference=precomputed,weights_dtype=float32,autocast_dtype=bfloat16"
    ),
    "grpo-kl": "objective=grpo,reference=kl",
    "grpo-lora": "objective=grpo,method=lora,activation_checkpointing=full",
}

_A100, _H100, _4090, _T4 = CARDS
# model -> card, "method:sequence length x micro-batch" ...
_PLAN: dict[str, tuple[tuple[str, str], ...]] = {
    "HuggingFaceTB/SmolLM2-135M": (
        (_A100, "full:512x4 full:2048x8 amp:2048x2 foreach:2048x1 8bit:2048x4 adafactor:1024x4"),
        (_A100, "packed:512x4 padding-free:512x4 reward:512x4 dpo:512x4 grpo-kl:512x4"),
        (_A100, "dora:512x4 chunked:1024x4 apollo:512x4 apollo-layerwise:512x4"),
        (_A100, "flex:1024x4 flex-ckpt:1024x4 flex-packed:512x4"),
        (_H100, "fp8:512x4"),
        (_T4, "chunked-amp16:512x4"),
        (_A100, "sgd:2048x4 lion:2048x2 paged:2048x2 rmsprop:1024x2 eager:1024x2 liger:2048x4"),
        (_H100, "full:8192x1 every:2048x4 ckpt-attn:2048x2 ckpt-mlp:2048x2 lora-drop:2048x4"),
        (_T4, "fp32:512x2 amp16:1024x4 fp16-lora:1024x4 fp16-qlora:2048x2 ckpt:2048x2"),
        (_4090, "full:2048x2 ckpt:4096x4 expandable:2048x4 qlora:1024x8 int8:1024x4"),
    ),
    "Qwen/Qwen2.5-0.5B": (
        (_A100, "full:2048x2 ckpt:2048x4 amp:1024x4 paged32:2048x2 ckpt-adafactor:2048x2"),
        (_4090, "full:1024x2 ckpt-8bit:2048x4 lora:2048x2 qlora-paged:2048x4 liger:2048x4"),
        (_T4, "ckpt:512x1 ckpt:2048x1 amp16:512x1 fp16-lora:1024x2 fp16-qlora:2048x4"),
        (_H100, "full:4096x2 ckpt:8192x2"),
        (_A100, "dpo-ckpt:2048x8"),
        (_4090, "dora-qlora:1024x4 fp8:1024x2 flex-lora:2048x2"),
        (_H100, "fp8-ckpt:2048x2"),
        (_T4, "dpo-fp16:512x2"),
    ),
    "meta-llama/Llama-3.2-1B": (
        (_A100, "full:2048x2 ckpt:4096x4 lora:2048x4 qlora:512x8 8bit:2048x2"),
        (_4090, "flex:512x2"),
        (_A100, "dpo-qlora:1024x2 dpo-precomputed:1024x4 grpo-lora:1024x4"),
        (_H100, "full:4096x2 ckpt-liger:8192x4 lora-drop:2048x4 paged:2048x2"),
        (_4090, "lora-ckpt:4096x2 ckpt-paged:2048x2 qlora-ckpt:2048x8 int8:2048x2 full:512x1"),
    ),
    "meta-llama/Llama-3.1-8B": (
        (_A100, "lora:2048x2 lora-ckpt:4096x4 qlora:2048x2 ckpt-paged:2048x1 ckpt:2048x1"),
        (_H100, "lora-drop:2048x2 qlora-paged:8192x2 ckpt-8bit:4096x2 ckpt-adafactor:2048x2"),
        (_4090, "qlora-paged:2048x4 qlora:512x2 lora-ckpt:512x1 int8:1024x2"),
    ),
    "meta-llama/Llama-3.1-70B": (
        (_A100, "lora-ckpt:2048x1 qlora-ckpt:2048x1 qlora-paged:4096x2"),
        (_H100, "lora-ckpt:1024x1 qlora-ckpt:8192x1"),
    ),
    "Qwen/Qwen2.5-7B": (
        (_A100, "lora-ckpt:2048x4 qlora:1024x2 ckpt-paged:2048x2"),
        (_H100, "full:2048x1 qlora-paged:4096x4 lora-attn:2048x2"),
        (_4090, "qlora-ckpt:1024x8"),
    ),
    "Qwen/Qwen1.5-MoE-A2.7B": (
        (_A100, "lora-attn:1024x2 ckpt-paged:1024x2"),
        (_H100, "lora-attn:2048x1"),
    ),
    "mistralai/Mixtral-8x7B-v0.1": ((_H100, "qlora-ckpt:1024x1 lora-attn:1024x1"),),
    "google-bert/bert-base-uncased": (
        (_A100, "full:512x8 amp:512x4 fp32:512x8 8bit:512x8 lora:512x8"),
        (_T4, "fp32:512x2 amp16:512x8 ckpt:512x8"),
        (_4090, "ckpt:512x8 adafactor:512x4"),
    ),
    "google-t5/t5-small": (
        (_A100, "full:512x4 amp:512x4 adafactor:512x8 ckpt:512x8 fp32:512x2"),
        (_4090, "full:512x8 lora:512x4 8bit:512x4"),
        (_T4, "fp32:512x1 fp16-lora:512x4"),
    ),
    "google/gemma-2-2b": (
        (_A100, "ckpt:2048x2 lora:1024x2 qlora-paged:4096x1 eager:1024x1"),
        (_H100, "full:1024x2 ckpt-paged:8192x1"),
        (_4090, "lora-ckpt:1024x2 qlora:1024x1"),
    ),
    "mistralai/Mistral-7B-v0.1": (
        (_A100, "lora:4096x2 qlora-ckpt:8192x1 ckpt-paged:1024x2"),
        (_H100, "full:1024x1 lora-ckpt:8192x2"),
        (_4090, "qlora-paged:4096x2"),
    ),
    "microsoft/phi-2": (
        (_A100, "ckpt:2048x2 lora:1024x4 amp:512x1 paged:1024x1"),
        (_4090, "qlora-ckpt:2048x2 lora-ckpt:1024x4"),
    ),
    "openai-community/gpt2": (
        (_A100, "full:1024x4 amp:1024x4 foreach:512x8 fp32:512x4"),
        (_4090, "ckpt:1024x8 lora:1024x4"),
    ),
    "Qwen/Qwen3-0.6B": (
        (_H100, "full:2048x4 ckpt:8192x4"),
        (_4090, "lora:2048x4 ckpt-8bit:2048x8"),
    ),
}


def rungs() -> Iterator[EmulatedRung]:
    """All of them; those of a model one after the other."""
    for model, parts in _PLAN.items():
        for card, plan in parts:
            for word in plan.split():
                method, size = word.split(":")
                length, micro_batch = size.split("x")
                settings = [_METHODS[method]] if _METHODS[method] else []
                settings += [f"sequence_length={length}", f"micro_batch_size={micro_batch}"]
                yield EmulatedRung(card, model, ",".join(settings))


def _values(settings: str) -> Iterator[tuple[str, Any]]:
    kinds = {field.name: field.type for field in fields(TrainConfig)}
    for item in settings.split(","):
        key, value = item.split("=")
        yield key, _value("int" if key == "micro_batch_size" else str(kinds[key]), value)


def _value(kind: str, word: str) -> Any:
    """A word as the type of its key; names are joined by a plus."""
    if kind == "bool":
        return word == "true"
    if kind.startswith("tuple"):
        return tuple(word.split("+"))
    return {"int": int, "float": float}.get(kind, str)(word)
