"""peft's `LoraConfig`, and bitsandbytes' `BitsAndBytesConfig` of transformers."""

from __future__ import annotations

from oomdoctor.records.config import TrainConfig
from oomdoctor.stacks.names.row import LEFT_OUT, NotTakenError, Read, Row, Table, Write, listed
from oomdoctor.stacks.names.values import (
    decimal,
    dtype,
    flag,
    names_in,
    number,
    only_if,
    target_words,
    targets,
)
from oomdoctor.stacks.partial_config import PartialConfig, only


def adapted(config: TrainConfig) -> bool:
    """Whether a rung has an adapter."""
    return config.method != "full"


def in_four_bits(config: TrainConfig) -> bool:
    """Whether the base is stored in four bits."""
    return config.quantization == "nf4"


def share(value: object) -> PartialConfig:
    """The dropout before each adapter."""
    return {} if value is None else {"lora_dropout": decimal(value)}


def quant_type(value: object) -> PartialConfig:
    """The 4-bit type."""
    if str(value).lower() != "nf4":
        raise NotTakenError(f"a rung quantizes to nf4, not to {value}")
    return {}


def storage(value: object) -> PartialConfig:
    """The dtype that holds the packed weights."""
    if value is None:
        return {}
    word = str(value).strip().lower().removeprefix("torch.")
    if word not in ("uint8", "bfloat16", "float16", "float32"):
        raise NotTakenError(f"a rung cannot store packed weights as {value}")
    return {"quant_storage": word}


def bits(count: int) -> Read:
    """Reads `load_in_4bit` and `load_in_8bit`."""
    return lambda value: {} if value is None else only(f"bits_{count}", flag(value))


def trained_whole(value: object) -> PartialConfig:
    """Modules that are trained beside the adapters: a list, or names with commas between."""
    return {"modules_to_save": tuple(names_in(value))}


def variants(
    dora: str, rslora: str | None, saved: str | None, *, joined: bool = False
) -> tuple[Row, ...]:
    """The rows of DoRA, rsLoRA and modules trained whole, by a program's names.

    They are written only where they are used. `joined` writes modules as text with commas.
    """

    def modules(config: TrainConfig) -> object:
        found = config.modules_to_save
        return LEFT_OUT if not found else ",".join(found) if joined else list(found)

    def used(key: str) -> Write:
        return lambda config: True if getattr(config, key) else LEFT_OUT

    def on(key: str) -> Read:
        return lambda value: {} if value is None else only(key, flag(value))

    found = [Row(dora, ("use_dora",), on("use_dora"), used("use_dora"))]
    if rslora is not None:
        found.append(Row(rslora, ("use_rslora",), on("use_rslora"), used("use_rslora")))
    if saved is not None:
        found.append(Row(saved, ("modules_to_save",), trained_whole, modules))
    return tuple(found)


def upcast_adapters(name: str) -> Row:
    """peft's `autocast_adapter_dtype`: adapters are made float32, not left in 16 bits."""

    def kept(config: TrainConfig) -> object:
        wide = config.quantization != "none" or config.weights_dtype == "float32"
        return LEFT_OUT if wide or config.adapter_dtype != config.weights_dtype else False

    return Row(
        name,
        ("autocast_adapters",),
        lambda value: {} if value is None else {"autocast_adapters": flag(value)},
        kept,
    )


LORA_CONFIG = Table(
    (
        number("r", "lora_rank"),
        number("lora_alpha", "lora_alpha"),
        Row("lora_dropout", ("lora_dropout",), share, lambda config: config.lora_dropout),
        Row("target_modules", ("lora_targets",), targets, target_words),
        *variants("use_dora", "use_rslora", "modules_to_save"),
    ),
    neutral=listed(
        """
        task_type peft_type auto_mapping base_model_name_or_path revision inference_mode
        fan_in_fan_out init_lora_weights peft_version megatron_core layers_pattern
        """
    ),
    reasons={
        "bias": "a rung trains no biases beside adapters",
        "exclude_modules": "a rung leaves out no target modules",
        "layers_to_transform": "a rung puts adapters into all layers",
        "rank_pattern": "all adapters have the same rank",
        "alpha_pattern": "all adapters have the same alpha",
        "target_parameters": "a rung puts adapters on modules, not on parameters",
    },
    defaults={"lora_rank": 8, "lora_alpha": 8, "lora_dropout": 0.0},
    source="the default of peft 0.21",
)

