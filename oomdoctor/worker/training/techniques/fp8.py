"""FP8 training: linear layers that multiply in float8, as accelerate's recipe for torchao does it.

Weights, gradients and what is saved for the backward pass keep their types. Each product casts its
operands, so without torch.compile it takes more memory for a moment, not less.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from oomdoctor.worker.protocol.unsupported import UnsupportedError

if TYPE_CHECKING:
    from torch.nn import Module

_NOTE = (
    "fp8 multiplies all linear layers but the first and the last in float8; in a training script: "
    'accelerate\'s mixed_precision="fp8" with AORecipeKwargs'
)


def convert_linear_layers(model: Module, notes: list[str], *, simulated: bool) -> None:
    """Replace linear layers by torchao's, all but the first and the last, as accelerate does.

    The gathering in float8 that accelerate turns on by default is for FSDP, so it is off here.

    Raises:
        UnsupportedError: accelerate or torchao is too old.
    """
    try:
        by_accelerate = importlib.import_module("accelerate.utils.ao")
        settings = importlib.import_module("torchao.float8").Float8LinearConfig(
            pad_inner_dim=True, enable_fsdp_float8_all_gather=False
        )
        by_accelerate.convert_model_to_fp8_ao(model, config=settings)
    except (ImportError, AttributeError, TypeError) as error:
        raise UnsupportedError(
            f"cannot convert linear layers to fp8 ({error}): pip install -U torchao accelerate"
        ) from error
    notes.append(_NOTE)
    if simulated:
        notes.append("no time is predicted: estimates of FP8 were never compared with a GPU")
