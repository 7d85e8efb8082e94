"""What a rung asks for that this device, these libraries or this version cannot do."""

from __future__ import annotations

from oomdoctor.records.config import TrainConfig
from oomdoctor.worker.unsupported import UnsupportedError


def check_supported(config: TrainConfig, device_type: str) -> None:
    """Find out before anything is built.

    Raises:
        UnsupportedError: it cannot; the text says why and what to do.
    """
    later = {
        "compile": config.compile,
        "offload": config.offload != "none",
        "sharding": config.sharding != "none" or config.world_size > 1,
        f'activation_checkpointing = "{config.activation_checkpointing}"': (
            config.activation_checkpointing not in ("none", "full")
        ),
    }
    for name, asked in later.items():
        if asked:
            raise UnsupportedError(f"{name} is not measured by this version of oomdoctor")
    if config.autocast_dtype == "float16" and device_type == "cpu":
        raise UnsupportedError("fp16 with the gradient scaler needs a GPU; use bfloat16 on the CPU")
    if config.allocator != "default" and device_type == "cpu":
        raise UnsupportedError("allocator settings need a GPU: the CPU has no caching allocator")
    if config.loss == "liger":
        if not _installed("liger_kernel"):
            raise UnsupportedError("needs Liger kernels: pip install liger-kernel")
        if device_type == "cpu":
            raise UnsupportedError("Liger kernels need a GPU")
    if config.quantization != "none" and not _installed("bitsandbytes"):
        raise UnsupportedError("quantised weights need bitsandbytes: pip install bitsandbytes")
    if config.method != "full" and not _installed("peft"):
        raise UnsupportedError("LoRA needs peft: pip install peft")
    _check_attention(config, device_type)


def _check_attention(config: TrainConfig, device_type: str) -> None:
    wanted = config.attention
    if wanted not in ("flash_attention_2", "flash_attention_3"):
        return
    if device_type == "cpu":
        raise UnsupportedError(f"{wanted} needs a GPU")
    module, package = {
        "flash_attention_2": ("flash_attn", "flash-attn"),
        "flash_attention_3": ("flash_attn_interface", "flash-attn-3 (from the hopper folder)"),
    }[wanted]
    if not _installed(module):
        raise UnsupportedError(
            f"{wanted} needs the package {package}; sdpa has a flash kernel of its own"
        )
    if config.weights_dtype == "float32" and config.autocast_dtype == "none":
        raise UnsupportedError(f"{wanted} computes in 16 bits; set weights_dtype or autocast_dtype")


def _installed(module: str) -> bool:
    import importlib.util

    return importlib.util.find_spec(module) is not None
