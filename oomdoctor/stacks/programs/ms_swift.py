"""ms-swift: its own settings beside transformers' `TrainingArguments`.

Names are those of ms-swift 4.6, with older ones that people still use.
"""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import replace

from oomdoctor.records.configuration.config import TrainConfig, is_zero, scored_tokens
from oomdoctor.stacks.names.row import LEFT_OUT, Row, Settings, words_of
from oomdoctor.stacks.names.tables import table
from oomdoctor.stacks.names.values import integer
from oomdoctor.stacks.partial_config import PartialConfig, RungKeys
from oomdoctor.stacks.programs import trl
from oomdoctor.stacks.programs.arguments import ARGUMENTS
from oomdoctor.stacks.programs.program import Program, facts, with_examples
from oomdoctor.stacks.rung import StackRung

COMMANDS = {"sft": "default", "pt": "default", "rlhf": "dpo"}
"""What each `swift COMMAND` trains for, unless `rlhf_type` says otherwise."""
ENGINES = words_of("ms-swift deepspeed")
"""Files of DeepSpeed that it brings with it, by their names."""
_ROWS_OF_STEP = 16  # on all GPUs, where gradient_accumulation_steps is left open
_OF_GRPO: PartialConfig = {"num_generations": 8, "completion_length": 512, "beta": 0.04}


def _sleeps(value: object) -> PartialConfig:
    return {} if value is None else {"vllm_enable_sleep_mode": integer(value) > 0}


def _row_length(config: TrainConfig) -> int:
    """`max_length`: of a row, or of the prompt before a completion."""
    scored = scored_tokens(config) if config.objective == "grpo" else 0
    return config.sequence_length - scored


def _engine_word(config: TrainConfig) -> object:
    """The file of DeepSpeed that is nearest to a rung."""
    if not is_zero(config):
        return LEFT_OUT
    whole = {"zero2": "optimizer", "zero3": "parameters"}.get(config.sharding)
    return f"{config.sharding}_offload" if config.offload == whole else config.sharding


def _read_only(row: Row) -> Row:
    """A setting of a file that `deepspeed` or `fsdp` name, which ms-swift has by that name."""
    return replace(row, write=None) if row.name.startswith(_IN_FILES) else row


_IN_FILES = ("deepspeed.", "fsdp_config.")
_ARGUMENTS = replace(ARGUMENTS, rows=tuple(map(_read_only, ARGUMENTS.rows)))
MS_SWIFT = _ARGUMENTS | table("ms-swift", {**vars(trl), **globals()})


def _prepare(given: PartialConfig, said: Collection[str]) -> None:
    """What ms-swift fills in by other settings: a step of 16 rows, and GRPO's own defaults."""
    if "accumulation_steps" not in said:
        rows = given.get("micro_batch_size", 1) * given.get("world_size", 1)
        given["accumulation_steps"] = max(1, math.ceil(_ROWS_OF_STEP / rows))
    if given.get("trl_packing") and "packing_length" in given:
        given["sequence_length"] = given["packing_length"]
    if given.get("objective") == "grpo":
        for key, value in _OF_GRPO.items():
            given.setdefault(key, value)  # type: ignore[misc]
        if "sequence_length" in said:  # that of prompts
            given["prompt_length"] = given["sequence_length"]


def _decide(given: PartialConfig, rung: RungKeys) -> RungKeys:
    """A row of GRPO is a prompt and a completion."""
    if given.get("objective") != "grpo" or "prompt_length" not in given:
        return {}
    return {"sequence_length": given["prompt_length"] + given["completion_length"]}


def _precision(
    given: PartialConfig, rung: RungKeys, said: Collection[str], weights: str, mixed: str
) -> tuple[str, str]:
    """Autocast follows the weights: bfloat16 for these, float16 for the others."""
    if "mixed_bfloat16" in said or "mixed_float16" in said:
        return weights, mixed
    return weights, "bfloat16" if weights in ("auto", "bfloat16") else "float16"


def _complete(rung: StackRung, settings: Settings) -> Settings:
    """The data set and the learning rate are examples to replace."""
    head: Settings = {"model": rung.model, "use_hf": True}
    if rung.revision:
        head["model_revision"] = rung.revision
    return with_examples("ms-swift", rung, head | settings)


PROGRAM = Program(
    **facts("ms-swift"),
    names=MS_SWIFT,
    prepare=_prepare,
    decide=_decide,
    precision=_precision,
    complete=_complete,
)
