"""fp16 with a gradient scaler without CUDA: on the CPU and on a simulated device."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from accelerate import Accelerator


def scale_gradients(accelerator: Accelerator) -> None:
    """Turn on fp16 with a gradient scaler, which accelerate refuses or omits on the CPU.

    Call it on an Accelerator made without mixed precision, before its `prepare`. The scaler is the
    one that accelerate uses on CUDA; its tensors (scale, growth, found_inf) have 4 bytes. Each step
    reads the value of found_inf (`GradScaler._maybe_opt_step`): if it is not zero, the scaler skips
    the optimizer.
    """
    import torch

    accelerator.state._mixed_precision = "fp16"
    accelerator.native_amp = True
    accelerator.scaler = torch.amp.GradScaler("cpu")
