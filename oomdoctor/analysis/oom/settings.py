"""What is known of a training: from flags, a configuration file, the log, and the traceback.

One table maps the names of Trainer, TRL, accelerate, DeepSpeed, axolotl and LLaMA-Factory to one
record. The first source that tells a value wins, and where it came from is kept. Nothing is
assumed here: what nobody told is None.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from oomdoctor.records.diagnosis import Frame, SettingValue
from oomdoctor.records.model import ModelSpec


@dataclass(frozen=True, slots=True)
class Given:
    """What the user told on the command line. `settings` is the content of --config, as read.

    `model_origin` says who named the model: "--model", the configuration file or the log.
    """

    model: ModelSpec | None = None
    model_origin: str = "--model"
    sequence_length: int | None = None
    micro_batch_size: int | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)
    settings_source: str | None = None


@dataclass(frozen=True, slots=True)
class Setup:
    """A training as far as it is known. `origins` says by field who told it."""

    model: str | None = None
    micro_batch_size: int | None = None
    sequence_length: int | None = None
    accumulation_steps: int | None = None
    eval_batch_size: int | None = None
    eval_accumulation_steps: int | None = None
    method: str | None = None
    quantization: str | None = None
    lora_rank: int | None = None
    weights_dtype: str | None = None
    autocast_dtype: str | None = None
    optimizer: str | None = None
    checkpointing: bool | None = None
    attention: str | None = None
    liger: bool | None = None
    packing: bool | None = None
    world_size: int | None = None
    zero_stage: int | None = None
    fsdp: bool | None = None
    offload_optimizer: bool | None = None
    offload_parameters: bool | None = None
    workers: int | None = None
    expandable_segments: bool | None = None
    origins: Mapping[str, str] = field(default_factory=dict)

    def sharding(self) -> int:
        """The ZeRO stage that describes how the training is sharded; FSDP is stage 3."""
        if self.zero_stage is not None:
            return self.zero_stage
        return 3 if self.fsdp else 0


Reader = Callable[[Any], Any]
_DTYPES = {
    "bfloat16": "bfloat16",
    "bf16": "bfloat16",
    "float16": "float16",
    "fp16": "float16",
    "half": "float16",
    "float32": "float32",
    "fp32": "float32",
    "float": "float32",
}
_ATTENTIONS = {
    "fa2": "flash_attention_2",
    "flash_attention_2": "flash_attention_2",
    "flash_attention_3": "flash_attention_3",
    "fa3": "flash_attention_3",
    "sdpa": "sdpa",
    "eager": "eager",
    "disabled": "eager",
    "flex_attention": "flex_attention",
}
_DEEPSPEED_OPTIMIZERS = {
    "adam": "adamw_torch",
    "adamw": "adamw_torch",
    "adamw8bit": "adamw_bnb_8bit",
    "adam8bit": "adamw_bnb_8bit",
}


def _integer(value: Any) -> int | None:
    if isinstance(value, bool):
        return None
    if isinstance(value, str) and re.fullmatch(r"\d{1,9}", value.strip()):
        value = int(value)
    # A model_max_length of 1e30 means "no limit".
    return value if isinstance(value, int) and 0 < value < 10**8 else None


def _count(value: Any) -> int | None:
    return 0 if value in (0, "0") and not isinstance(value, bool) else _integer(value)


def _flag(value: Any) -> bool | None:
    if isinstance(value, str):
        return {"true": True, "yes": True, "false": False, "no": False}.get(value.strip().lower())
    return value if isinstance(value, bool) else None


def _not(value: Any) -> bool | None:
    flag = _flag(value)
    return None if flag is None else not flag


def _true(word: str) -> Reader:
    """Reads a switch that means `word` when it is on and tells nothing when it is off."""
    return lambda value: word if _flag(value) else None


def _word(words: Mapping[str, str]) -> Reader:
    return lambda value: words.get(str(value).strip().lower().removeprefix("torch."))


def _text(value: Any) -> str | None:
    if isinstance(value, str) and value.strip() and value.strip().lower() not in ("auto", "none"):
        return value.strip()
    return None


def _optimizer(value: Any) -> str | None:
    text = _text(value)
    text = text.rpartition(".")[2].lower() if text else None
    return _DEEPSPEED_OPTIMIZERS.get(text, text) if text else None


def _bits(value: Any) -> str | None:
    return {"4": "nf4", "8": "int8"}.get(str(value).strip())


def _quantised(value: Any) -> str | None:
    return "qlora" if _bits(value) else None


def _adapter(value: Any) -> str | None:
    text = str(value).strip().lower()
    return {"dora": "lora", "freeze": "full", "peft": "lora"}.get(
        text, text if text in ("full", "lora", "qlora") else None
    )


def _any_rank(value: Any) -> str | None:
    return "lora" if _integer(value) else None


def _stage(value: Any) -> int | None:
    """The stage in the name of a DeepSpeed file, such as `ds_z3_config.json`."""
    found = re.search(r"z(?:ero)?[-_]?(?:stage)?[-_]?([0123])", str(value).lower())
    return int(found[1]) if found else None


def _fsdp(value: Any) -> bool | None:
    if isinstance(value, list | tuple):
        return bool(value)
    if isinstance(value, str) and value.strip().lower() not in ("", "false", "no"):
        return True
    return _flag(value)


def _device(value: Any) -> bool | None:
    text = str(value).strip().lower()
    return True if text in ("cpu", "nvme") else False if text == "none" else None


def _has(word: str) -> Reader:
    return lambda value: True if word in str(value).lower() else None


# field of Setup -> names under which files and logs tell it, the most telling first. A name
# matches a key or the end of its dotted path, so nested files need no rows of their own.
NAMES: dict[str, tuple[tuple[str, Reader], ...]] = {
    "model": tuple(
        (name, _text)
        for name in ("model_name_or_path", "base_model", "pretrained_model_name_or_path", "model")
    ),
    "micro_batch_size": tuple(
        (name, _integer)
        for name in (
            "per_device_train_batch_size",
            "micro_batch_size",
            "train_micro_batch_size_per_gpu",
            "per_gpu_train_batch_size",
            "batch_size",
        )
    ),
    "sequence_length": tuple(
        (name, _integer)
        for name in (
            "max_length",
            "max_seq_length",
            "sequence_len",
            "cutoff_len",
            "sequence_length",
            "max_seq_len",
            "seq_length",
            "seq_len",
            "block_size",
            "model_max_length",
        )
    ),
    "accumulation_steps": (("gradient_accumulation_steps", _integer),),
    "eval_batch_size": (
        ("per_device_eval_batch_size", _integer),
        ("eval_batch_size", _integer),
    ),
    "eval_accumulation_steps": (("eval_accumulation_steps", _integer),),
    "method": (
        ("adapter", _adapter),
        ("finetuning_type", _adapter),
        ("load_in_4bit", _true("qlora")),
        ("load_in_8bit", _true("qlora")),
        ("quantization_bit", _quantised),
        ("use_peft", _true("lora")),
        ("use_lora", _true("lora")),
        ("method", _adapter),
        ("lora_r", _any_rank),
        ("lora_rank", _any_rank),
    ),
    "quantization": (
        ("load_in_4bit", _true("nf4")),
        ("load_in_8bit", _true("int8")),
        ("quantization_bit", _bits),
    ),
    "lora_rank": (("lora_r", _integer), ("lora_rank", _integer)),
    "weights_dtype": (
        ("torch_dtype", _word(_DTYPES)),
        ("model_dtype", _word(_DTYPES)),
        ("dtype", _word(_DTYPES)),
        ("pure_bf16", _true("bfloat16")),
        ("bfloat16", _true("bfloat16")),
        ("weights_dtype", _word(_DTYPES)),
    ),
    "autocast_dtype": (
        ("bf16", _true("bfloat16")),
        ("fp16", _true("float16")),
        ("bf16.enabled", _true("bfloat16")),
        ("fp16.enabled", _true("float16")),
        ("mixed_precision", _word({**_DTYPES, "no": "none"})),
    ),
    "optimizer": (("optim", _optimizer), ("optimizer", _optimizer), ("optimizer.type", _optimizer)),
    "checkpointing": (
        ("gradient_checkpointing", _flag),
        ("disable_gradient_checkpointing", _not),
        ("enable_gradient_checkpointing", _flag),
        ("fsdp_activation_checkpointing", _flag),
        ("activation_checkpointing", _flag),
    ),
    "attention": (
        ("attn_implementation", _word(_ATTENTIONS)),
        ("_attn_implementation", _word(_ATTENTIONS)),
        ("flash_attn", _word(_ATTENTIONS)),
        ("flash_attention", _true("flash_attention_2")),
        ("use_flash_attention_2", _true("flash_attention_2")),
        ("sdp_attention", _true("sdpa")),
        ("eager_attention", _true("eager")),
    ),
    "liger": (
        ("use_liger_kernel", _flag),
        ("use_liger", _flag),
        ("use_liger_loss", _flag),
        ("enable_liger_kernel", _flag),
        ("liger_fused_linear_cross_entropy", _flag),
    ),
    "packing": (("packing", _flag), ("sample_packing", _flag)),
    "world_size": (
        ("world_size", _integer),
        ("num_processes", _integer),
        ("nproc_per_node", _integer),
    ),
    "zero_stage": (
        ("zero_optimization.stage", _count),
        ("zero_stage", _count),
        ("deepspeed", _stage),
    ),
    "fsdp": (
        ("fsdp", _fsdp),
        ("distributed_type", _has("fsdp")),
        ("fsdp_sharding_strategy", _fsdp),
    ),
    "offload_optimizer": (
        ("offload_optimizer.device", _device),
        ("offload_optimizer_device", _device),
    ),
    "offload_parameters": (
        ("offload_param.device", _device),
        ("offload_param_device", _device),
        ("fsdp_offload_params", _flag),
        ("cpu_offload", _flag),
    ),
    "workers": (("dataloader_num_workers", _count), ("num_workers", _count)),
    "expandable_segments": (
        ("PYTORCH_CUDA_ALLOC_CONF", _has("expandable_segments:true")),
        ("PYTORCH_ALLOC_CONF", _has("expandable_segments:true")),
        ("allocator", _has("expandable_segments:true")),
        ("expandable_segments", _flag),
    ),
}

# field, value, and what a frame of the traceback shows when it is so.
_SEEN: tuple[tuple[str, Any, str], ...] = (
    ("checkpointing", True, r"torch/utils/checkpoint\.py"),
    ("checkpointing", True, r"gradient_checkpointing_func|_gradient_checkpointing"),
    ("attention", "eager", r" eager_attention_forward\b"),
    ("attention", "sdpa", r" sdpa_attention_forward\b|sdpa_attention\.py"),
    ("attention", "flash_attention_2", r"flash_attn_interface\.py|flash_attention\.py"),
    ("liger", True, r"liger_kernel/"),
    ("quantization", "nf4", r"bitsandbytes/.*(?:matmul_4bit|MatMul4Bit|Linear4bit)"),
    ("quantization", "int8", r"bitsandbytes/.*(?:MatMul8bit|Linear8bit)"),
    ("method", "qlora", r"peft/tuners/.*/bnb\.py|bitsandbytes/nn/modules\.py"),
    ("method", "lora", r"/peft/|^peft/"),
    ("optimizer", "adamw_torch", r" _multi_tensor_adam(?:w)?\b"),
    ("optimizer", "adamw_torch_fused", r" _fused_adam(?:w)?\b"),
    ("optimizer", "adafactor", r"adafactor\.py"),
    ("zero_stage", 3, r"deepspeed/.*(?:stage3\.py|partition_parameters\.py)"),
    ("zero_stage", 2, r"deepspeed/.*stage_1_and_2\.py"),
    ("fsdp", True, r"torch/distributed/fsdp/"),
)


def setup_of(
    given: Given,
    logged: Mapping[str, SettingValue],
    frames: Sequence[Frame] = (),
    world_size: int | None = None,
) -> Setup:
    """Everything that flags, --config, the log's settings and the frames tell, in this order."""
    sources = [
        (given.settings_source or "--config", _flat(given.settings)),
        ("the log", {**logged}),
    ]
    values: dict[str, Any] = {}
    origins: dict[str, str] = {}

    def learn(name: str, value: Any, origin: str) -> None:
        if value is not None and name not in values:
            values[name], origins[name] = value, origin

    learn("micro_batch_size", given.micro_batch_size, "--micro-batch")
    learn("sequence_length", given.sequence_length, "--seq-len")
    learn("model", given.model.id if given.model else None, given.model_origin)
    told = [(name, value, "the traceback") for name, value in _from_frames(frames)]
    for origin, mapping in sources:
        for name, names in NAMES.items():
            learn(name, _find(mapping, names), origin)
    for name, value, origin in told:
        learn(name, value, origin)
    learn("world_size", world_size, "the log")
    return Setup(**values, origins=origins)


