"""The attention implementation of a built model, which says more about its kernel than a trace."""

from __future__ import annotations

from oomdoctor.worker.training.build import Setup


def attention_implementation(setup: Setup) -> str:
    """transformers' name of the implementation that runs; empty if the model does not say."""
    if setup.config.library == "unsloth":
        return ""  # it decides in each forward pass, and the configuration does not say how
    if setup.fell_back_to_eager:
        return "eager"
    config = getattr(setup.model, "config", setup.model_config)
    return str(getattr(config, "_attn_implementation", None) or "")
