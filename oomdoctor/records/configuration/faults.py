"""Contradictions in the keys of a rung, checked here for recipes, options and files alike.

Also what Unsloth decides itself, which compute capability a rung needs, and values that are never
supported somewhere, from `data/unsupported.toml`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal, TypeAlias

from oomdoctor.package_data import data_of, in_tuples
from oomdoctor.records.capability import capability_numbers
from oomdoctor.records.configuration.adapters import adapter_faults
from oomdoctor.records.configuration.config import (
    TrainConfig,
    has_own_step,
    is_fsdp,
    steps_in_backward,
    trains_with_trl,
)
from oomdoctor.records.configuration.keys import row_faults
from oomdoctor.records.facts.attention import lacks_capability
from oomdoctor.records.facts.choices import AUTO, SIZES
from oomdoctor.records.facts.optimizers import OPTIMIZERS

Faults: TypeAlias = Iterator[tuple[str, str]]  # (key, sentence)
_REFERENCES = {"precomputed": "dpo", "kl": "grpo"}
_CHECKPOINTING = ("none", "full", "attention", "mlp")


def config_faults(config: TrainConfig) -> list[tuple[str, str]]:
    """Contradictions in a combination of values, as (key, sentence); empty if it can be tried.

    What this machine or this version cannot do is not an error here: it depends on where the rung
    runs, so the worker reports it as `unsupported`.
    """
    faults = (_sharding_faults, _objective_faults, _size_faults, _technique_faults)
    return [*row_faults(config), *(fault for of_kind in faults for fault in of_kind(config))]


def _size_faults(config: TrainConfig) -> Faults:
    """Numbers that are out of range, and sizes that do not divide each other."""
    if config.padding != "none" and config.packing != "none":
        yield "padding", f'packing = "{config.packing}" leaves nothing to pad'
    elif config.padding != "none" and config.sequence_length < 2:
        yield "padding", "needs a sequence_length of at least 2"
    for key, size in SIZES.items():
        value = getattr(config, key)
        if isinstance(value, int) and value > size.refused:
            yield key, size.refusal(value)
    if not 0.0 <= config.lora_dropout < 1.0:
        yield "lora_dropout", "must be at least 0 and below 1"
    if not config.lora_targets:
        yield "lora_targets", "is empty; name modules or use all-linear"
    micro = config.micro_batch_size
    if micro != AUTO and micro < 1:
        yield "micro_batch_size", 'must be "auto" or at least 1'
    elif micro != AUTO and config.rank_batch_size() % micro:
        whole = f"the effective batch size {config.effective_batch_size}"
        if config.world_size > 1:
            whole = f"{config.rank_batch_size()}, which is {whole} on one GPU"
        yield "micro_batch_size", f"{micro} does not divide {whole}"


def _technique_faults(config: TrainConfig) -> Faults:
    """Techniques that belong to another method."""
    if config.method == "qlora" and config.quantization == "none":
        yield "quantization", 'method "qlora" needs "nf4", "int8" or "checkpoint"'
    yield from adapter_faults(config)
    if config.fp8 != "none" and config.sharding != "none":
        yield "fp8", f"on several GPUs has no model yet; drop {config.sharding}"
    if config.fp8 == "transformer_engine" and config.activation_checkpointing != "none":
        why = (
            "layers are computed again after Transformer Engine's autocast has ended, so torch "
            "raises CheckpointError; drop one of the two, or use torchao"
        )
        yield "fp8", f"cannot be combined with activation_checkpointing: {why}"
    row = OPTIMIZERS.get(config.optimizer)
    if row is not None and row.low_rank and config.sharding != "none":
        yield "optimizer", f"{row.name} projects whole gradients, so it needs one GPU"
    if row is not None and row.low_rank and config.optimizer_in_backward:
        yield "optimizer_in_backward", f"is not for {row.name}; use a layerwise optimizer"
    yield from unsloth_faults(config)
    if config.quantize_experts and config.sharding not in ("none", "ddp"):
        yield "quantize_experts", "experts that bitsandbytes quantizes cannot be sharded"
    if config.quantize_experts and config.lora_target_parameters:
        yield (
            "lora_target_parameters",
            "peft does not see parameters that quantize_experts replaced",
        )
    yield from _in_backward_faults(config)
    scaled = config.autocast_dtype == "float16"
    if scaled and config.weights_dtype == "float16" and config.method == "full":
        yield "weights_dtype", "the gradient scaler cannot unscale float16 gradients; use float32"


def _in_backward_faults(config: TrainConfig) -> Faults:
    """What needs gradients that a step in the backward pass has freed."""
    if not steps_in_backward(config):
        return
    key = "optimizer_in_backward" if config.optimizer_in_backward else "optimizer"
    micro, whole = config.micro_batch_size, config.effective_batch_size
    if config.sharding != "none":
        yield key, f"a step in the backward pass needs one GPU, not {config.sharding}"
    elif micro not in (AUTO, whole):
        yield key, f"gradients cannot accumulate: set effective_batch_size = {micro}, not {whole}"
    if config.autocast_dtype == "float16":
        yield key, "the gradient scaler needs all gradients together; use bfloat16"
    if config.offload == "optimizer":
        yield "offload", "an optimizer on the host needs all gradients together"


MOST_GPUS = 65_536


def _sharding_faults(config: TrainConfig) -> Faults:
    """Contradictions in how a training is spread over GPUs."""
    world, node = config.world_size, max(1, config.gpus_per_node)
    if not 1 <= world <= MOST_GPUS:
        yield "world_size", f"must be from 1 to {MOST_GPUS:,}"
        return
    if config.sharding == "hybrid" and (world <= node or world % node):
        yield "world_size", f"hybrid needs several whole nodes of {node} GPUs"
    if config.prefetch == "none" and is_fsdp(config) and config.fsdp_version == 2:
        yield "prefetch", "FSDP 2 always gathers ahead in the backward pass"
    if world > 1 and config.sharding == "none":
        yield "sharding", f"{world} GPUs need ddp, fsdp or zero1 to zero3"
    shared = max(1, config.context_parallel_size)
    if world % shared:
        yield "context_parallel_size", f"{world} GPUs are not a multiple of {shared}"
    elif config.effective_batch_size % config.groups():
        batch = config.effective_batch_size
        who = f"{world} GPUs" if shared == 1 else f"{world // shared} groups of {shared} GPUs"
        yield "effective_batch_size", f"{batch} is not a multiple of the {who}"
    if config.sharding == "tensor_parallel" and config.method == "lora":
        fails = "peft 0.21 fails on layers that tensor_parallel splits by rows (o_proj, down_proj)"
        yield "sharding", f"{fails}: use fsdp or zero3"
    elif config.sharding == "tensor_parallel" and config.method != "full":
        yield "sharding", f"tensor_parallel has no {config.method}: use fsdp or zero3"
    if shared > 1 and not world % shared:
        yield from _context_faults(config)
    if config.offload == "parameters" and not (is_fsdp(config) or config.sharding == "zero3"):
        yield "offload", 'parameters are offloaded by sharding = "fsdp" or "zero3" only'
    if config.offload == "optimizer" and (is_fsdp(config) or config.sharding == "ddp"):
        instead = "parameters, which moves the states too" if is_fsdp(config) else "zero1 or zero2"
        yield "offload", f"{config.sharding} cannot offload the optimizer alone: {instead}"


def _context_faults(config: TrainConfig) -> Faults:
    """What accelerate's context parallelism and Ulysses refuse (1.15, `ParallelismConfig`)."""
    key, parts = "context_parallel_size", 2 * config.context_parallel_size
    if config.sharding in ("zero1", "zero2", "zero3"):
        if config.attention not in ("sdpa", "flash_attention_2", "flash_attention_3"):
            yield key, f"needs attention = sdpa or FlashAttention, not {config.attention}"
        if config.objective != "default" or config.packing != "none" or config.padding != "none":
            yield (
                key,
                "with ZeRO it is for full rows, without packing, padding or another objective",
            )
        if config.sequence_length % config.context_parallel_size:
            what = f"{config.sequence_length} is not a multiple of {config.context_parallel_size}"
            yield "sequence_length", what
        return
    if config.sharding == "hybrid" or config.fsdp_version != 2:
        yield key, "needs sharding = fsdp or fsdp_grad_op with fsdp_version = 2"
    if config.attention != "sdpa":
        yield key, f"needs attention = sdpa, not {config.attention}"
    if config.sequence_length % parts:  # each GPU has a part of the front and one of the end
        yield "sequence_length", f"{config.sequence_length} is not a multiple of {parts}"


