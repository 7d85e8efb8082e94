"""A training from the start of its build to its last step, and what its loop keeps."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from oomdoctor.records.configuration.config import TrainConfig
from oomdoctor.records.job.model import Task
from oomdoctor.records.job.result import ProbeJob
from oomdoctor.worker.protocol import OnHost

if TYPE_CHECKING:
    import torch
    from torch.nn import Module
    from torch.optim import Optimizer
    from transformers import PretrainedConfig, PreTrainedModel, Trainer, TrainingArguments

OnPhase = Callable[[str], None]


@dataclass(slots=True)
class Books:
    """The few numbers that the Trainer's loop keeps on the device from one step to the next.

    The loss since the last line of the log, that of the last micro-batch, and a norm. Each is a
    scalar: 2 to 4 bytes, but a block of 512 in PyTorch's allocator.
    `norm` is that of the last gradients; the Trainer forgets it when it clips the next ones.
    """

    running: torch.Tensor
    last: torch.Tensor | None = None
    norm: torch.Tensor | None = None

    def enter_loss(self) -> None:
        """Add the last loss. As the Trainer, wait for the device, and leave out what is NaN."""
        assert self.last is not None
        if not (self.last.isnan() or self.last.isinf()):
            self.running += self.last

    def logged(self) -> float:
        """The loss since the last call, as the Trainer reads it for a line of the log."""
        loss = float(self.running)
        self.running -= self.running
        return loss

    def close(self) -> None:
        """Forget what a step left."""
        self.last = self.norm = None


@dataclass(slots=True)
class Setup:
    """A training that is built or ready to step; what is not there yet cannot be read.

    The Trainer's step calls `on_phase` at the end of each forward pass. `on_host` is where tensors
    are made that leave the device. `model` is in the end what accelerate or an engine made of it,
    with `around` around it; `trainer` owns the optimizer that steps. `fell_back_to_eager` is
    whether the architecture has no sdpa attention. `cut_batches` is DeepSpeed's loader, which goes
    on from step to step.
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
    books: Books = field(init=False)
    fell_back_to_eager: bool = False
    cut_batches: Iterator[dict[str, torch.Tensor | int]] | None = None

    @property
    def config(self) -> TrainConfig:
        """The rung."""
        return self.job.config

    @property
    def simulated(self) -> bool:
        """Whether the step will be simulated."""
        return self.job.mode == "simulate"

    @property
    def task(self) -> Task:
        """What the model is trained for."""
        return self.job.model.task

    @property
    def reference(self) -> Module | None:
        """A second model, which is not trained."""
        return getattr(self.trainer, "ref_model", None)


def without_adapter(model: Module) -> PreTrainedModel:
    """The transformers model inside peft's wrapper, or the model itself."""
    return model.get_base_model() if hasattr(model, "get_base_model") else model
