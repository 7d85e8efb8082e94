"""Contradictions between what a rung trains for and its other keys."""

from __future__ import annotations

from oomdoctor.records.config import TrainConfig

_REFERENCES = {"precomputed": "dpo", "kl": "grpo"}
_CHECKPOINTING = ("none", "full", "attention", "mlp")


def objective_faults(config: TrainConfig) -> list[tuple[str, str]]:
    """Settings that TRL's trainers do not have, as (key, sentence)."""
    found: list[tuple[str, str]] = []
    objective, completion = config.objective, config.completion_length
    wanted = _REFERENCES.get(config.reference)
    if wanted is not None and objective != wanted:
        found.append(("reference", f'"{config.reference}" needs objective = "{wanted}"'))
    if objective in _REFERENCES.values() and not 0 <= completion < config.sequence_length:
        found.append(
            ("completion_length", "must leave room for a prompt in sequence_length; 0 is half")
        )
    if not 0.0 <= config.vllm_gpu_memory_utilization < 1.0:
        found.append(("vllm_gpu_memory_utilization", "must be at least 0 and below 1"))
    if objective == "default":
        return found
    if objective == "grpo" and config.num_generations < 2:
        found.append(("num_generations", "must be at least 2: GRPO compares completions"))
    elif objective == "grpo" and config.effective_batch_size % config.num_generations:
        found.append(
            (
                "num_generations",
                f"{config.num_generations} does not divide the effective batch size "
                f"{config.effective_batch_size}",
            )
        )
    if config.loss != "default":
        found.append(("loss", f"TRL computes the loss of {objective} itself, without all logits"))
    if config.packing != "none":
        found.append(("packing", f"TRL pads the sequences of {objective}"))
    if config.padding != "none" and objective == "grpo":
        found.append(("padding", "a rung of GRPO has completions of full length"))
    if objective != "reward" and config.activation_checkpointing not in _CHECKPOINTING:
        found.append(
            (
                "activation_checkpointing",
                "TRL turns it off for other passes and on again for all layers; use full",
            )
        )
    return found
