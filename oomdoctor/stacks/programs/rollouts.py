"""What programs that train with an engine on the same GPUs share: verl, OpenRLHF and NeMo-RL.

Their step is taken as TRL's: it keeps more of the logits of a completion, and none of a prompt.
"""

from __future__ import annotations

from collections.abc import Mapping

from oomdoctor.records.facts.choices import FormatName
from oomdoctor.stacks.names.values import integer
from oomdoctor.stacks.partial_config import PartialConfig

COMMANDS: Mapping[str, tuple[FormatName, str]] = {
    "verl.trainer.main_ppo": ("verl", "grpo"),
    "verl.trainer.sft_trainer": ("verl", "default"),
    "verl.trainer.fsdp_sft_trainer": ("verl", "default"),
    "openrlhf.cli.train_ppo_ray": ("openrlhf", "grpo"),
    "openrlhf.cli.train_sft": ("openrlhf", "default"),
    "openrlhf.cli.train_dpo": ("openrlhf", "dpo"),
    "openrlhf.cli.train_rm": ("openrlhf", "reward"),
}
"""The modules that start a training: the program, and what it trains for."""
UNSAID: Mapping[str, Mapping[str, str]] = {
    "verl": {"algorithm.adv_estimator": "gae", "actor_rollout_ref.actor.strategy": "fsdp"},
    "openrlhf": {"algo.advantage.estimator": "gae"},
}
"""What trainers with an engine do if nothing is said, and a rung does not have."""


def rank(value: object) -> PartialConfig:
    """The rank of adapters, which is 0 without them."""
    return {"use_peft": True, "lora_rank": integer(value)} if integer(value) else {}


def fill_sizes(given: PartialConfig) -> None:
    """The number of GPUs, and the rows of a micro-batch that is said in tokens."""
    if "world_size" not in given and "gpus_of_node" in given:
        given["world_size"] = given["gpus_of_node"] * given.get("nodes", 1)
    tokens, length = given.get("tokens_of_micro"), given.get("sequence_length")
    if given.get("micro_of_tokens") and tokens and length:
        rows = given.get("effective_batch_size", 1) // given.get("world_size", 1)
        most = max(1, min(tokens // length, rows))
        given["micro_batch_size"] = next(size for size in range(most, 0, -1) if not rows % size)
    if given.get("num_generations", 2) < 2:  # PPO: how completions are grouped needs no memory
        given["num_generations"] = 2
