"""A training with every value decided: what is known, and defaults for the rest."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from oomdoctor.analysis.memory.shape import size_in, text_part
from oomdoctor.explain.training.known import OF_MODEL, PROGRAM, Given, Setup
from oomdoctor.explain.training.told import roles_of
from oomdoctor.records.configuration.config import TrainConfig, is_fsdp
from oomdoctor.records.configuration.faults import config_faults
from oomdoctor.records.facts.architectures import EXPERTS_STACKED_SINCE, ROLES, experts_stacked
from oomdoctor.records.facts.choices import AUTO
from oomdoctor.records.facts.dtypes import TRAINED, checkpoint_dtype, dtype_bytes
from oomdoctor.records.facts.optimizers import DEFAULT_OPTIMIZER, canonical, optimizer_named
from oomdoctor.records.report.user_training import by_reason
from oomdoctor.stacks.partial_config import picked

_AS_SAID = (
    "lora_rank", "lora_targets", "loss", "sequence_length", "offload", "sharding", "world_size",
    "allocator", "double_quant",
)  # fmt: skip
_STAGES = {"fsdp_grad_op": 2, "fsdp": 3, "hybrid": 3, "zero1": 1, "zero2": 2, "zero3": 3}
NO_CHECKPOINTING = "no activation checkpointing"


@dataclass(frozen=True, slots=True)
class Training:
    """A training with every value decided: a rung, and the few things that no rung has.

    Only batch and sequence length may be unknown. `config.micro_batch_size` is then "auto", and
    `config.effective_batch_size` counts it as 1; without `length_known`, the length means nothing.
    `stacked_experts` are in one tensor, which bitsandbytes does not quantize.
    `mixed_by_deepspeed` is whether DeepSpeed runs it in mixed precision, at any stage of ZeRO.
    """

    config: TrainConfig
    length_known: bool = True
    stacked_experts: bool = True
    mixed_by_deepspeed: bool = False

    def changed(self, **settings: Any) -> Training:
        """The training with other values of keys of a rung."""
        return replace(self, config=replace(self.config, **settings))

    @property
    def micro_batch_size(self) -> int | None:
        size = self.config.micro_batch_size
        return size if isinstance(size, int) else None

    @property
    def sequence_length(self) -> int | None:
        return self.config.sequence_length if self.length_known else None

    @property
    def tokens(self) -> int:
        """Of one forward pass; 0 without batch and length."""
        return (self.micro_batch_size or 0) * (self.sequence_length or 0)

    @property
    def accumulation_steps(self) -> int:
        return max(1, self.config.rank_batch_size() // (self.micro_batch_size or 1))

    @property
    def autocast(self) -> bool:
        return self.config.autocast_dtype != "none"

    @property
    def checkpoints(self) -> bool:
        """Whether activations are recomputed."""
        return self.config.activation_checkpointing != "none"

    @property
    def states_on_host(self) -> bool:
        return self.config.offload in ("optimizer", "parameters")

    @property
    def stage(self) -> int:
        """The stage of ZeRO that shards as much; 0 if nothing is sharded."""
        return stage_of(self.config.sharding)

    def shards(self, stage: int) -> int:
        """How many GPUs share what this stage of ZeRO shards; 0 if it is not sharded."""
        return self.config.world_size * (self.stage >= stage)

    @property
    def master_weights(self) -> bool:
        """Whether DeepSpeed keeps 32-bit weights and states beside 16-bit weights."""
        return self.mixed_by_deepspeed and not is_fsdp(self.config)

    @property
    def adapted(self) -> tuple[str, ...]:
        """The roles in `ROLES` whose linear layers have an adapter."""
        return roles_of(self.config.lora_targets) or ROLES

    @property
    def compute_bytes(self) -> int:
        """Bytes of an activation: 2 under autocast or in 16-bit weights."""
        return 2 if self.autocast else dtype_bytes(self.config.weights_dtype)

    @property
    def upcast(self) -> bool:
        """Whether the norms have 32-bit weights, so that what runs between layers has 32 bits."""
        if self.quantized_in_4_bits:
            return self.config.kbit_prepare != "none"
        return self.config.method != "qlora" and self.config.weights_dtype == "float32"

    @property
    def quantized_in_4_bits(self) -> bool:
        return self.config.method == "qlora" and self.config.quantization == "nf4"

    @property
    def rung(self) -> TrainConfig | None:
        """The rung that a simulation on one GPU can train the same; None if there is none.

        That is so if batch or length is unknown, and for trainings that are sharded over several
        GPUs, or that DeepSpeed keeps in two precisions.
        """
        config = self.config
        if not self.tokens or optimizer_named(config.optimizer) is None:
            return None
        if config.sharding not in ("none", "ddp") or self.master_weights:
            return None
        config = replace(
            config,
            kbit_prepare=config.kbit_prepare if config.method == "qlora" else "peft",
            effective_batch_size=config.rank_batch_size(),
            sharding="none",
            world_size=1,
        )
        return None if config_faults(config) else config


def stage_of(sharding: str | None) -> int:
    """The stage of ZeRO that a `sharding` of a rung corresponds to; 0 if nothing is sharded."""
    return _STAGES.get(sharding or "none", 0)


def _of_program(setup: Setup, given: Given) -> list[str]:
    """The defaults of the file's program that count, with their reasons."""
    if given.training is None:
        return []
    counting = [
        each
        for each in given.training.assumed
        if setup.origins.get(each.key, PROGRAM) == PROGRAM
        and not (each.key in OF_MODEL and given.model is None)
        and not (each.key == "sequence_length" and each.key not in setup.values)
    ]
    return by_reason(counting, given.training.config)