def _objective_faults(config: TrainConfig) -> Faults:
    """Settings that TRL's trainers do not have."""
    objective, completion = config.objective, config.completion_length
    wanted = _REFERENCES.get(config.reference)
    if wanted is not None and objective != wanted:
        yield "reference", f'"{config.reference}" needs objective = "{wanted}"'
    if objective in _REFERENCES.values() and not 0 <= completion < config.sequence_length:
        yield "completion_length", "must leave room for a prompt in sequence_length; 0 is half"
    if not 0.0 <= config.vllm_gpu_memory_utilization < 1.0:
        yield "vllm_gpu_memory_utilization", "must be at least 0 and below 1"
    if config.vllm_enable_sleep_mode and not config.vllm_gpu_memory_utilization:
        yield "vllm_enable_sleep_mode", "needs vllm_gpu_memory_utilization above 0"
    if config.rollout_offload != "none" and not config.vllm_gpu_memory_utilization:
        yield "rollout_offload", "needs vllm_gpu_memory_utilization above 0"
    if objective == "default":
        return
    each, whole = config.num_generations, config.effective_batch_size
    if objective == "grpo" and each < 2:
        yield "num_generations", "must be at least 2: GRPO compares completions"
    elif objective == "grpo" and whole % each:
        yield "num_generations", f"{each} does not divide the effective batch size {whole}"
    if config.loss != "default":
        yield "loss", f"TRL computes the loss of {objective} itself, without all logits"
    if config.packing == "packed" or (config.packing != "none" and not has_own_step(config)):
        yield "packing", f"TRL pads the sequences of {objective}"
    if config.padding != "none" and objective == "grpo":
        yield "padding", "a configuration of GRPO has completions of full length"
    by_trl = trains_with_trl(config) and objective != "reward"
    if by_trl and config.activation_checkpointing not in _CHECKPOINTING:
        why = "TRL turns it off for other passes and on again for all layers; use full"
        yield "activation_checkpointing", why


