"""What a rung asks for that this device, these libraries or this version cannot do."""

from __future__ import annotations

from oomdoctor.records.config import TrainConfig
from oomdoctor.worker.protocol.unsupported import UnsupportedError
from oomdoctor.worker.training import optimizers


def check_supported(config: TrainConfig, device_type: str, *, simulated: bool = False) -> None:
    """Find out before anything is built. A simulation needs no kernels, only what builds the model.

    Raises:
        UnsupportedError: it cannot; the text says why and what to do.
    """
    if config.sharding != "none" or config.world_size > 1:
        raise UnsupportedError("sharding is not measured by this version of oomdoctor")
    if config.offload == "parameters":
        raise UnsupportedError(
            "parameters are offloaded by DeepSpeed ZeRO-3 or FSDP, which this version does not "
            'measure; use offload = "optimizer", or freeze and quantise them with method = "qlora"'
        )
    if config.offload == "optimizer" and not optimizers.steps_on_host(config.optimizer):
        raise UnsupportedError(
            f'{config.optimizer} updates on the GPU only; offload = "optimizer" needs '
            "adamw_torch_fused; states of paged_adamw_8bit move to the host by themselves"
        )
    if config.autocast_dtype == "float16" and device_type == "cpu":
        raise UnsupportedError("fp16 with the gradient scaler needs a GPU; use bfloat16 on the CPU")
    if config.allocator != "default" and device_type == "cpu":
        raise UnsupportedError("allocator settings need a GPU: the CPU has no caching allocator")
    if simulated and config.optimizer in optimizers.OF_TORCHAO:
        raise UnsupportedError(
            f"{config.optimizer} keeps states of torchao's tensor types, which cannot be "
            "simulated; measure it with probe, or plan with adamw_bnb_8bit"
        )
    if simulated and config.attention == "flex_attention":
        raise UnsupportedError(
            "flex_attention is a kernel that is compiled on the GPU, which cannot be simulated; "
            "measure it with probe, or plan with sdpa"
        )
    if config.loss == "liger":
        if not (_installed("liger_kernel") and _installed("triton")):
            raise UnsupportedError("needs Liger kernels: pip install liger-kernel")
        if device_type == "cpu":
            raise UnsupportedError("Liger kernels need a GPU")
    if config.quantization != "none" and not _installed("bitsandbytes"):
        raise UnsupportedError("quantised weights need bitsandbytes: pip install bitsandbytes")
    if config.method != "full" and not _installed("peft"):
        raise UnsupportedError("LoRA needs peft: pip install peft")
    if not simulated:
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