def _find(mapping: Mapping[str, Any], names: Sequence[tuple[str, Reader]]) -> Any:
    for name, read in names:
        for key in sorted(mapping, key=lambda key: key.count(".")):
            if key == name or key.endswith(f".{name}"):
                value = read(mapping[key])
                if value is not None:
                    return value
    return None


def _flat(mapping: Mapping[str, Any]) -> dict[str, Any]:
    return dict(_walk(mapping, "", 0))


def _walk(mapping: Mapping[str, Any], prefix: str, depth: int) -> Iterator[tuple[str, Any]]:
    for key, value in mapping.items():
        path = f"{prefix}{key}"
        if isinstance(value, Mapping):
            if depth < 6:
                yield from _walk(value, f"{path}.", depth + 1)
        else:
            yield path, value


def _from_frames(frames: Sequence[Frame]) -> Iterator[tuple[str, Any]]:
    texts = [f"{f.file} {f.function} {f.code or ''}".replace("\\", "/") for f in frames]
    for name, value, pattern in _SEEN:
        if any(re.search(pattern, text) for text in texts):
            yield name, value
    layers = [t for t in texts if re.search(r"/modeling_\w+\.py forward\b", t)]
    if len(layers) >= 3:  # model, layer and a part of it: a checkpoint would stand in between
        yield "checkpointing", False
