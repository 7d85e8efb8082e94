"""fp16 with a gradient scaler without CUDA: on the CPU and on a simulated device."""

from __future__ import annotations

import torch

from oomdoctor.worker.protocol import UnsupportedError
from oomdoctor.worker.training.setup import Setup


def check_scalable(setup: Setup) -> None:
    """Check that the gradient scaler can unscale every gradient of a model with an adapter.

    peft keeps adapters in float32, but not what it trains beside them: the head of a classifier is
    trained in the dtype of the base.

    Raises:
        UnsupportedError: weights are trained in float16.
    """
    half = [
        name
        for name, parameter in setup.model.named_parameters()
        if parameter.requires_grad and parameter.dtype == torch.float16
    ]
    if half:
        raise UnsupportedError(
            f"the gradient scaler cannot unscale float16 gradients, and {half[0]} is trained in "
            'float16; use weights_dtype = "float32"'
        )


def scale_gradients(setup: Setup) -> None:
    """Turn on fp16 with a gradient scaler, which accelerate refuses or omits on the CPU.

    The Accelerator was made without mixed precision, and has not prepared the model. The scaler is
    the one that accelerate uses on CUDA; its tensors (scale, growth, found_inf) have 4 bytes. Each
    step reads the value of found_inf (`GradScaler._maybe_opt_step`): if it is not zero, the scaler
    skips the optimizer.
    """
    accelerator = setup.trainer.accelerator
    accelerator.state._mixed_precision = "fp16"
    accelerator.native_amp = True
    accelerator.scaler = torch.amp.GradScaler("cpu")


def forget_scale(setup: Setup) -> None:
    """Drop the tensors that the gradient scaler made in its first step, if there is a scaler."""
    scaler = setup.trainer.accelerator.scaler
    if scaler is not None:
        scaler._scale = scaler._growth_tracker = None
