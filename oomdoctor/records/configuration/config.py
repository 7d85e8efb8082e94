"""One rung of the ladder, which is a complete training configuration, and recipes of several.

The field names are the public keys of recipes, `--rung` and the JSON report.
`oomdoctor.records.configuration.faults` checks combinations of their values.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from dataclasses import dataclass, fields, replace
from typing import Any, Literal

from oomdoctor.records.facts import choices
from oomdoctor.records.facts.attention import ATTENTIONS
from oomdoctor.records.facts.choices import AUTO
from oomdoctor.records.facts.optimizers import DEFAULT_OPTIMIZER, OPTIMIZERS
from oomdoctor.records.facts.rollouts import ROLLOUTS


@dataclass(frozen=True, slots=True)
class TrainConfig:
    """A training configuration; every value follows transformers / peft / bitsandbytes names.

    `micro_batch_size` is "auto" in a recipe and an integer in a job. `effective_batch_size` is
    micro-batch x gradient accumulation steps x GPUs and never changes within a survey.
    """

    method: choices.Method = "full"
    """What is trained: every weight, or LoRA adapters on a frozen base (quantized for `qlora`)."""
    weights_dtype: choices.Dtype = "bfloat16"
    """The dtype the weights are loaded in, and for full fine-tuning kept in."""
    autocast_dtype: choices.AutocastDtype = "none"
    """Mixed precision: the dtype of matrix products. float16 adds the gradient scaler."""
    tf32: bool = False
    """Whether products of float32 may run in TF32, on tensor cores of Ampere and later cards."""
    fp8: choices.Fp8 = "none"
    """The library that multiplies linear layers in float8, as accelerate's recipes do."""
    optimizer: str = DEFAULT_OPTIMIZER
    """One of transformers' `OptimizerNames`."""
    optimizer_rank: int = 128
    """For GaLore and APOLLO: the rank that gradients of linear layers are projected to."""
    optimizer_in_backward: bool = False
    """Whether each parameter is updated in the backward pass, and its gradient freed at once.
    Gradients cannot be accumulated or clipped then."""
    attention: choices.Attention = "sdpa"
    """transformers' `attn_implementation`."""
    activation_checkpointing: choices.Checkpointing = "none"
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
    use_dora: bool = False
    """DoRA: each adapter also learns the length of the weight's rows, as in peft."""
    use_rslora: bool = False
    """rsLoRA: adapters are scaled by alpha / sqrt(rank), not alpha / rank, as in peft."""
    lora_target_parameters: tuple[str, ...] = ()
    """Parameters that get adapters next to the modules, such as mlp.experts.gate_up_proj of experts
    in one tensor (peft's `target_parameters`)."""
    modules_to_save: tuple[str, ...] = ()
    """Modules that are trained whole next to the adapters, such as embed_tokens and lm_head. peft
    trains a copy and keeps the original."""
    adapter_dtype: choices.AdapterDtype = "default"
    """The dtype of adapters and `modules_to_save`. By default as peft makes them: adapters in
    float32, modules as the model has them. DeepSpeed and, with quantized weights, TRL cast both."""
    frozen_layers: int = 0
    """For full fine-tuning: the embeddings and the first n layers are not trained. 0 trains all."""
    quantization: choices.Quantization = "none"
    """How the frozen base of `qlora` is stored: quantized by bitsandbytes, or as a quantized
    checkpoint has it (FP8, GPTQ, AWQ)."""
    double_quant: bool = True
    """For nf4: quantize the quantization constants as well."""
    quant_storage: choices.QuantStorage = "uint8"
    """For nf4: the dtype that holds the packed weights (`bnb_4bit_quant_storage`). FSDP and ZeRO-3
    shard them only if the other weights have the same dtype."""
    quantize_experts: bool = False
    """For nf4: quantize the experts that a layer keeps in one tensor too, as axolotl's
    `quantize_moe_experts`. A layer dequantizes all of its experts while it runs."""
    kbit_prepare: choices.KbitPrepare = "peft"
    """What is cast to fp32 before QLoRA: all that is not quantized, as peft does; the norms
    only, as TRL does; or nothing."""
    loss: choices.Loss = "default"
    """How cross-entropy is computed. `liger` and `chunked` never hold the full logits.

    `liger` is Liger's kernel, `chunked` is the loss of TRL's SFTTrainer.
    """
    objective: choices.Objective = "default"
    """What is trained for: the task of the model, or with TRL's trainers `dpo` (pairs against a
    reference model), `reward` (a score for each of a pair) or `grpo` (generated completions)."""
    reference: choices.Reference = "default"
    """The reference of `dpo`: in full fine-tuning a second model, else the base without adapters;
    or log-probabilities that were computed before. `grpo` has one only with `kl` (beta above 0)."""
    completion_length: int = 0
    """For `dpo` and `grpo`: tokens of a sequence after its prompt. 0 is half of the sequence."""
    num_generations: int = 8
    """For `grpo`: completions of a prompt."""
    vllm_gpu_memory_utilization: float = 0.0
    """For `grpo`: the share of the card that vLLM holds next to the step, as TRL's setting of this
    name with `vllm_mode="colocate"`. 0 is without vLLM, or with it on other cards."""
    vllm_enable_sleep_mode: bool = False
    """For `grpo`: vLLM gives its share back while a step runs, as TRL's setting of this name."""
    rollout_offload: choices.RolloutOffload = "none"
    """For `grpo` with vLLM: what is in host memory while it generates: the optimizer states, or
    `all`, with the weights (`offload_optimizer` and `offload_model` of ms-swift; verl's, too)."""
    rl_program: choices.RlProgram = "trl"
    """For `grpo`: the program whose step and moments these are. TRL keeps only the logits of
    completions, the others keep the logits of all tokens. It also decides where the reference is,
    and how many processes share a card."""
    critic: choices.Critic = "none"
    """For `grpo`: a critic of the model's size, which PPO trains on the same GPUs (verl, OpenRLHF):
    on the `card`, there with its `weights` alone between its steps, or in `host` memory."""
    reward_model: choices.RewardModel = "none"
    """For `grpo`: a frozen reward model of the model's size that stays on the same GPUs, in 16
    bits, as OpenRLHF has it without `reward.offload`."""
    routing: choices.Routing = "even"
    """For mixtures of experts: where tokens go. `even` as trained routers do (each expert gets
    as many), `worst` lets every token choose the same experts."""
    vision: choices.Vision = "trained"
    """For models with images and text: whether the vision encoder is trained, and gets adapters."""
    images: int = 1
    """For models with images and text: images in a sequence, whose tokens are part of it."""
    image_size: int = 0
    """For models with images and text: pixels a side. 0 is the model's own, or 448."""
    audio_seconds: int = 0
    """For models of speech: seconds of each recording. 0 is the length to which the model's feature
    extractor pads (Whisper's: 30), or 10."""
    packing: choices.Packing = "none"
    """How documents share a row: `packed` fills rows of `sequence_length` with documents, and
    `padding_free` joins the rows of a micro-batch, as TRL's settings of these names do."""
    document_length: int = 512
    """For `packed`: tokens of a document."""
    padding: choices.Padding = "none"
    """Which rows end in padding, named as tokenizers name it: none; all but the longest of their
    batch (`longest`); or every row (`max_length`), also one that is alone in its batch."""
    library: choices.Library = "transformers"
    """What loads the model and adds adapters. `unsloth` is its FastLanguageModel, with its kernels;
    for it, `offload` is its use_gradient_checkpointing="unsloth"."""
    micro_batch_size: int | Literal["auto"] = AUTO
    """Sequences in one forward pass. auto searches for the largest and the fastest."""
    sequence_length: int = 2048
    """Tokens in a sequence."""
    effective_batch_size: int = 16
    """Sequences in one optimizer step."""
    compile: bool = False
    """Whether the model runs through `torch.compile`."""
    offload: choices.Offload = "none"
    """What lives in host memory instead of on the GPU."""
    sharding: choices.Sharding = "none"
    """How a model is split over several GPUs: FSDP, DeepSpeed ZeRO, transformers' own plan of parts
    of layers (tensor_parallel), or copied whole (ddp)."""
    world_size: int = 1
    """The number of GPUs."""
    gpus_per_node: int = 8
    """The GPUs of one machine: `hybrid` shards within it, and its host memory is shared."""
    context_parallel_size: int = 1
    """GPUs that share each sequence, each with a part of its tokens: accelerate's cp_size with
    FSDP, and its sp_size (Ulysses, which shares heads in attention) with ZeRO."""
    fsdp_version: choices.FsdpVersion = 2
    """2 is `fully_shard`, 1 is `FullyShardedDataParallel`."""
    prefetch: choices.Prefetch = "default"
    """Which weights are gathered ahead: as the engine does by default, none, or also in the
    forward pass."""
    reduce_dtype: choices.ReduceDtype = "default"
    """The dtype in which gradients are reduced; by default, the one they are computed in."""
    bucket_elements: int = 0
    """Elements that DDP and ZeRO reduce or gather at once; 0 is the engine's default."""
    sync_each_batch: bool = False
    """Whether gradients are reduced after each micro-batch, not only after the last."""
    allocator: choices.AllocatorSetting = "default"
    """Settings of PyTorch's caching allocator."""

    def key(self) -> str:
        """A hash of 12 hex digits of what differs from the defaults.

        Equal configurations have equal keys, also across versions: a new key with a default changes
        no hash.
        """
        values = ((field, getattr(self, field.name)) for field in fields(self))
        settings = {field.name: value for field, value in values if value != field.default}
        content = json.dumps(settings, sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(content.encode()).hexdigest()[:12]

    def rung_key(self) -> str:
        """The key without the micro-batch size, which all tries of a search share."""
        return self.with_micro_batch(AUTO).key()

    def with_micro_batch(self, size: int | Literal["auto"]) -> TrainConfig:
        """The same configuration at another micro-batch size."""
        return replace(self, micro_batch_size=size)

    def micro_batch(self) -> int:
        """The micro-batch size, which must be known."""
        if self.micro_batch_size == AUTO:
            raise ValueError("the micro-batch size has not been chosen yet")
        return self.micro_batch_size

    def accumulation_steps(self) -> int:
        """Gradient accumulation steps; the micro-batch size must be known."""
        return self.rank_batch_size() // self.micro_batch()

    def rank_batch_size(self) -> int:
        """Sequences of one optimizer step on each GPU, or on the GPUs that share them."""
        return self.effective_batch_size // self.groups()

    def groups(self) -> int:
        """The GPUs, or groups of GPUs, that have different rows."""
        whole = self.sharding == "tensor_parallel"
        return 1 if whole else max(1, self.world_size // max(1, self.context_parallel_size))

    def rank_length(self) -> int:
        """Tokens of a sequence on each GPU."""
        return self.sequence_length // self.context_parallel_size


@dataclass(frozen=True, slots=True)
class Rung:
    """A configuration with the name that people see.

    `follows_card` is whether its 16-bit type follows the card: bfloat16, or float16 on cards that
    have no bfloat16. A user who names a type in a configuration decides it for every card.
    """

    label: str
    config: TrainConfig
    follows_card: bool = False


@dataclass(frozen=True, slots=True)
class Recipe:
    """A named ladder. `source` is where it came from: built-in, a file, or the command line.

    `typed` are the configurations that were added with --rung, as they were typed.
    """

    name: str
    description: str
    rungs: tuple[Rung, ...]
    source: str
    typed: tuple[str, ...] = ()


def chosen_by_name(typed: Iterable[str]) -> tuple[str, ...]:
    """The labels among the texts of --rung, which choose configurations of the recipe."""
    return tuple(text for text in typed if "=" not in text)


def changed_keys(before: TrainConfig, after: TrainConfig) -> dict[str, Any]:
    """The keys whose values differ, with the new values."""
    pairs = ((f.name, getattr(before, f.name), getattr(after, f.name)) for f in fields(TrainConfig))
    return {name: new for name, old, new in pairs if new != old}


def sequences_per_sample(config: TrainConfig) -> int:
    """Rows of a batch that a sample is: a pair of TRL's objectives is two."""
    return 2 if config.objective in ("dpo", "reward") else 1


def held_micro_batches(config: TrainConfig, *, on_cpu: bool) -> int:
    """Micro-batches whose tensors a device holds during a step.

    `Trainer.get_batch_samples` moves those of a whole step to the device. accelerate also reads one
    ahead (`DataLoaderShard`), which stays in host memory: on the CPU, that is the device. What GRPO
    reads are prompts without tensors.
    """
    ahead = on_cpu and config.objective != "grpo"
    return config.accumulation_steps() + ahead


def by_bitsandbytes(config: TrainConfig) -> bool:
    """Whether bitsandbytes quantizes the frozen base, which peft and TRL then prepare."""
    return config.quantization in ("nf4", "int8")


def is_cast_by_peft(config: TrainConfig) -> bool:
    """Whether peft casts what is not quantized to float32 (`prepare_model_for_kbit_training`).

    Unsloth prepares a model itself and casts norms alone.
    """
    own = config.library == "unsloth"
    return by_bitsandbytes(config) and config.kbit_prepare == "peft" and not own


def has_quantized_experts(config: TrainConfig) -> bool:
    """Whether experts that a layer keeps in one tensor are quantized like linear layers.

    bitsandbytes leaves them whole. Unsloth packs them in 4 bits (`moe_utils_bnb4bit` of its zoo)
    where it has a forward for them, and a stored checkpoint has them as its file says.
    """
    packed = config.library == "unsloth" and config.quantization == "nf4"
    return config.quantize_experts or config.quantization == "checkpoint" or packed


def trains_with_trl(config: TrainConfig) -> bool:
    """Whether TRL's trainers do the step: they have the other objectives and the loss in chunks."""
    by_trl = config.objective != "default" and not has_own_step(config)
    return by_trl or config.loss == "chunked"


def has_own_step(config: TrainConfig) -> bool:
    """Whether a program computes the step of `grpo` itself: verl, OpenRLHF and NeMo-RL."""
    return config.objective == "grpo" and ROLLOUTS[config.rl_program].scores != "completion"


def scored_tokens(config: TrainConfig) -> int:
    """Tokens of a sequence that the loss counts: those after its prompt."""
    if config.objective not in ("dpo", "grpo"):
        return config.sequence_length
    completion = config.completion_length or config.sequence_length // 2
    return min(completion, config.sequence_length - 1)


def has_reference_pass(config: TrainConfig) -> bool:
    """Whether training also runs a reference: a second model, or the base without adapters."""
    return (config.objective, config.reference) in (("dpo", "default"), ("grpo", "kl"))


def has_reference_model(config: TrainConfig) -> bool:
    """Whether a second model is on the device, whose weights are not trained."""
    on_host = config.objective == "grpo" and ROLLOUTS[config.rl_program].reference == "host"
    return config.method == "full" and has_reference_pass(config) and not on_host


def engine_bytes(config: TrainConfig, total_bytes: int) -> int:
    """What colocated vLLM takes of a card with `total_bytes` while it generates."""
    return round(config.vllm_gpu_memory_utilization * total_bytes)


def taken_bytes(config: TrainConfig, total_bytes: int) -> int:
    """What colocated vLLM holds of a card with `total_bytes` while a step runs."""
    return 0 if config.vllm_enable_sleep_mode else engine_bytes(config, total_bytes)


def documents_of(config: TrainConfig) -> int:
    """Documents of a sequence, which do not attend to each other."""
    if config.packing != "packed":
        return 1
    return -(-config.sequence_length // config.document_length)


def joins_rows(config: TrainConfig) -> bool:
    """Whether a mask covers all pairs of tokens of a whole batch, which is one row."""
    return config.packing != "none" and not ATTENTIONS[config.attention].reads_borders


def masks_pairs(config: TrainConfig) -> bool:
    """Whether attention needs a mask of all pairs of tokens in a row: it is padded or packed."""
    padded = config.padding != "none" and not ATTENTIONS[config.attention].reads_borders
    return padded or joins_rows(config)


def rows_of(config: TrainConfig) -> int:
    """Rows of a micro-batch whose size is known; a pair has two rows."""
    return config.micro_batch() * sequences_per_sample(config)


def padded_rows(config: TrainConfig) -> int:
    """Rows of a micro-batch that end in padding."""
    if config.padding == "none":
        return 0
    return rows_of(config) if config.padding == "max_length" else rows_of(config) - 1


def by_ulysses(config: TrainConfig) -> bool:
    """Whether GPUs share sequences by DeepSpeed's Ulysses."""
    return is_zero(config) and config.context_parallel_size > 1


def uses_host(config: TrainConfig) -> bool:
    """Whether a training step copies between the device and the host."""
    return config.offload != "none" or config.activation_checkpointing == "offload"


def runs_itself(config: TrainConfig) -> bool:
    """Whether a plan runs a rung where it can, instead of simulating it."""
    return config.sharding != "none" or config.library == "unsloth"


def steps_in_backward(config: TrainConfig) -> bool:
    """Whether parameters are updated in the backward pass, so that no gradients accumulate."""
    row = OPTIMIZERS.get(config.optimizer)
    return config.optimizer_in_backward or (row is not None and row.layerwise)


def adapts_all_linear(config: TrainConfig) -> bool:
    """Whether peft chooses the layers that get LoRA; Unsloth chooses others."""
    plain = config.method != "full" and config.library != "unsloth"
    return plain and config.lora_targets == "all-linear"


FSDP = ("fsdp", "fsdp_grad_op", "hybrid")
ZERO = ("zero1", "zero2", "zero3")


def says_its_gpus(config: TrainConfig) -> bool:
    """Whether it says over how many GPUs it shards, if it shards."""
    return config.sharding == "none" or config.world_size > 1


def is_fsdp(config: TrainConfig) -> bool:
    """Whether torch's FSDP shards the model."""
    return config.sharding in FSDP


def is_zero(config: TrainConfig) -> bool:
    """Whether DeepSpeed ZeRO shards the training."""
    return config.sharding in ZERO