STORAGE = only_if(
    Row(
        "bnb_4bit_quant_storage",
        ("quant_storage",),
        storage,
        lambda config: LEFT_OUT if config.quant_storage == "uint8" else config.quant_storage,
    ),
    in_four_bits,
)

BITSANDBYTES = Table(
    (
        only_if(
            Row(
                "load_in_4bit",
                ("bits_4",),
                bits(4),
                in_four_bits,
            ),
            in_four_bits,
        ),
        only_if(
            Row(
                "load_in_8bit",
                ("bits_8",),
                bits(8),
                lambda config: config.quantization == "int8",
            ),
            lambda config: config.quantization == "int8",
        ),
        only_if(
            Row("bnb_4bit_quant_type", (), quant_type, lambda _: "nf4"),
            in_four_bits,
        ),
        only_if(
            Row(
                "bnb_4bit_use_double_quant",
                ("double_quant",),
                lambda value: {"double_quant": flag(value)},
                lambda config: config.double_quant,
                ("use_nested_quant", "use_bnb_nested_quant"),
            ),
            in_four_bits,
        ),
        STORAGE,
        only_if(
            Row(
                "bnb_4bit_compute_dtype",
                ("bits_compute",),
                lambda value: {"bits_compute": dtype(value)},
                lambda config: (
                    config.weights_dtype
                    if config.autocast_dtype == "none"
                    else config.autocast_dtype
                ),
            ),
            in_four_bits,
        ),
    ),
    reasons={
        "llm_int8_threshold": "bitsandbytes' default is used",
        "llm_int8_skip_modules": "bitsandbytes' default is used",
        "llm_int8_enable_fp32_cpu_offload": "a rung keeps quantized weights on the GPU",
        "llm_int8_has_fp16_weight": "bitsandbytes' default is used",
    },
    defaults={"double_quant": False},
    source="the default of transformers' BitsAndBytesConfig",
)

# The modules that peft 0.21 adapts if none are named, by model_type.
DEFAULT_TARGETS: dict[str, tuple[str, ...]] = {
    "t5": ("q", "v"),
    "mt5": ("q", "v"),
    "bart": ("q_proj", "v_proj"),
    "gpt2": ("c_attn",),
    "bloom": ("query_key_value",),
    "opt": ("q_proj", "v_proj"),
    "gptj": ("q_proj", "v_proj"),
    "gpt_neox": ("query_key_value",),
    "gpt_neo": ("q_proj", "v_proj"),
    "bert": ("query", "value"),
    "roberta": ("query", "value"),
    "xlm-roberta": ("query", "value"),
    "electra": ("query", "value"),
    "deberta-v2": ("query_proj", "value_proj"),
    "deberta": ("in_proj",),
    "llama": ("q_proj", "v_proj"),
    "gpt_bigcode": ("c_attn",),
    "mpt": ("Wqkv",),
    "falcon": ("query_key_value",),
    "codegen": ("qkv_proj",),
    "mistral": ("q_proj", "v_proj"),
    "mixtral": ("q_proj", "v_proj"),
    "stablelm": ("q_proj", "v_proj"),
    "phi": ("q_proj", "v_proj", "fc1", "fc2"),
    "gemma": ("q_proj", "v_proj"),
    "gemma2": ("q_proj", "v_proj"),
    "gemma3_text": ("q_proj", "v_proj"),
    "qwen2": ("q_proj", "v_proj"),
    "qwen3": ("q_proj", "v_proj"),
}
