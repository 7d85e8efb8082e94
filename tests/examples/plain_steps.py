"""Training steps that nothing watches."""

from __future__ import annotations

from oomdoctor.worker.training.batch import Batch
from oomdoctor.worker.training.setup import Setup
from oomdoctor.worker.training.step import training_step


def step_loss(setup: Setup, batches: list[Batch]) -> float:
    """The loss of one optimizer step over these micro-batches."""
    training_step(setup, batches, lambda phase: None)
    return setup.books.logged()
