"""One rung of the ladder, which is a complete training configuration, and recipes of several.

The field names are the public keys of recipes, `--rung` and the JSON report. Combinations of values
are checked here, so that recipes, options and files report the same errors.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass, replace
from typing import Literal

from oomdoctor.records.facts.attention import ATTENTIONS
from oomdoctor.records.facts.dtypes import dtype_word
from oomdoctor.records.facts.optimizers import DEFAULT_OPTIMIZER, OPTIMIZERS
from oomdoctor.records.facts.sizes import SIZES

Method = Literal["full", "lora", "qlora"]
Dtype = Literal["bfloat16", "float32", "float16"]
AutocastDtype = Literal["none", "bfloat16", "float16"]
Attention = Literal["sdpa", "eager", "flash_attention_2", "flash_attention_3", "flex_attention"]
Checkpointing = Literal["none", "full", "every_n", "attention", "mlp", "offload"]
Quantization = Literal["none", "nf4", "int8"]
QuantStorage = Literal["uint8", "bfloat16", "float16", "float32"]
KbitPrepare = Literal["peft", "norms", "none"]
Loss = Literal["default", "liger"]
Offload = Literal["none", "optimizer", "parameters", "activations"]
Sharding = Literal[
    "none",
    "ddp",
    "fsdp",
    "fsdp_grad_op",
    "hybrid",
    "zero1",
    "zero2",
    "zero3",
    "tensor_parallel",
    "context_parallel",
    "pipeline_parallel",
]
FsdpVersion = Literal[2, 1]
Prefetch = Literal["default", "none", "forward"]
ReduceDtype = Literal["default", "float32", "bfloat16"]
AllocatorSetting = Literal["default", "expandable_segments"]
AUTO: Literal["auto"] = "auto"


@dataclass(frozen=True, slots=True)
class TrainConfig:
    """A training configuration; every value follows transformers / peft / bitsandbytes names.

    `micro_batch_size` is "auto" in a recipe and an integer in a job. `effective_batch_size` is
    micro-batch x gradient accumulation steps x GPUs and never changes within a survey.
    """

    method: Method = "full"
    """What is trained: every weight, or LoRA adapters on a frozen base (quantized for `qlora`)."""
    weights_dtype: Dtype = "bfloat16"
    """The dtype the weights are loaded in, and for full fine-tuning kept in."""
    autocast_dtype: AutocastDtype = "none"
    """Mixed precision: the dtype of matrix products. float16 adds the gradient scaler."""
    optimizer: str = DEFAULT_OPTIMIZER
    """One of transformers' `OptimizerNames`."""
    attention: Attention = "sdpa"
    """transformers' `attn_implementation`."""
    activation_checkpointing: Checkpointing = "none"
    """Which activations are recomputed in the backward pass, or moved to the host."""
    checkpoint_every: int = 2
    """For `every_n`: recompute every n-th layer."""
    lora_rank: int = 16
    """The rank of each adapter."""
    lora_alpha: int = 32
    """The scale of each adapter, as in peft."""
    lora_dropout: float = 0.0
    """Dropout before each adapter."""
    lora_targets: str | tuple[str, ...] = "all-linear"
    """The modules that get adapters: all-linear, attention, or a list of names."""
    quantization: Quantization = "none"
    """How bitsandbytes stores the frozen base of `qlora`."""
    double_quant: bool = True
    """For nf4: quantize the quantization constants as well."""
    quant_storage: QuantStorage = "uint8"
    """For nf4: the dtype that holds the packed weights (`bnb_4bit_quant_storage`). FSDP and ZeRO-3
    shard them only if it is that of the other weights."""
    kbit_prepare: KbitPrepare = "peft"
    """What is cast to fp32 before QLoRA: all that is not quantized, as peft does; the norms
    only, as TRL does; or nothing."""
    loss: Loss = "default"
    """The loss kernel. `liger` computes cross-entropy in chunks, without the full logits."""
    micro_batch_size: int | Literal["auto"] = AUTO
    """Sequences in one forward pass. auto searches for the largest and the fastest."""
    sequence_length: int = 2048
    """Tokens in a sequence."""
    effective_batch_size: int = 16
    """Sequences in one optimizer step."""
    compile: bool = False
    """Whether the model runs through `torch.compile`."""
    offload: Offload = "none"
    """What lives in host memory instead of on the GPU."""
    sharding: Sharding = "none"
    """How a model is split over several GPUs: FSDP, DeepSpeed ZeRO, or copied whole (ddp)."""
    world_size: int = 1
    """The number of GPUs."""
    gpus_per_node: int = 8
    """The GPUs of one machine: `hybrid` shards within it, and its host memory is shared."""
    fsdp_version: FsdpVersion = 2
    """2 is `fully_shard`, 1 is `FullyShardedDataParallel`."""
    prefetch: Prefetch = "default"
    """Which weights are gathered ahead: as the engine does by default, none, or also in the
    forward pass."""
    reduce_dtype: ReduceDtype = "default"
    """The dtype in which gradients are reduced; by default that of the computation."""
    bucket_elements: int = 0
    """Elements that DDP and ZeRO reduce or gather at once; 0 is the engine's default."""
    sync_each_batch: bool = False
    """Whether gradients are reduced after each micro-batch, not only after the last."""
    allocator: AllocatorSetting = "default"
    """Settings of PyTorch's caching allocator."""

    def key(self) -> str:
        """A content hash of 12 hex digits; equal configurations have equal keys."""
        content = json.dumps(asdict(self), sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(content.encode()).hexdigest()[:12]

    def rung_key(self) -> str:
        """The key without the micro-batch size, which all tries of a search share."""
        return self.with_micro_batch(AUTO).key()

    def with_micro_batch(self, size: int | Literal["auto"]) -> TrainConfig:
        """The same configuration at another micro-batch size."""
        return replace(self, micro_batch_size=size)

    def accumulation_steps(self) -> int:
        """Gradient accumulation steps; the micro-batch size must be known."""
        if self.micro_batch_size == AUTO:
            raise ValueError("the micro-batch size has not been chosen yet")
        return self.rank_batch_size() // self.micro_batch_size

    def rank_batch_size(self) -> int:
        """Sequences of one optimizer step on each GPU."""
        return self.effective_batch_size // self.world_size

    def label(self) -> str:
        """A short name of what differs from the defaults, such as `qlora-nf4+ckpt+paged8bit`."""
        if self.method == "full":
            head = "full-" + _precision(self)
        elif self.method == "lora":
            head = f"lora-r{self.lora_rank}-" + _precision(self)
        else:
            head = f"qlora-{self.quantization}-r{self.lora_rank}"
            if "float16" in (self.weights_dtype, self.autocast_dtype):
                head += "-fp16"
        parts = [head]
        if self.activation_checkpointing != "none":
            word = _CHECKPOINTING_WORDS[self.activation_checkpointing]
            parts.append(word.format(self.checkpoint_every))
        if self.optimizer != DEFAULT_OPTIMIZER:
            row = OPTIMIZERS.get(self.optimizer)
            parts.append((row and row.word) or self.optimizer)
        if self.attention != "sdpa":
            parts.append(ATTENTIONS[self.attention].word)
        if self.loss != "default":
            parts.append(self.loss)
        if self.compile:
            parts.append("compile")
        if self.offload != "none":
            parts.append(f"offload-{self.offload}")
        if self.sharding != "none":
            word = self.sharding.replace("_", "-")
            version = "1" if is_fsdp(self) and self.fsdp_version == 1 else ""
            parts.append(f"{word}{version}x{self.world_size}")
        if self.allocator != "default":
            parts.append("expandable")
        return "+".join(parts)


@dataclass(frozen=True, slots=True)
class Rung:
    """A configuration with the name that people see.

    `follows_card` is whether its 16-bit type follows the card: bfloat16, or float16 on cards that
    have no bfloat16. A user who names a type in an own rung decides it for every card.
    """

    label: str
    config: TrainConfig
    follows_card: bool = False


@dataclass(frozen=True, slots=True)
class Recipe:
    """A named ladder. `source` is where it came from: built-in, a file, or the command line.

    `typed` are the rungs that were added with --rung, as they were typed.
    """

    name: str
    description: str
    rungs: tuple[Rung, ...]
    source: str
    typed: tuple[str, ...] = ()


def uses_host(config: TrainConfig) -> bool:
    """Whether a training step copies between the device and the host."""
    return config.offload != "none" or config.activation_checkpointing == "offload"


def is_fsdp(config: TrainConfig) -> bool:
    """Whether torch's FSDP shards the model."""
    return config.sharding in ("fsdp", "fsdp_grad_op", "hybrid")


def is_zero(config: TrainConfig) -> bool:
    """Whether DeepSpeed ZeRO shards the training."""
    return config.sharding in ("zero1", "zero2", "zero3")


_CHECKPOINTING_WORDS = {
    "full": "ckpt",
    "every_n": "ckpt-every-{}",
    "attention": "ckpt-attention",
    "mlp": "ckpt-mlp",
    "offload": "ckpt-offload",
}


def _precision(config: TrainConfig) -> str:
    weights = dtype_word(config.weights_dtype)
    if config.autocast_dtype == "none":
        return weights
    return f"{weights}-amp-{dtype_word(config.autocast_dtype)}"


def config_faults(config: TrainConfig) -> list[tuple[str, str]]:
    """Contradictions in a combination of values, as (key, sentence); empty if it can be tried.

    What this machine or this version cannot do is not an error here: it depends on where the rung
    runs, so the worker reports it as `unsupported`.
    """
    faults: list[tuple[str, str]] = []
    for key in ("checkpoint_every", "lora_rank", "lora_alpha", "sequence_length"):
        if getattr(config, key) < 1:
            faults.append((key, "must be at least 1"))
    if config.effective_batch_size < 1:
        faults.append(("effective_batch_size", "must be at least 1"))
    faults += _sharding_faults(config)
    for key, size in SIZES.items():
        value = getattr(config, key)
        if isinstance(value, int) and value > size.refused:
            faults.append((key, size.refusal(value)))
    if not 0.0 <= config.lora_dropout < 1.0:
        faults.append(("lora_dropout", "must be at least 0 and below 1"))
    if not config.lora_targets:
        faults.append(("lora_targets", "is empty; name modules or use all-linear"))
    if config.micro_batch_size != AUTO:
        if config.micro_batch_size < 1:
            faults.append(("micro_batch_size", 'must be "auto" or at least 1'))
        elif config.rank_batch_size() % config.micro_batch_size:
            whole = f"the effective batch size {config.effective_batch_size}"
            if config.world_size > 1:
                whole = f"{config.rank_batch_size()}, which is {whole} on one GPU"
            faults.append(
                ("micro_batch_size", f"{config.micro_batch_size} does not divide {whole}")
            )
    if config.method == "qlora" and config.quantization == "none":
        faults.append(("quantization", 'method "qlora" needs "nf4" or "int8"'))
    if config.method != "qlora" and config.quantization != "none":
        faults.append(("quantization", f'needs method "qlora", not "{config.method}"'))
    scaled = config.autocast_dtype == "float16"
    if scaled and config.weights_dtype == "float16" and config.method == "full":
        faults.append(
            ("weights_dtype", "the gradient scaler cannot unscale float16 gradients; use float32")
        )
    return faults


MOST_GPUS = 65_536


def _sharding_faults(config: TrainConfig) -> list[tuple[str, str]]:
    """Contradictions in how a training is spread over GPUs."""
    found: list[tuple[str, str]] = []
    world = config.world_size
    if not 1 <= world <= MOST_GPUS:
        return [("world_size", f"must be from 1 to {MOST_GPUS:,}")]
    if config.gpus_per_node < 1:
        found.append(("gpus_per_node", "must be at least 1"))
    elif config.sharding == "hybrid" and (
        world <= config.gpus_per_node or world % config.gpus_per_node
    ):
        found.append(
            ("world_size", f"hybrid needs several whole nodes of {config.gpus_per_node} GPUs")
        )
    if config.prefetch == "none" and is_fsdp(config) and config.fsdp_version == 2:
        found.append(("prefetch", "FSDP 2 always gathers ahead in the backward pass"))
    if world > 1 and config.sharding == "none":
        found.append(("sharding", f"{world} GPUs need ddp, fsdp or zero1 to zero3"))
    if config.effective_batch_size % world:
        found.append(
            (
                "effective_batch_size",
                f"{config.effective_batch_size} is not a multiple of the {world} GPUs",
            )
        )
    if config.offload == "parameters" and not (is_fsdp(config) or config.sharding == "zero3"):
        found.append(("offload", 'parameters are offloaded by sharding = "fsdp" or "zero3" only'))
    if config.offload == "optimizer" and (is_fsdp(config) or config.sharding == "ddp"):
        instead = "parameters, which moves the states too" if is_fsdp(config) else "zero1 or zero2"
        found.append(
            ("offload", f"{config.sharding} cannot offload the optimizer alone: {instead}")
        )
    if config.bucket_elements < 0:
        found.append(("bucket_elements", "must be at least 0"))
    if config.bucket_elements and not (is_zero(config) or config.sharding == "ddp"):
        found.append(("bucket_elements", "needs ddp or zero1 to zero3: FSDP has no buckets"))
    if config.sharding != "none":
        found += _unused(config)
    return found


def _unused(config: TrainConfig) -> list[tuple[str, str]]:
    """Settings that the engine of a rung does not have."""
    found: list[tuple[str, str]] = []
    if config.fsdp_version == 1 and not is_fsdp(config):
        found.append(("fsdp_version", f"needs fsdp, not {config.sharding}"))
    if config.prefetch == "forward" and not is_fsdp(config):
        found.append(("prefetch", f'"forward" needs fsdp, not {config.sharding}'))
    if config.prefetch == "none" and not (is_fsdp(config) or config.sharding == "zero3"):
        found.append(("prefetch", f'"none" needs fsdp or zero3, not {config.sharding}'))
    if config.reduce_dtype != "default" and not (is_fsdp(config) or is_zero(config)):
        found.append(("reduce_dtype", f"needs fsdp or zero1 to zero3, not {config.sharding}"))
    if config.sync_each_batch and is_zero(config):
        found.append(("sync_each_batch", "needs ddp or fsdp: DeepSpeed decides by its stage"))
    return found
