"""The launcher's part of a rung as a configuration of `accelerate launch`."""

from __future__ import annotations

from typing import Any

from oomdoctor.records.config import is_fsdp
from oomdoctor.stacks.rung import StackRung
from oomdoctor.stacks.writing.file import yaml_file
from oomdoctor.stacks.writing.lost import settings_of


def render(rung: StackRung) -> str:
    """The YAML file. It says how many GPUs there are and how they share the training."""
    settings: dict[str, Any] = {"compute_environment": "LOCAL_MACHINE", "debug": False}
    settings |= settings_of(rung.config, "accelerate")
    settings |= {"machine_rank": 0, "main_training_function": "main", "rdzv_backend": "static",
                 "same_network": True, "use_cpu": False}  # fmt: skip
    if is_fsdp(rung.config):
        settings["fsdp_config"] |= {
            "fsdp_auto_wrap_policy": "TRANSFORMER_BASED_WRAP",
            "fsdp_cpu_ram_efficient_loading": True,
            "fsdp_state_dict_type": "SHARDED_STATE_DICT",
        }
        if rung.config.fsdp_version == 1:
            settings["fsdp_config"] |= {
                "fsdp_sync_module_states": True,
                "fsdp_use_orig_params": True,
            }
    command = "accelerate launch --config_file accelerate.yaml train.py"
    return yaml_file(rung, "accelerate", "accelerate", command, settings)
