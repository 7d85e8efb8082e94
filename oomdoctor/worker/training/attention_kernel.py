"""Which attention kernel really ran, from the operators of a step."""

from __future__ import annotations

from oomdoctor.records.facts.attention import KERNELS
from oomdoctor.worker.training.build import Setup


def attention_kernel(setup: Setup, operators: set[str]) -> str | None:
    """The attention that really ran, from the operators that were seen."""
    names = " ".join(sorted(operators))
    config = getattr(setup.model, "config", setup.model_config)
    chosen = str(getattr(config, "_attn_implementation", None) or "")
    if setup.config.compile and not operators:
        return None  # compiled code calls kernels that nothing watches
    if any("eager was used" in note for note in setup.notes):
        chosen = "eager"
    for part, kernel in KERNELS:
        if part in names:
            return kernel
    if chosen == "sdpa":
        return "sdpa: math"
    return chosen or None
