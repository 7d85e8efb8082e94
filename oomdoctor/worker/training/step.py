"""The training step, the same one for measuring and simulating.

It does what transformers does: `Trainer.training_step` for each micro-batch (with the loss scaled
for accumulation, autocast and accelerate's gradient scaler), then clipping, the optimizer and
zero_grad, as in the Trainer's inner loop. It holds what that loop holds (`books`).
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from oomdoctor.package_data import data_of
from oomdoctor.records.job.model import ModelSpec
from oomdoctor.worker.protocol import UnsupportedError
from oomdoctor.worker.training.batch import Batch, samples_of
from oomdoctor.worker.training.setup import Setup
from oomdoctor.worker.training.sharding import without_reduction
from oomdoctor.worker.training.techniques.adapter import how_to_reach
from oomdoctor.worker.training.techniques.routing import to_the_same_experts

if TYPE_CHECKING:
    from transformers import Trainer

Mark = Callable[[str], None]
# Parts of what libraries say in a step that no rung of this model and size can run -> why.
_IMPOSSIBLE: dict[str, str] = data_of("unsupported.toml")["steps"]
_LONGEST = 200  # characters of an error
MAX_SKIPPED = 25  # the scale starts at 2**16 and halves with each skipped step


def training_step(setup: Setup, batches: list[Batch], mark: Mark) -> None:
    """Run one optimizer step over all micro-batches; `setup.books` has its loss.

    It calls `mark` with "forward" before each micro-batch and with "optimizer" after the last
    backward pass. The Trainer of `build` adds "backward" in between. As in the Trainer, the loss of
    a micro-batch is already divided, so the losses of one step add up to its mean.
    """
    trainer, model, books = setup.trainer, setup.model, setup.books
    given = samples_of(setup, batches)
    trainer.current_gradient_accumulation_steps = len(batches)
    trainer.args.gradient_accumulation_steps = len(batches)
    samples, items = trainer.get_batch_samples(given, len(batches), setup.device)
    for number, inputs in enumerate(samples, 1):
        mark("forward")
        last = number == len(batches)
        trainer.accelerator.gradient_state._set_sync_gradients(last)
        reduced = nullcontext() if last else without_reduction(trainer, model)
        with _said_plainly(setup), _routed(setup), reduced:
            # The loss of the micro-batch before lives until this one is there.
            books.last = trainer.training_step(model, inputs, items)
        books.enter_loss()
        trainer.floating_point_ops(inputs)  # it walks all parameters, which takes time
    mark("optimizer")
    books.norm = None
    books.norm = _clipped(trainer, model)
    trainer.optimizer.step()
    model.zero_grad()


def _routed(setup: Setup) -> AbstractContextManager[None]:
    """A context in which tokens go where the rung says."""
    return to_the_same_experts(setup) if setup.config.routing == "worst" else nullcontext()


@contextmanager
def _said_plainly(setup: Setup) -> Iterator[None]:
    """In this context, what a library says of an impossible step is a reason to skip the rung.

    Raises:
        UnsupportedError: with the reason.
    """
    try:
        yield
    except (ValueError, RuntimeError, AttributeError, TypeError, LookupError) as error:
        reasons = (why for said, why in _IMPOSSIBLE.items() if said in str(error))
        why = next(reasons, None) or _fault_of_class(error, setup.job.model)
        if why is None:
            raise
        if "{way}" in why:
            why = why.format(way=how_to_reach(setup.model, setup.config))
        autocast = setup.config.autocast_dtype != "none"
        why = why.replace("{other}", "none" if autocast else "bfloat16")
        raise UnsupportedError(why) from error


def _fault_of_class(error: Exception, spec: ModelSpec) -> str | None:
    """That a class of transformers refuses a batch or fails; None for any other error.

    torch's errors have the line of a model too, but another type.
    """
    import transformers

    if isinstance(error, AttributeError) and isinstance(error.obj, transformers.PretrainedConfig):
        return f"config.json has no {error.name}, which the code of this class reads"
    *_, (frame, line) = traceback.walk_tb(error.__traceback__)
    file = Path(frame.f_code.co_filename)
    if isinstance(error, RuntimeError) or file.parts[-4:-2] != ("transformers", "models"):
        return None
    if isinstance(error, ValueError):
        return f"this class does not take such a batch: {error}"
    inside = "; --task causal-lm trains the language model inside"
    return (
        f"in transformers {transformers.__version__}, the code of this class fails on such a batch "
        f"({file.name}, line {line}: {type(error).__name__}: {_short(error)}); another release may "
        f"run it{inside if spec.task == 'image-text-to-text' else ''}"
    )


def _short(error: Exception) -> str:
    """What an error says, without the rest of a module that it prints."""
    text = " ".join(str(error).split())
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}..."


def whole_step(setup: Setup, batches: list[Batch], mark: Mark) -> None:
    """Run `training_step` until the gradient scaler does not skip the optimizer.

    A skipped first step creates no optimizer states, so it would show too little memory.
    """
    training_step(setup, batches, mark)
    for _ in range(MAX_SKIPPED):
        if not setup.trainer.accelerator.optimizer_step_was_skipped:
            break
        setup.books.logged()  # only the last step counts
        training_step(setup, batches, mark)


def _clipped(trainer: Trainer, model: torch.nn.Module) -> torch.Tensor | None:
    """The norm of the gradients as the Trainer keeps it, after clipping."""
    if not trainer.args.max_grad_norm:
        return None
    norm = trainer.accelerator.clip_grad_norm_(model.parameters(), trainer.args.max_grad_norm)
    # Of DeepSpeed's, the Trainer keeps a Python number.
    return None if trainer.is_deepspeed_enabled else norm


def evaluation_step(setup: Setup, batch: Batch) -> float:
    """Run one evaluation step like `Trainer.evaluate` without `compute_metrics`; the loss."""
    setup.model.eval()
    loss, _, _ = setup.trainer.prediction_step(setup.model, batch, prediction_loss_only=True)
    setup.model.train()
    return float(loss)
