"""The one training step, the same for measuring and for simulating.

It is transformers' own: `Trainer.training_step` for each micro-batch (loss scaled for accumulation,
accelerate's autocast and gradient scaler), then clipping, the optimizer and zero_grad as in the
Trainer's inner loop.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from oomdoctor.worker.training.build import Setup

Mark = Callable[[str], None]


def training_step(setup: Setup, batches: list[dict[str, Any]], mark: Mark) -> list[Any]:
    """One optimizer step over `batches` micro-batches; returns their detached losses.

    `mark` is told "forward" before each micro-batch and "optimizer" after the last backward; the
    Trainer built by `build` tells "backward" in between. As in the Trainer, a micro-batch's loss
    is already divided, so the losses of one step add up to its mean.
    """
    trainer, model = setup.trainer, setup.model
    trainer.current_gradient_accumulation_steps = len(batches)
    trainer.args.gradient_accumulation_steps = len(batches)
    samples, items = trainer.get_batch_samples(iter(batches), len(batches), setup.device)
    losses = []
    for inputs in samples:
        mark("forward")
        loss = trainer.training_step(model, inputs, items)
        _keep_books(trainer, loss, inputs)
        losses.append(loss)
    mark("optimizer")
    trainer.accelerator.clip_grad_norm_(model.parameters(), trainer.args.max_grad_norm)
    trainer.optimizer.step()
    model.zero_grad()
    return losses


def _keep_books(trainer: Any, loss: Any, inputs: dict[str, Any]) -> None:
    """What the Trainer's loop does after each micro-step, because it costs time on a GPU.

    Its filter for losses that are no number waits for the device, and it counts operations over
    all parameters (`logging_nan_inf_filter`, `floating_point_ops`).
    """
    bool(loss.isnan() or loss.isinf())
    trainer.floating_point_ops(inputs)


def evaluation_step(setup: Setup, batch: dict[str, Any]) -> float:
    """One evaluation step as `Trainer.evaluate` does it without `compute_metrics`; the loss."""
    setup.model.eval()
    loss, _, _ = setup.trainer.prediction_step(setup.model, batch, prediction_loss_only=True)
    setup.model.train()
    return float(loss)
