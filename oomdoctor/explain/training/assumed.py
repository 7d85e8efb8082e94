"""A training with every value decided: what is known, and defaults for the rest."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from oomdoctor.analysis.memory.shape import text_part
from oomdoctor.explain.training.known import Setup
from oomdoctor.records.facts.architectures import ROLES
from oomdoctor.records.facts.dtypes import TRAINED, dtype_bytes
from oomdoctor.records.facts.optimizers import DEFAULT_OPTIMIZER

NO_CHECKPOINTING = "no activation checkpointing"


@dataclass(frozen=True, slots=True)
class Training:
    """A training with every value decided; only batch and sequence length may be unknown."""

    micro_batch_size: int | None
    sequence_length: int | None
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


def training_of(setup: Setup, config: Mapping[str, Any]) -> tuple[Training, tuple[str, ...]]:
    """The training with defaults for what is unknown, and the assumptions in words."""
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
        world_size=setup.world_size or 1,
        stage=setup.sharding(),
        master_weights=setup.zero_stage is not None and setup.autocast_dtype is not None,
        offload_optimizer=bool(setup.offload_optimizer),
    )
    return training, tuple(assumed)
