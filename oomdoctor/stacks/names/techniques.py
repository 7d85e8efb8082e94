"""What settings of several programs share: how they are read, and when they are written."""

from __future__ import annotations

import math
import re
from functools import partial

from oomdoctor.records.configuration.config import TrainConfig, is_zero
from oomdoctor.records.facts.attention import ATTENTION_NAMES
from oomdoctor.stacks.names import values
from oomdoctor.stacks.names.row import LEFT_OUT, NotTakenError, words_of
from oomdoctor.stacks.partial_config import PartialConfig, only

_KERNELS = words_of("attention kernels")


def attention(value: object) -> PartialConfig:
    """`attn_implementation`; null and auto leave the choice to transformers, which takes sdpa."""
    if value is None or values.is_auto(value):
        return {}
    word = values.word(value)
    kernel = ATTENTION_NAMES.get(word) or _KERNELS.get(word)
    if kernel is None:
        raise NotTakenError(f"oomdoctor has no attention {value}; sdpa is taken")
    return {"attention": kernel}


def computes(config: TrainConfig, precision: str) -> bool:
    """Whether a Trainer's switch for a dtype is on; ZeRO trains 16-bit weights with it."""
    if is_zero(config) and config.autocast_dtype == "none":
        return precision == config.weights_dtype
    return precision == config.autocast_dtype


in_bfloat16 = partial(computes, precision="bfloat16")
in_float16 = partial(computes, precision="float16")


def bits(value: object) -> PartialConfig:
    """The bits that bitsandbytes quantizes to; null is the same as no line."""
    count = None if value is None else values.decimal(value)
    if count not in (None, 4, 8):
        raise NotTakenError(f"oomdoctor quantizes to 4 or 8 bits, not to {value}")
    return {} if count is None else only(f"bits_{count:.0f}", True)


def in_fp8(config: TrainConfig) -> bool:
    """Whether linear layers compute in FP8."""
    return config.fp8 != "none"


def checkpoints(config: TrainConfig) -> bool:
    """Whether activations are recomputed."""
    return config.activation_checkpointing != "none"


def moves_activations(config: TrainConfig) -> bool:
    """Whether activations, or the inputs of checkpoints, are moved to the host."""
    return config.offload == "activations" or config.activation_checkpointing == "offload"


def never(_: TrainConfig) -> bool:
    """A setting that is taken out of a file where a rung is written into it."""
    return False


def beta_of(config: TrainConfig) -> object:
    """TRL's default of DPO, and what GRPO usually has where it has a reference."""
    if config.objective == "grpo":
        return 0.04 if config.reference == "kl" else 0.0
    return 0.1 if config.objective == "dpo" else LEFT_OUT


def rank_of(value: object) -> PartialConfig:
    """The rank in `optim_args`, which is text such as `rank=64, update_proj_gap=200`."""
    match = re.search(r"\brank\s*[=:]\s*(\d+)", str(value or ""))
    if match is None:
        raise NotTakenError("the optimizer has its usual arguments")
    return {"optimizer_rank": int(match[1])}


def rank_words(config: TrainConfig) -> str:
    """The arguments of the optimizer, as `rank_of` reads them."""
    return f"rank={config.optimizer_rank}"


def side(value: object) -> PartialConfig:
    """Pixels a side; of width and height the side of the square with as many pixels."""
    if value is None:
        return {}
    if isinstance(value, list | tuple):
        if len(value) != 2:
            raise NotTakenError("oomdoctor takes images of one size")
        return {"image_size": math.isqrt(values.integer(value[0]) * values.integer(value[1]))}
    return {"image_size": values.integer(value)}


# The most pixels of an image: larger ones are made smaller, so this is the worst case.
side_of_pixels = values.given("image_size", lambda value: math.isqrt(values.integer(value)))


def pixels(config: TrainConfig) -> int:
    """The pixels of an image; 0 without images."""
    return config.image_size**2


def trainable_vision(value: object) -> PartialConfig:
    """torchtune's word for its encoder: frozen, lora or full."""
    if isinstance(value, bool):
        return {"vision": "trained" if value else "frozen"}
    return {"vision": "frozen" if values.word(value) == "frozen" else "trained"}


def adapted(config: TrainConfig) -> bool:
    """Whether a rung has an adapter."""
    return config.method != "full"


def upcasts_adapters(config: TrainConfig) -> object:
    """peft's `autocast_adapter_dtype`: adapters are made float32, not left in 16 bits."""
    wide = config.quantization != "none" or config.weights_dtype == "float32"
    return LEFT_OUT if wide or config.adapter_dtype != config.weights_dtype else False
