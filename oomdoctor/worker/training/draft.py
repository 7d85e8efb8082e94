"""A training while it is built: what the techniques of a rung read and change."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from oomdoctor.records.configuration.config import TrainConfig
from oomdoctor.records.job.result import ProbeJob
from oomdoctor.worker.protocol import OnHost

if TYPE_CHECKING:
    import torch
    from torch.nn import Module
    from torch.optim import Optimizer
    from transformers import PretrainedConfig, PreTrainedModel, Trainer, TrainingArguments

OnPhase = Callable[[str], None]


@dataclass(slots=True)
class Draft:
    """A training that is being built; what is not there yet cannot be read.

    The Trainer's step calls `on_phase` at the end of each forward pass. `on_host` is where tensors
    are made that leave the device. `around` wraps the model that accelerate has prepared.
    """

    job: ProbeJob
    device: torch.device
    on_phase: OnPhase | None
    on_host: OnHost
    notes: list[str] = field(default_factory=list)
    model_config: PretrainedConfig = field(init=False)
    arguments: TrainingArguments = field(init=False)
    model: PreTrainedModel = field(init=False)
    trainer: Trainer = field(init=False)
    optimizer: Optimizer = field(init=False)
    around: Callable[[Module], Module] | None = None

    @property
    def config(self) -> TrainConfig:
        """The rung."""
        return self.job.config

    @property
    def simulated(self) -> bool:
        """Whether the step will be simulated."""
        return self.job.mode == "simulate"
