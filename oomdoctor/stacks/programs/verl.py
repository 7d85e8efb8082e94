"""verl: the settings of its trainers, as Hydra has them. Names are those of verl 0.9.

FSDP trains float32 weights in bfloat16. While the engine generates, what is said to be offloaded
is in host memory.
"""

from __future__ import annotations

from collections.abc import Collection

from oomdoctor.stacks.names.tables import table
from oomdoctor.stacks.partial_config import PartialConfig
from oomdoctor.stacks.programs import rollouts
from oomdoctor.stacks.programs.program import Program, facts

VERL = table("verl", {**vars(rollouts), **globals()})
_ROWS_OF_DATA, _PROMPTS, _LENGTH = 256, 256, 512
_TOKENS_OF_RL, _TOKENS = 16_384, 8192


def _prepare(given: PartialConfig, said: Collection[str]) -> None:
    """Its two kinds of trainers name sizes otherwise, and have other defaults."""
    if given.get("objective") == "grpo":
        given.setdefault("prompt_length", _LENGTH)
        given.setdefault("completion_length", _LENGTH)
        given.setdefault("use_vllm", True)
        given.setdefault("gpus_of_node", 8)
        given.setdefault("tokens_of_micro", _TOKENS_OF_RL)
        given["sequence_length"] = given["prompt_length"] + given["completion_length"]
        prompts = given.get("prompts_of_step", _PROMPTS)
        given["effective_batch_size"] = prompts * given.get("num_generations", 1)
    else:
        given.setdefault("effective_batch_size", given.get("batch_of_data", _ROWS_OF_DATA))
        given.setdefault("sequence_length", 2 * _LENGTH)
        given.setdefault("micro_of_tokens", "micro_batch_size" not in said)
        given.setdefault("tokens_of_micro", _TOKENS)
    rollouts.fill_sizes(given)
    given["fsdp"] = "world_size" in given


PROGRAM = Program(**facts("verl"), names=VERL, prepare=_prepare)
