"""Liger's fused kernels, put into a model as the Trainer would."""

from __future__ import annotations

import importlib
from typing import Any

from oomdoctor.worker.protocol.unsupported import UnsupportedError


def apply_kernels(model: Any, notes: list[str]) -> None:
    """Put Liger's kernels into a model, which peft may have wrapped, as the Trainer would.

    transformers 5.23 does so in `Trainer.train`, which a single step never enters, older versions
    as the Trainer is made. `notes` hears of a model that Liger leaves as it is.

    Raises:
        UnsupportedError: the package does not fit the installed libraries or this model.
    """
    base = model.get_base_model() if hasattr(model, "get_base_model") else model
    kind = base.config.model_type
    try:
        liger = importlib.import_module("liger_kernel.transformers")
        known = importlib.import_module("liger_kernel.transformers.monkey_patch")
        liger._apply_liger_kernel_to_instance(model=base)
    except (ImportError, ValueError) as error:
        raise UnsupportedError(f"Liger kernels cannot be put into {kind}: {error}") from error
    if kind not in known.MODEL_TYPE_TO_APPLY_LIGER_FN:
        notes.append(f"Liger has no kernels for {kind}: trained as without them")
