"""TRL: `SFTConfig` and `ModelConfig`, as `trl sft --config FILE` reads them.

Names are those of TRL 1.16, with older ones.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from oomdoctor.records.configuration.config import TrainConfig
from oomdoctor.records.report.user_training import Document
from oomdoctor.stacks.names.row import LEFT_OUT, listed, words_of
from oomdoctor.stacks.names.tables import table
from oomdoctor.stacks.names.values import integer, word
from oomdoctor.stacks.partial_config import PartialConfig, RungKeys
from oomdoctor.stacks.programs.arguments import ARGUMENTS, FROM_PRETRAINED, SCRIPT
from oomdoctor.stacks.programs.program import Program, facts


def _pads_to(value: object) -> PartialConfig:
    """`pad_to_multiple_of`: its "auto" is none on a GPU."""
    return {} if word(value) in ("none", "null", "auto") else {"pads_to": integer(value)}


def _multiple(config: TrainConfig) -> object:
    """1 is the length of the longest row."""
    multiples = {"longest": 1, "max_length": config.sequence_length}
    return multiples.get(config.padding, LEFT_OUT)


def _prompt(config: TrainConfig) -> object:
    if config.objective != "grpo" or not config.completion_length:
        return LEFT_OUT
    return config.sequence_length - config.completion_length


def _with_vllm(config: TrainConfig) -> bool:
    return config.vllm_gpu_memory_utilization > 0


def _reward(value: object) -> PartialConfig:
    return {} if value is None else {"objective": "reward"}


MODEL_CONFIG = FROM_PRETRAINED | table("trl_model")
OBJECTIVES = table("trl_objectives", globals())
SFT_CONFIG = ARGUMENTS | table("trl_sft", globals())
TRL = SFT_CONFIG | OBJECTIVES | MODEL_CONFIG


def _adapters(given: PartialConfig, rung: RungKeys) -> str | None:
    """It casts those of a quantized model; with float16, the gradient scaler stops at the cast."""
    scaled = rung.get("autocast_dtype") == "float16"
    return "bfloat16" if rung["method"] == "qlora" and not scaled else None


_CHUNKED_SINCE = (1, 16)  # `SFTTrainer` calls `add_fused_lm_head` for all losses
_TRAINER = "SFTTrainer"


def in_chunks(document: Document, settings: Mapping[str, object]) -> str | None:
    """The release of TRL, if it computes the loss in chunks for these settings; else None.

    A script that defines its trainer may have another loss, so the usual one is taken.
    """
    library = document.library or document.parser
    of_trainers = document.path.endswith(".py") or document.calls
    if of_trainers and _TRAINER not in document.calls:
        return None
    match = re.match(r"trl (\d+)\.(\d+)", library or "")
    if match is None or (int(match[1]), int(match[2])) < _CHUNKED_SINCE:
        return None
    plain = settings.get("objective", "default") == "default" and "loss" not in settings
    sharded_by_zero = str(settings.get("sharding", "")).startswith("zero")
    if not plain or sharded_by_zero or document.values.get("loss_type") == "dft":
        return None
    return library


CONFIGS = words_of("trl trainers")
"""The configurations of its trainers, and what they train for."""
TRAINERS = tuple(f"{name.removesuffix('Config')}Trainer" for name in CONFIGS)
# Other trainers, whose steps a rung does not have.
OTHER_CONFIGS = listed(
    "BCOConfig CPOConfig DistillationConfig GKDConfig KTOConfig NashMDConfig ORPOConfig "
    "OnlineDPOConfig PPOConfig PRMConfig RLOOConfig XPOConfig"
)
NOT_ITS_STEP = "oomdoctor does not have the step of its trainer; a plain step is taken"
"""Why one of `OTHER_CONFIGS` is not taken."""
COMMANDS = {name.removesuffix("Config").lower(): name for name in (*CONFIGS, *OTHER_CONFIGS)}
"""The configuration of each `trl COMMAND`."""
PROGRAM = Program(
    **facts("trl"),
    names=TRL,
    script=TRL | SCRIPT,
    classes=frozenset((*CONFIGS, *TRAINERS)) | OTHER_CONFIGS,
    adapters=_adapters,
)