def training_of(
    setup: Setup,
    config: Mapping[str, Any],
    framework: str | None = None,
    transformers: str | None = None,
    given: Given | None = None,
) -> tuple[Training, tuple[str, ...]]:
    """The training with defaults for what is unknown, and the assumptions in words.

    `framework` is the library that trains: TRL prepares quantized models differently.
    `transformers` is its version, if the log names it. `given` may have the training of a file,
    whose keys that no `setup` has count too, as far as it is of the same method.
    """
    said = setup.values
    own = None if given is None or given.training is None else given.training.config
    base = own if own is not None and own.method == said.get("method") else TrainConfig()
    assumed: list[str] = [] if given is None else _of_program(setup, given)
    text = text_part(config)

    def known(key: str, default: str, words: str) -> str:
        if key not in said:
            assumed.append(words)
        return str(said.get(key, default))

    method = known("method", "full", "full fine-tuning (no adapter found)")
    stored = checkpoint_dtype(config)
    stored = stored if stored in TRAINED else "bfloat16"
    dtype = known("weights_dtype", stored, f"weights in {stored}, the type of the checkpoint")
    optimizer = canonical(known("optimizer", DEFAULT_OPTIMIZER, "torch's AdamW"))
    checkpointing = known("activation_checkpointing", "none", NO_CHECKPOINTING)
    attention = known("attention", "sdpa", "sdpa attention")
    if "micro_batch_size" not in said:
        assumed.append("unknown micro-batch size: pass --micro-batch")
    if "sequence_length" not in said:
        assumed.append("unknown sequence length: pass --seq-len")
    stacked = experts_stacked(str(text.get("model_type")), transformers)
    if method == "qlora" and stacked is None and size_in(text, "experts"):
        assumed.append(f"experts not quantized, as with transformers {EXPERTS_STACKED_SINCE}")
    if method == "qlora" and framework == "trl":
        assumed.append("embeddings stay in 16 bits, as in TRL (peft's preparation has 32 bits)")
    if method != "full" and "lora_targets" not in said:
        assumed.append("adapters on all linear layers")
    autocast = said.get("autocast_dtype", "none")
    if method != "full" and "autocast_dtype" not in said:
        assumed.append("16-bit autocast for the adapters, as with bf16=True")
        autocast = "bfloat16"
    if base is not own:
        base = replace(base, kbit_prepare="norms" if framework == "trl" else "peft")
    batch = said.get("micro_batch_size", 1) * said.get("accumulation_steps", 1)
    keys: dict[str, Any] = dict(picked(said, _AS_SAID))
    keys |= {
        "method": method,
        "weights_dtype": dtype,
        "autocast_dtype": autocast,
        "optimizer": optimizer,
        "attention": attention,
        "activation_checkpointing": checkpointing,
        "quantization": said.get("quantization", "nf4") if method == "qlora" else "none",
        "micro_batch_size": said.get("micro_batch_size", AUTO),
        "effective_batch_size": batch * said.get("world_size", 1),
    }
    training = Training(
        replace(base, **keys),
        length_known="sequence_length" in said,
        stacked_experts=stacked is not False,
        mixed_by_deepspeed="zero_stage" in said and said.get("autocast_dtype", "none") != "none",
    )
    return training, tuple(assumed)
