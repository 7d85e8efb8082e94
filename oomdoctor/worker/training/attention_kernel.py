"""Find out which attention kernel ran, from the operators of a step."""

from __future__ import annotations

from oomdoctor.records.facts.attention import KERNELS
from oomdoctor.worker.training.build import Setup


def attention_kernel(setup: Setup, operators: set[str]) -> str | None:
    """The attention kernel that ran; None if unknown. `operators` are those with attention."""
    names = " ".join(sorted(operators))
    config = getattr(setup.model, "config", setup.model_config)
    chosen = str(getattr(config, "_attn_implementation", None) or "")
    if setup.config.compile and not operators:
        return None  # compiled code calls kernels that no trace sees
    if setup.fell_back_to_eager:
        chosen = "eager"
    for part, kernel in KERNELS:
        if part in names:
            return kernel
    if chosen == "sdpa":
        return "sdpa: math"
    return chosen or None
