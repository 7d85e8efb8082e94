"""Which attention kernel really ran, told by the operators of a step."""

from __future__ import annotations

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
    for part, kernel in _KERNELS:
        if part in names:
            return kernel
    if chosen == "sdpa":
        return "sdpa: math"
    return chosen or None


_KERNELS = (
    ("_scaled_dot_product_flash_attention_for_cpu", "sdpa: flash (CPU)"),
    ("_scaled_dot_product_flash_attention", "sdpa: flash"),
    ("_scaled_dot_product_efficient_attention", "sdpa: memory-efficient"),
    ("_scaled_dot_product_cudnn_attention", "sdpa: cuDNN"),
    ("_scaled_dot_product_fused_attention_overrideable", "sdpa: fused"),
    ("flash_attn_3", "flash_attention_3"),
    ("flash_attn", "flash_attention_2"),
    ("flex_attention", "flex_attention"),
)
