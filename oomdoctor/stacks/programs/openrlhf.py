"""OpenRLHF: the options of its commands. Names are those of OpenRLHF 0.11, with older ones."""

from __future__ import annotations

from collections.abc import Collection

from oomdoctor.stacks.names.tables import table
from oomdoctor.stacks.names.values import integer
from oomdoctor.stacks.partial_config import PartialConfig
from oomdoctor.stacks.programs import rollouts
from oomdoctor.stacks.programs.program import Program, facts

_KL = 0.01  # --algo.kl.init_coef
_GPUS_OF_ACTOR = 8


def _engines(value: object) -> PartialConfig:
    return {} if value is None else {"use_vllm": integer(value) > 0}


def _elsewhere(value: object) -> PartialConfig:
    """A reward model behind an address is on no GPU of the job."""
    return {"reward_stays": False} if value else {}


OPENRLHF = table("openrlhf", {**vars(rollouts), **globals()})


def _prepare(given: PartialConfig, said: Collection[str]) -> None:
    """DeepSpeed trains. The engine is on other GPUs, unless all models share theirs."""
    if given.get("objective") == "grpo":
        given.setdefault("beta", _KL)
        given.setdefault("gpus_of_node", _GPUS_OF_ACTOR)
        given.setdefault("vllm_mode", "server")
        shared = given["vllm_mode"] == "colocate"
        given["critic_on"] = shared and given.get("critic_of_estimator", False)
        given["critic_moves_states"] = given.get("rollout_moves_states", False)
        given["reward_stays"] = shared and given.get("reward_stays", True)
        given.setdefault("critic_name", given.get("reward_name", given.get("model", "")))
    given["effective_batch_size"] = given["batch_of_data"]
    given["distributed"] = "deepspeed"
    rollouts.fill_sizes(given)


PROGRAM = Program(**facts("openrlhf"), names=OPENRLHF, prepare=_prepare)
