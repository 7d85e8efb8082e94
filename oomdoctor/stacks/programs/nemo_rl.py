"""NeMo-RL: the files of its examples, with DTensor as the engine.

FSDP 2 trains float32 weights in the precision of the file. Before vLLM generates on the same GPUs,
weights and states go to host memory, and vLLM sleeps while the policy trains.
"""

from __future__ import annotations

from collections.abc import Collection

from oomdoctor.stacks.names.tables import table
from oomdoctor.stacks.partial_config import PartialConfig
from oomdoctor.stacks.programs import rollouts
from oomdoctor.stacks.programs.program import Program, facts

NEMO_RL = table("nemo-rl", {**vars(rollouts), **globals()})


def _prepare(given: PartialConfig, said: Collection[str]) -> None:
    """Of a whole length for new tokens a prompt takes its part."""
    length, completion = given.get("sequence_length", 0), given.get("completion_length", 0)
    if length and completion >= length:
        del given["completion_length"]
    rollouts.fill_sizes(given)
    given["fsdp"] = "world_size" in given


PROGRAM = Program(**facts("nemo-rl"), names=NEMO_RL, prepare=_prepare)
