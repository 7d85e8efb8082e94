"""What Unsloth decides itself, so that a rung cannot say otherwise."""

from __future__ import annotations

from oomdoctor.records.config import TrainConfig

# Its word for each kind of checkpointing.
CHECKPOINTING: dict[str, bool | str] = {"none": False, "full": True, "offload": "unsloth"}
ONE_CHOICE: tuple[tuple[str, tuple[object, ...]], ...] = (
    ("attention", ("sdpa", "flash_attention_2")),
    ("loss", ("default",)),
    ("compile", (False,)),
    ("use_dora", (False,)),
    ("adapter_dtype", ("default",)),
    ("frozen_layers", (0,)),
    ("offload", ("none",)),
    ("double_quant", (True,)),
    ("quant_storage", ("uint8",)),
)
# What it may have, but oomdoctor has not built with it.
_NOT_BUILT: tuple[tuple[str, tuple[object, ...]], ...] = (
    ("activation_checkpointing", tuple(CHECKPOINTING)),
    ("weights_dtype", ("bfloat16", "float16")),
    ("objective", ("default",)),
    ("packing", ("none",)),
    ("padding", ("none",)),
    ("fp8", ("none",)),
    ("vision", ("trained",)),
    ("sharding", ("none",)),
    ("optimizer_in_backward", (False,)),
)


def unsloth_faults(config: TrainConfig) -> list[tuple[str, str]]:
    """What cannot be combined with Unsloth, as (key, sentence)."""
    if config.library != "unsloth":
        return []
    found = []
    for key, choices in (*ONE_CHOICE, *_NOT_BUILT):
        value = getattr(config, key)
        if value not in choices:
            names = " or ".join(str(one).lower() for one in choices)
            found.append((key, f'library "unsloth" needs {names}, not {str(value).lower()}'))
    own = "none" if config.method == "full" else config.weights_dtype
    if config.autocast_dtype not in ("none", own):
        found.append(("autocast_dtype", f'library "unsloth" itself takes {own} for this rung'))
    if config.method == "full" and config.weights_dtype == "float16":
        found.append(("weights_dtype", "full fine-tuning with Unsloth needs bfloat16"))
    if config.lora_targets == "attention" and config.method != "full":
        found.append(("lora_targets", 'library "unsloth" needs all-linear or names of modules'))
    return found
