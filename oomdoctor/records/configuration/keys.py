"""The keys of a rung: what each is called, when it means something, and what it does to memory.

A key is a field of `TrainConfig`, whose docstring says what it is, and one row here. The rows stand
in the order of the words of a label.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, Literal, TypeAlias

from oomdoctor.records.configuration.config import TrainConfig, is_fsdp, is_zero
from oomdoctor.records.facts.attention import ATTENTIONS
from oomdoctor.records.facts.choices import AutocastDtype, Method, Objective
from oomdoctor.records.facts.dtypes import dtype_word
from oomdoctor.records.facts.optimizers import OPTIMIZERS

Group = Literal["Method", "Adapters", "Memory and speed", "Objective", "Data", "GPUs", "Sizes"]
Word: TypeAlias = str | Mapping[Any, str] | Callable[[TrainConfig], str]
Order: TypeAlias = Literal["more", "less", "none"] | tuple[Any, ...]

_ANY = ("trainer", "trl", "pytorch", "unsloth")
_TRAINER = ("trainer", "trl")  # their Trainer has the Accelerator that engines need
_BY_LAUNCHER = "accelerate launch or torchrun says it"
_ADAPTERS = 'needs method "lora" or "qlora"'
MEANS_NOTHING = "means nothing with"


@dataclass(frozen=True, slots=True)
class Key:
    """A key of a rung.

    - `word`: what a label says where the value is not the default: a text for `{}`, a text by
      value, or a function. None if the head of the label or the word of another key says it.
    - `means`: whether the key means anything beside the other keys. Where it does not, its value
      is `settles`, by default the default of the field.
    - `needs`: why another value is refused there. Without it, the value is dropped; a rung that
      names the key is refused all the same (`dropped_faults`).
    - `least`: the smallest number that is accepted.
    - `memory`: what a larger value surely does to memory at each moment of a step (`more`, `less`),
      or the values from those that need least to those that need most; `none` if it changes no
      memory. None if nothing is certain.
    - `names`: what programs and people call the key; `values`: what they call its values.
    - `scripts`: the kinds of scripts that can say it. `elsewhere`: what says it, if that is not the
      file of a program.
    - `instead`: what is taken where a program combines the key with what a rung cannot.
    """

    name: str
    group: Group
    word: Word | None = "{name}-{}"
    means: Callable[[TrainConfig], bool] = lambda config: True
    settles: Callable[[TrainConfig], Any] | None = None
    needs: str | Callable[[TrainConfig], str | None] | None = None
    least: int | None = None
    memory: Order | None = None
    names: tuple[str, ...] = ()
    values: Mapping[str, tuple[str, ...]] | None = None
    scripts: tuple[str, ...] = ()
    elsewhere: str | None = None
    instead: tuple[Any, ...] = ()

    def default(self) -> Any:
        """The value of a rung that does not name the key."""
        return getattr(_PLAIN, self.name)

    def said(self, config: TrainConfig) -> str:
        """The word in a label, if the value is not the default; empty if there is none."""
        value = getattr(config, self.name)
        if self.word is None or value == self.default():
            return ""
        if callable(self.word):
            return self.word(config)
        if isinstance(self.word, str):
            return self.word.format(value, name=self.name.replace("_", "-"))
        return self.word.get(value, str(value).replace("_", "-"))

    def fault(self, config: TrainConfig) -> str | None:
        """Why the value is refused beside the other keys, as far as the row says."""
        value = getattr(config, self.name)
        if self.least is not None and value < self.least:
            return f"must be at least {self.least}"
        if self.needs is None or value == self.default() or self.means(config):
            return None
        if callable(self.needs):
            return self.needs(config)
        return self.needs.format(config=config)


@lru_cache(maxsize=4096)
def settled(config: TrainConfig) -> TrainConfig:
    """The same training with each key that means nothing in it at its default."""
    for key in KEYS.values():  # a row comes after those that decide whether it means something
        if not key.means(config):
            value = key.default() if key.settles is None else key.settles(config)
            config = replace(config, **{key.name: value})
    return config


def usual_autocast(method: Method, objective: Objective = "default") -> AutocastDtype:
    """The mixed precision that ladders train a method with, beside weights in bfloat16."""
    return "none" if (method, objective) == ("full", "default") else "bfloat16"


def row_faults(config: TrainConfig) -> list[tuple[str, str]]:
    """What the rows of the keys refuse, as (key, sentence)."""
    return [(key.name, fault) for key in KEYS.values() if (fault := key.fault(config)) is not None]


def dropped_faults(config: TrainConfig, named: Iterable[str]) -> list[tuple[str, str]]:
    """The named keys whose values would be dropped, as (key, what makes it mean nothing)."""
    rest = settled(config)
    lost = [KEYS[name] for name in named if getattr(config, name) != getattr(rest, name)]
    return [(key.name, f"{MEANS_NOTHING} {_decided_by(key, rest)}") for key in lost]


def _decided_by(key: Key, config: TrainConfig) -> str:
    """`method "full"`: the key that decides whether another one means something."""
    watched: Any = _Watched(config)
    key.means(watched)
    return f'{watched.last} "{getattr(config, watched.last)}"'


class _Watched:
    """A configuration that knows which of its keys was read last."""

    def __init__(self, config: TrainConfig) -> None:
        self._config, self.last = config, ""

    def __getattr__(self, name: str) -> Any:
        self.last = name
        return getattr(self._config, name)


def low_rank(config: TrainConfig) -> bool:
    """Whether the optimizer projects gradients to a rank."""
    row = OPTIMIZERS.get(config.optimizer)
    return row is not None and row.low_rank


def _has_adapters(config: TrainConfig) -> bool:
    return config.method != "full"


def _has_completions(config: TrainConfig) -> bool:
    return config.objective in ("dpo", "grpo")


def _spread(config: TrainConfig) -> bool:
    return config.sharding != "none"


def _engine(*engines: str) -> Callable[[TrainConfig], str | None]:
    """A reason that only rungs on several GPUs have; on one GPU the value is dropped."""
    names = " or ".join(engines)
    return lambda config: f"needs {names}, not {config.sharding}" if _spread(config) else None


def _unsloths_autocast(config: TrainConfig) -> AutocastDtype:
    """What Unsloth computes in, whatever the rung says."""
    if config.method == "full" or config.weights_dtype == "float32":
        return "none"
    return config.weights_dtype


def _checkpointing_word(config: TrainConfig) -> str:
    if config.activation_checkpointing == "every_n":
        return f"ckpt-every-{config.checkpoint_every}"
    return f"ckpt-{config.activation_checkpointing}".removesuffix("-full")


def _optimizer_word(config: TrainConfig) -> str:
    row = OPTIMIZERS.get(config.optimizer)
    rank = f"-r{config.optimizer_rank}" if low_rank(config) else ""
    return ((row and row.word) or config.optimizer) + rank


def _sharding_word(config: TrainConfig) -> str:
    version = "1" if config.fsdp_version == 1 else ""
    return f"{config.sharding.replace('_', '-')}{version}x{config.world_size}"


def _targets_word(config: TrainConfig) -> str:
    targets, shared = config.lora_targets, "_proj"
    if isinstance(targets, str):
        return f"targets-{targets}"
    if all(name.endswith(shared) for name in targets):
        return "proj-" + "-".join(name.removesuffix(shared) for name in targets)
    return "targets-" + "-".join(targets)


_PLAIN = TrainConfig()
# fmt: off
_ROWS = (
    Key("method", "Method", None, names=("peft", "adapter"),
        values={"full": ("fft", "sft", "finetune", "full-finetune", "none"),
                "lora": ("peft", "adapter", "dora")},
        scripts=_ANY),
    Key("quantization", "Method", None, means=lambda c: c.method == "qlora",
        needs='needs method "qlora", not "{config.method}"',
        names=("load_in_4bit", "load_in_8bit", "bits", "quant", "quantisation"),
        values={"nf4": ("4bit", "4-bit", "int4", "fp4", "4", "bnb4", "q4"),
                "int8": ("8bit", "8-bit", "8", "llm.int8")},
        scripts=_ANY),
    Key("lora_rank", "Adapters", None, means=_has_adapters, least=1, memory="more",
        names=("r", "rank", "lora_r", "lora_dim"), scripts=_ANY),
    Key("weights_dtype", "Method", None, names=("dtype", "torch_dtype", "precision"), scripts=_ANY),
    Key("autocast_dtype", "Method", None, means=lambda c: c.library != "unsloth",
        settles=_unsloths_autocast, names=("bf16", "fp16", "amp", "mixed_precision"),
        values={"none": ("false", "no", "off"), "bfloat16": ("true", "yes", "on", "amp")},
        scripts=_ANY),
    Key("objective", "Objective", "{}", names=("trainer", "task", "stage", "rlhf", "loss_type"),
        scripts=("trl",)),
    Key("reference", "Objective", "{}-ref", means=_has_completions,
        names=("ref_model", "precompute_ref_log_probs", "reference_model"), scripts=("trl",)),
    Key("completion_length", "Objective", "completion-{}", means=_has_completions,
        needs='needs objective = "dpo" or "grpo"', names=("max_completion_length",),
        scripts=("trl",)),
    Key("num_generations", "Objective", "generations-{}", means=lambda c: c.objective == "grpo",
        memory="none",  # how completions are grouped
        names=("group_size", "generations"), scripts=("trl",)),
    Key("vllm_gpu_memory_utilization", "Objective", "vllm-{}",
        means=lambda c: c.objective == "grpo", needs='needs objective = "grpo"', memory="more",
        names=("gpu_memory_utilization", "vllm_utilization")),
    Key("vision", "Method", "{}-vision", memory=("frozen", "trained"),
        names=("freeze_vision_tower", "vision_tower", "freeze_vision")),
    Key("images", "Data", "images-{}", least=0, names=("num_images", "images_per_sample")),
    Key("image_size", "Data", "{}px", least=0,
        names=("resolution", "max_pixels", "image_resolution")),
    Key("use_dora", "Adapters", "dora", means=_has_adapters, needs=_ADAPTERS,
        memory="more",  # it computes all that LoRA does, and the rescaled result
        names=("dora",), scripts=_ANY),
    Key("use_rslora", "Adapters", "rslora", means=_has_adapters, needs=_ADAPTERS, memory="none",
        names=("rslora",), scripts=_ANY),
    Key("adapter_dtype", "Adapters", lambda c: f"adapters-{dtype_word(c.adapter_dtype)}",
        means=_has_adapters, needs=_ADAPTERS,
        names=("lora_dtype", "autocast_adapter_dtype", "adapters_dtype"), scripts=_ANY,
        elsewhere="the program decides it"),
    Key("modules_to_save", "Adapters", lambda c: "save-" + "-".join(c.modules_to_save),
        means=_has_adapters, needs=_ADAPTERS, memory="more",
        names=("trainable_modules", "train_embeddings", "lora_modules_to_save"), scripts=_ANY),
    Key("lora_alpha", "Adapters", "alpha-{}", means=_has_adapters, least=1, memory="none",
        names=("alpha",), scripts=_ANY),
    Key("lora_dropout", "Adapters", "dropout-{}", means=_has_adapters, names=("dropout",),
        scripts=_ANY),
    Key("lora_targets", "Adapters", _targets_word, means=_has_adapters,
        names=("target_modules", "targets", "lora_target_modules"), scripts=_ANY),
    Key("double_quant", "Method", "single-quant", means=lambda c: c.quantization == "nf4",
        memory="less", names=("bnb_4bit_use_double_quant",), scripts=_ANY),
    Key("quant_storage", "Method", lambda c: f"storage-{dtype_word(c.quant_storage)}",
        means=lambda c: c.quantization == "nf4", names=("bnb_4bit_quant_storage",), scripts=_ANY),
    Key("kbit_prepare", "Method", {"norms": "norms", "none": "unprepared"},
        means=lambda c: c.quantization != "none", memory=("none", "norms", "peft"),
        names=("prepare_model_for_kbit_training",), scripts=_ANY,
        elsewhere="the program prepares quantized models in its own way"),
    Key("frozen_layers", "Method", "frozen-{}", means=lambda c: c.method == "full",
        needs='"{config.method}" already freezes all layers; use full', least=0, memory="less",
        names=("freeze_layers", "freeze", "num_frozen_layers", "freeze_trainable_layers"),
        scripts=_ANY, instead=(0,)),
    Key("activation_checkpointing", "Memory and speed",
        _checkpointing_word, names=("gradient_checkpointing", "checkpointing", "ckpt"),
        values={"full": ("true", "yes", "on", "1", "all", "enabled"),
                "none": ("false", "no", "off", "0")},
        scripts=_ANY, instead=("full", "none")),
    Key("checkpoint_every", "Memory and speed", None,
        means=lambda c: c.activation_checkpointing == "every_n", least=1, scripts=_ANY),
    Key("fp8", "Method", {"torchao": "fp8", "transformer_engine": "fp8-te"},
        means=lambda c: c.method == "full",
        needs='converts weights that are trained; "{config.method}" freezes them',
        names=("float8", "fp8_backend", "fp8_recipe"),
        values={"torchao": ("true", "ao", "float8"), "transformer_engine": ("te",)},
        scripts=("trainer", "trl", "pytorch"), instead=("none",)),
    Key("optimizer", "Memory and speed", _optimizer_word, names=("optim", "optimiser"),
        scripts=_ANY),
    Key("optimizer_rank", "Memory and speed", None, means=low_rank, least=1,
        names=("galore_rank", "apollo_rank", "optim_rank"), scripts=_TRAINER),
    Key("optimizer_in_backward", "Memory and speed", "in-backward",
        names=("optimizer_in_bwd", "in_backward", "fused_backward_pass")),
    Key("attention", "Memory and speed", lambda c: ATTENTIONS[c.attention].word,
        names=("attn_implementation", "attn", "flash_attention"),
        values={"flash_attention_2": ("flash", "flash2", "flash_attn")}, scripts=_ANY),
    Key("loss", "Memory and speed", "{}", names=("use_liger_kernel", "liger"),
        values={"liger": ("true", "fused", "liger-kernel"),
                "chunked": ("chunked_nll", "chunks", "trl"),
                "default": ("false", "none", "nll")},
        scripts=_ANY, instead=("default",)),
    Key("packing", "Data", {"packed": "packed", "padding_free": "padding-free"},
        names=("pack", "sample_packing", "padding_free", "neat_packing"), scripts=("trl",),
        instead=("none",)),
    Key("document_length", "Data", "documents-{}", means=lambda c: c.packing == "packed", least=1,
        scripts=("trl",), elsewhere="the data decides it"),
    Key("padding", "Data", {"longest": "pad-longest", "max_length": "pad-max-length"},
        names=("pad", "pad_to_max_length", "padded", "pad_to_sequence_len"), scripts=("trl",),
        elsewhere="the lengths of your rows decide it", instead=("none",)),
    Key("library", "Method", "{}", names=("framework", "backend", "unsloth", "use_unsloth"),
        scripts=("unsloth",)),
    Key("compile", "Memory and speed", "compile", names=("torch_compile",), scripts=_ANY),
    Key("offload", "Memory and speed", "offload-{}",
        names=("cpu_offload", "offload_optimizer", "activation_offloading"),
        values={"optimizer": ("true", "cpu"), "none": ("false", "no")}, scripts=_ANY),
    Key("sharding", "GPUs", _sharding_word, names=("fsdp", "deepspeed", "zero_stage", "strategy"),
        values={"zero3": ("deepspeed", "3"), "fsdp": ("full_shard", "fsdp2")}, scripts=_TRAINER),
    Key("world_size", "GPUs", None, means=_spread,
        names=("gpus", "num_processes", "nproc_per_node"), scripts=_TRAINER,
        elsewhere=_BY_LAUNCHER),
    Key("gpus_per_node", "GPUs", "{}-per-node", means=_spread, least=1, scripts=_TRAINER,
        elsewhere=_BY_LAUNCHER),
    Key("fsdp_version", "GPUs", None, means=is_fsdp, needs=_engine("fsdp"), scripts=_TRAINER,
        instead=(2,)),
    Key("prefetch", "GPUs", {"none": "no-prefetch", "forward": "prefetch-forward"},
        means=lambda c: is_fsdp(c) or c.sharding == "zero3",
        needs=lambda c: _engine("fsdp" if c.prefetch == "forward" else "fsdp or zero3")(c),
        names=("forward_prefetch", "backward_prefetch"), scripts=_TRAINER, instead=("default",)),
    Key("reduce_dtype", "GPUs", lambda c: f"reduce-{dtype_word(c.reduce_dtype)}",
        means=lambda c: is_fsdp(c) or is_zero(c), needs=_engine("fsdp", "zero1 to zero3"),
        scripts=_TRAINER, instead=("default",)),
    Key("bucket_elements", "GPUs", "bucket-{}", means=lambda c: is_zero(c) or c.sharding == "ddp",
        needs="needs ddp or zero1 to zero3: FSDP has no buckets", least=0,
        names=("bucket_cap_mb", "reduce_bucket_size", "ddp_bucket_cap_mb"), scripts=_TRAINER,
        instead=(0,)),
    Key("sync_each_batch", "GPUs", "sync-each", means=lambda c: is_fsdp(c) or c.sharding == "ddp",
        needs=lambda c: "needs ddp or fsdp: DeepSpeed decides by its stage" if _spread(c) else None,
        scripts=_TRAINER, instead=(False,)),
    Key("allocator", "Memory and speed", "expandable",
        names=("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments"),
        values={"expandable_segments": ("expandable", "true")}, scripts=_ANY,
        elsewhere="set PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True"),
    Key("sequence_length", "Sizes", None, least=1, memory="more",
        names=("seq_len", "max_length", "max_seq_length", "max_seq_len", "block_size"),
        scripts=_ANY),
    Key("effective_batch_size", "Sizes", None, least=1,
        names=("gradient_accumulation_steps", "grad_accum", "train_batch_size"), scripts=_ANY),
    Key("micro_batch_size", "Sizes", None,
        names=("batch_size", "batch", "per_device_train_batch_size", "micro_batch"), scripts=_ANY),
)
# fmt: on
KEYS: Mapping[str, Key] = {key.name: key for key in _ROWS}
