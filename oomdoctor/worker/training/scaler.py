"""fp16 with a gradient scaler where there is no CUDA: on the CPU and on a simulated device."""

from __future__ import annotations

from typing import Any


def scale_gradients(accelerator: Any) -> None:
    """Turn fp16 with a gradient scaler on, which accelerate refuses or leaves out on the CPU.

    For an Accelerator made without mixed precision, before its `prepare`. The scaler is the one
    accelerate takes on CUDA; its tensors (scale, growth, found_inf) are of 4 bytes. Each step asks
    for the value of found_inf (`GradScaler._maybe_opt_step`): any but zero skips the optimizer.
    """
    import torch

    accelerator.state._mixed_precision = "fp16"
    accelerator.native_amp = True
    accelerator.scaler = torch.amp.GradScaler("cpu")
