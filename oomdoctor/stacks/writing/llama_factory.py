"""A rung as a configuration of LLaMA-Factory."""

from __future__ import annotations

from oomdoctor.stacks.rung import StackRung, learning_rate, not_in
from oomdoctor.stacks.writing.file import yaml_file
from oomdoctor.stacks.writing.lost import settings_of

# Data sets of its own that are of the right form.
_DATA = {"default": "alpaca_en_demo", "dpo": "dpo_en_demo", "reward": "dpo_en_demo"}


def render(rung: StackRung) -> str:
    """The YAML file. The data set, its template and the learning rate are examples to replace.

    Raises:
        OomDoctorError: LLaMA-Factory has no such objective (exit 3).
    """
    objective = rung.config.objective
    if objective not in _DATA:
        raise not_in("llama-factory", f"objective = {objective}", "use --to trl or --to axolotl")
    settings: dict[str, object] = {"model_name_or_path": rung.model}
    if rung.revision:
        settings["model_revision"] = rung.revision
    if rung.trust_remote_code:
        settings["trust_remote_code"] = True
    settings |= settings_of(rung.config, "llama-factory")
    if objective == "dpo":
        settings |= {"pref_beta": 0.1, "pref_loss": "sigmoid"}
    settings |= {
        "do_train": True,
        "dataset": _DATA[objective],
        "template": "default",
        "output_dir": "./outputs",
        "num_train_epochs": 1,
        "learning_rate": learning_rate(rung.config),
        "lr_scheduler_type": "cosine",
    }
    several = "FORCE_TORCHRUN=1 " if rung.config.world_size > 1 else ""
    command = f"{several}llamafactory-cli train train.yaml"
    return yaml_file(rung, "llama-factory", "LLaMA-Factory", command, settings)
