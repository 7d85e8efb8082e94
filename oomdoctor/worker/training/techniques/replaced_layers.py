"""Layers of a model that a library replaces: Liger's fused kernels, and linear layers in FP8.

FP8 is as accelerate's recipes do it. With torchao, weights, gradients and what is saved for the
backward pass keep their types. Each product casts its operands, so without torch.compile it takes
more memory for a moment, not less. Transformer Engine replaces the layers, and saves inputs and
weights in float8.
"""

from __future__ import annotations

import importlib
from types import ModuleType

import torch
from torch.nn import Module

from oomdoctor.worker.protocol import UnsupportedError, refused
from oomdoctor.worker.training.setup import Setup, without_adapter


def apply_kernels(setup: Setup) -> None:
    """Put Liger's kernels into the model, inside peft's wrapper if there is one.

    transformers 5.23 does this in `Trainer.train`, which a single step never enters. Older versions
    do it when the Trainer is made. A model for which Liger has no kernels gets a note.

    Raises:
        UnsupportedError: the package does not fit the installed libraries or this model.
    """
    base = without_adapter(setup.model)
    kind = base.config.model_type
    with refused(f"cannot put Liger kernels into {kind}", ImportError, ValueError):
        liger = importlib.import_module("liger_kernel.transformers")
        patches = importlib.import_module("liger_kernel.transformers.monkey_patch")
        liger._apply_liger_kernel_to_instance(model=base)
    if kind not in patches.MODEL_TYPE_TO_APPLY_LIGER_FN:
        setup.notes.append(f"Liger has no kernels for {kind}, so none are used")


_NOTE = (
    "fp8 multiplies all linear layers but the first and the last in float8; in a training script: "
    'accelerate\'s mixed_precision="fp8" with AORecipeKwargs'
)
_ENGINE_NOTE = (
    "fp8 replaces all linear layers and layer norms by Transformer Engine's, with delayed "
    'scaling; in a training script: accelerate\'s mixed_precision="fp8" with TERecipeKwargs'
)


def convert_to_torchao(setup: Setup) -> None:
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
        by_accelerate.convert_model_to_fp8_ao(setup.model, config=settings)
    except (ImportError, AttributeError, TypeError) as error:
        raise UnsupportedError(
            f"cannot convert linear layers to fp8 ({error}): pip install -U torchao accelerate"
        ) from error
    setup.notes.append(_NOTE)
    if setup.simulated:
        setup.notes.append("no time is predicted: estimates of FP8 were never compared with a GPU")


def convert_to_transformer_engine(setup: Setup) -> None:
    """Replace layers as accelerate does, which holds the old weights until all are replaced.

    An Accelerator must be there. The forward pass of the model that it prepares is in Transformer
    Engine's autocast, around that of torch.

    Raises:
        UnsupportedError: Transformer Engine cannot be imported here.
    """
    model = setup.trainer.model
    old = list(model.parameters())
    kinds = (ImportError, AttributeError, OSError)
    with refused("Transformer Engine cannot be used here", *kinds, one_line=True), torch.no_grad():
        _of_accelerate().convert_model(model)
    del old
    setup.notes.append(_ENGINE_NOTE)
    setup.around = _autocast


def _autocast(model: Module) -> Module:
    kind = getattr(importlib.import_module("accelerate.utils"), "TERecipeKwargs", None)
    recipe = None if kind is None else kind()  # accelerate 1.3 has only the usual recipe
    return _of_accelerate().apply_fp8_autowrap(model, recipe)


def _of_accelerate() -> ModuleType:
    return importlib.import_module("accelerate.utils.transformer_engine")