FP8_CAPABILITY = (8, 9)  # torch._scaled_mm: Ada, Hopper and later


def cannot_run(config: TrainConfig, capability: str | None) -> str | None:
    """Why a rung cannot run on a GPU of this compute capability; None if nothing speaks against it.

    Its contradictions come before what the card does not have.
    """
    faults = "; ".join(f"{key} {what}" for key, what in config_faults(config))
    return faults or card_lacks(config, capability)


def card_lacks(config: TrainConfig, capability: str | None) -> str | None:
    """Why a GPU of this compute capability cannot run a rung; None if it can.

    If the capability is unknown, it is assumed to be enough.
    """
    lacking = lacks_capability(config.attention, capability)
    if lacking is not None or config.fp8 == "none" or capability is None:
        return lacking
    if capability_numbers(capability) >= FP8_CAPABILITY:
        return None
    return f"fp8 needs compute capability 8.9 or higher; this card has {capability}; use fp8 = none"


_UNSLOTH = data_of("unsloth.toml")
UNSLOTH_CHECKPOINTING: dict[str, bool | str] = _UNSLOTH["checkpointing"]
UNSLOTH_CHOICES: dict[str, list[object]] = _UNSLOTH["choices"]


def unsloth_faults(config: TrainConfig) -> Faults:
    """What cannot be combined with Unsloth, as (key, sentence)."""
    if config.library != "unsloth":
        return
    for key, choices in (UNSLOTH_CHOICES | _UNSLOTH["built"]).items():
        value = getattr(config, key)
        if value not in choices:
            names = " or ".join(str(choice).lower() for choice in choices)
            yield key, f'library "unsloth" needs {names}, not {str(value).lower()}'
    own = "none" if config.method == "full" else config.weights_dtype
    if config.autocast_dtype not in ("none", own):
        yield "autocast_dtype", f'library "unsloth" itself takes {own} for this configuration'
    if config.method == "full" and config.weights_dtype == "float16":
        yield "weights_dtype", "full fine-tuning with Unsloth needs bfloat16"
    if config.lora_target_parameters:
        yield "lora_target_parameters", 'library "unsloth" itself says which parameters'
    if config.lora_targets == "attention" and config.method != "full":
        yield "lora_targets", 'library "unsloth" needs all-linear or names of modules'


Where = Literal["anywhere", "simulated", "cpu", "unified", "run", "worker"]


@dataclass(frozen=True, slots=True)
class Unsupported:
    """One row: `key` has one of `values`, or any value but the default where `values` is empty.

    `where` says which runs it holds for: all, simulations (`plan`), a CPU as the device, a GPU that
    shares the host's memory, all but simulations, or all again. The reason may use `{value}`.
    `instead` is what to do. It does not hold for the values of `sharding` in `unless`, nor where
    all of `modules` are installed.
    """

    key: str
    values: tuple[str | int, ...]
    where: Where
    reason: str
    instead: str | None = None
    unless: tuple[str, ...] = ()
    modules: tuple[str, ...] = ()

    def matches(self, value: object) -> bool:
        """Whether a rung with this value of `key` is not supported."""
        return value in self.values if self.values else value != getattr(_PLAIN, self.key)

    def text(self, value: object) -> str:
        """The reason and what to do, for people."""
        reason = self.reason.format(value=value)
        return f"{reason}; {self.instead}" if self.instead else reason


_PLAIN = TrainConfig()


@cache
def unsupported_rows() -> tuple[Unsupported, ...]:
    """The rows of `data/unsupported.toml`."""
    return tuple(map(_row, in_tuples(data_of("unsupported.toml")["rows"])))


def _row(row: dict[str, Any]) -> Unsupported:
    libraries, paged = row.pop("libraries", ()), row.pop("paged", False)
    own = tuple(
        name
        for name, optimizer in OPTIMIZERS.items()
        if optimizer.library in libraries or (paged and optimizer.paged)
    )
    return Unsupported(**{**row, "values": row.pop("values", ()) + own})


def unsupported(config: TrainConfig, where: Where, installed: Callable[[str], bool]) -> str | None:
    """Why a rung is not supported there, by the first row that says so; None if none does.

    `installed` tells whether a module is there.
    """
    for row in unsupported_rows():
        value = getattr(config, row.key)
        if row.where != where or not row.matches(value) or config.sharding in row.unless:
            continue
        if not row.modules or not all(map(installed, row.modules)):
            return row.text(value)
    return None
