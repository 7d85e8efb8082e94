"""What a target is written for: a rung at its micro-batch size, and where it was measured."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from oomdoctor.errors import ExitCode, OomDoctorError
from oomdoctor.records.configuration.config import TrainConfig
from oomdoctor.records.job.machine import DeviceType
from oomdoctor.records.job.model import Task


@dataclass(frozen=True, slots=True)
class StackRung:
    """A rung to export; `config.micro_batch_size` is an integer.

    `model` is a hub id or a folder. `origin` are the lines that say where the rung is from: the
    run, the peak and the libraries. `beside` are settings of the user's file that no rung has, by
    the keys of `Beside`. `quant_method` is how the checkpoint is quantized.
    """

    config: TrainConfig
    label: str
    model: str
    task: Task = "causal-lm"
    revision: str | None = None
    trust_remote_code: bool = False
    origin: tuple[str, ...] = ()
    versions: Mapping[str, str | None] = field(default_factory=dict)
    device: DeviceType = "cuda"
    quant_method: str | None = None
    beside: Mapping[str, str | int | float] = field(default_factory=dict)

    @property
    def epochs(self) -> float:
        """How often the script goes through the data: one time, if the user's file says nothing."""
        return float(self.beside.get("epochs", 1))


# What a training usually starts with; adapters take larger steps than all weights.
_LEARNING_RATES = {
    "default": (2e-5, 2e-4),
    "dpo": (1e-6, 1e-5),
    "reward": (1e-5, 1e-4),
    "grpo": (1e-6, 1e-5),
}


def learning_rate(config: TrainConfig) -> float:
    """A learning rate to start with, which the user replaces."""
    return _LEARNING_RATES[config.objective][config.method != "full"]


def not_in(target: str, what: str, instead: str | None = None) -> OomDoctorError:
    """The error for a rung that a target cannot say (exit 3)."""
    message = f"{target} cannot express {what}"
    return OomDoctorError("not_expressible", message, instead, ExitCode.NO)
