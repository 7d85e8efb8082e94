"""A training with every value decided: what is known, and defaults for the rest."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from oomdoctor.analysis.memory.shape import size_in, text_part
from oomdoctor.explain.training.known import Setup
from oomdoctor.records.facts.architectures import EXPERTS_STACKED_SINCE, ROLES, experts_stacked
from oomdoctor.records.facts.dtypes import TRAINED, dtype_bytes
from oomdoctor.records.facts.optimizers import DEFAULT_OPTIMIZER

NO_CHECKPOINTING = "no activation checkpointing"


@dataclass(frozen=True, slots=True)
class Training:
    """A training with every value decided; only batch and sequence length may be unknown."""

    micro_batch_size: int | None
    sequence_length: int | None
    accumulation_steps: int
    method: str
    weights_dtype: str
    autocast: bool
    optimizer: str
    checkpointing: bool
    attention: str
    liger: bool
    lora_rank: int
    adapted: tuple[str, ...]  # the roles in ROLES whose linear layers have an adapter
    quantization: str
    kbit_prepare: str  # as the key of a rung: what is cast to 32 bits beside quantized weights
    stacked_experts: bool  # in one tensor, which bitsandbytes does not quantize
    world_size: int
    stage: int
    master_weights: bool  # DeepSpeed keeps 32-bit weights and states beside 16-bit weights
    offload_optimizer: bool

    @property
    def tokens(self) -> int | None:
        if self.micro_batch_size is None or self.sequence_length is None:
            return None
        return self.micro_batch_size * self.sequence_length

    @property
    def compute_bytes(self) -> int:
        """Bytes of an activation: 2 under autocast or in 16-bit weights."""
        return 2 if self.autocast else dtype_bytes(self.weights_dtype)

    @property
    def upcast(self) -> bool:
        """Whether the norms have 32-bit weights, so that what runs between layers has 32 bits."""
        if self.quantized_in_4_bits:
            return self.kbit_prepare != "none"
        return self.method == "full" and self.weights_dtype == "float32"

    @property
    def quantized_in_4_bits(self) -> bool:
        return self.method == "qlora" and self.quantization == "nf4"


def training_of(
    setup: Setup,
    config: Mapping[str, Any],
    framework: str | None = None,
    transformers: str | None = None,
) -> tuple[Training, tuple[str, ...]]:
    """The training with defaults for what is unknown, and the assumptions in words.

    `framework` is the library that trains: TRL prepares quantized models differently.
    `transformers` is its version, if the log names it.
    """
    assumed: list[str] = []
    text = text_part(config)

    def known(name: str, default: Any, words: str) -> Any:
        value = getattr(setup, name)
        if value is None:
            assumed.append(words)
            return default
        return value

    method = known("method", "full", "full fine-tuning (no adapter found)")
    stored = str(text.get("torch_dtype") or text.get("dtype") or "bfloat16").removeprefix("torch.")
    stored = stored if stored in TRAINED else "bfloat16"
    dtype = known("weights_dtype", stored, f"weights in {stored}, the type of the checkpoint")
    optimizer = known("optimizer", DEFAULT_OPTIMIZER, "torch's AdamW")
    on = known("checkpointing", False, NO_CHECKPOINTING)
    attention = known("attention", "sdpa", "sdpa attention")
    if setup.micro_batch_size is None:
        assumed.append("unknown micro-batch size: pass --micro-batch")
    if setup.sequence_length is None:
        assumed.append("unknown sequence length: pass --seq-len")
    stacked = experts_stacked(str(text.get("model_type")), transformers)
    if method == "qlora" and stacked is None and size_in(text, "experts"):
        assumed.append(f"experts not quantized, as with transformers {EXPERTS_STACKED_SINCE}")
    adapted = setup.lora_targets or ROLES
    if method != "full" and setup.lora_targets is None:
        assumed.append("adapters on all linear layers")
    autocast = setup.autocast_dtype in ("bfloat16", "float16")
    if method != "full" and setup.autocast_dtype is None:
        assumed.append("16-bit autocast for the adapters, as with bf16=True")
        autocast = True
    training = Training(
        micro_batch_size=setup.micro_batch_size,
        sequence_length=setup.sequence_length,
        accumulation_steps=setup.accumulation_steps or 1,
        method=method,
        weights_dtype=dtype,
        autocast=autocast,
        optimizer=optimizer,
        checkpointing=bool(on),
        attention=attention,
        liger=bool(setup.liger),
        lora_rank=setup.lora_rank or 16,
        adapted=adapted,
        quantization=setup.quantization or "nf4",
        kbit_prepare="norms" if framework == "trl" else "peft",
        stacked_experts=stacked is not False,
        world_size=setup.world_size or 1,
        stage=setup.sharding(),
        master_weights=setup.zero_stage is not None and setup.autocast_dtype is not None,
        offload_optimizer=bool(setup.offload_optimizer),
    )
    return training, tuple(assumed)
