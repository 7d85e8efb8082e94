"""Put Liger's fused kernels into a model, as the Trainer would."""

from __future__ import annotations

import importlib

from torch.nn import Module

from oomdoctor.worker.protocol.unsupported import UnsupportedError
from oomdoctor.worker.training.techniques.adapter import without_adapter


def apply_kernels(model: Module, notes: list[str]) -> None:
    """Put Liger's kernels into a model, inside peft's wrapper if there is one.

    transformers 5.23 does this in `Trainer.train`, which a single step never enters. Older versions
    do it when the Trainer is made. A model for which Liger has no kernels gets a note.

    Raises:
        UnsupportedError: the package does not fit the installed libraries or this model.
    """
    base = without_adapter(model)
    kind = base.config.model_type
    try:
        liger = importlib.import_module("liger_kernel.transformers")
        known = importlib.import_module("liger_kernel.transformers.monkey_patch")
        liger._apply_liger_kernel_to_instance(model=base)
    except (ImportError, ValueError) as error:
        raise UnsupportedError(f"cannot put Liger kernels into {kind}: {error}") from error
    if kind not in known.MODEL_TYPE_TO_APPLY_LIGER_FN:
        notes.append(f"Liger has no kernels for {kind}, so none are used")
