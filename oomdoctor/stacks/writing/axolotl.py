"""A rung as a configuration of axolotl."""

from __future__ import annotations

from oomdoctor.records.config import is_fsdp
from oomdoctor.stacks.rung import StackRung, learning_rate
from oomdoctor.stacks.writing.file import yaml_file
from oomdoctor.stacks.writing.lost import settings_of

# Data sets of the right form, which the user replaces, and what the objective needs beside them.
_SFT: dict[str, object] = {"datasets": [{"path": "tatsu-lab/alpaca", "type": "alpaca"}]}
_OBJECTIVES: dict[str, dict[str, object]] = {
    "dpo": {
        "datasets": [{"path": "Intel/orca_dpo_pairs", "split": "train", "type": "chatml.intel"}]
    },
    "reward": {
        "model_type": "AutoModelForSequenceClassification",
        "num_labels": 1,
        "remove_unused_columns": False,
        "datasets": [
            {"path": "argilla/distilabel-intel-orca-dpo-pairs",
             "type": "bradley_terry.chat_template"}
        ],
    },
    "grpo": {
        "datasets": [
            {"path": "openai/gsm8k", "name": "main", "type": "rewards.oai_gsm8k_transform"}
        ]
    },
}  # fmt: skip
_REWARDS = ["rewards.rand_reward_func"]  # in rewards.py beside the file: the user's own


def render(rung: StackRung) -> str:
    """The YAML file. The data set and the learning rate are examples to replace."""
    settings = {"base_model": rung.model} | settings_of(rung.config, "axolotl")
    if is_fsdp(rung.config):
        settings["fsdp_config"] = {
            "auto_wrap_policy": "TRANSFORMER_BASED_WRAP",
            "state_dict_type": "FULL_STATE_DICT",
        } | settings.get("fsdp_config", {})
    if rung.revision:
        settings["model_revision"] = rung.revision
    if rung.trust_remote_code:
        settings["trust_remote_code"] = True
    if rung.config.objective == "grpo":
        settings["trl"]["reward_funcs"] = _REWARDS
    settings |= {
        **_OBJECTIVES.get(rung.config.objective, _SFT),
        "output_dir": "./outputs",
        "num_epochs": 1,
        "learning_rate": learning_rate(rung.config),
        "lr_scheduler": "cosine",
    }
    gpus = rung.config.world_size
    launch = f"axolotl train train.yaml --num-processes {gpus}" if gpus > 1 else ""
    return yaml_file(rung, "axolotl", "axolotl", launch or "axolotl train train.yaml", settings)
