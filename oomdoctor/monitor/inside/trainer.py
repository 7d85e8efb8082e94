"""What runs where transformers, DeepSpeed and Unsloth take their steps, once they are imported.

transformers' Trainer is stopped as a callback does, so that the script goes on to save.
It also tells its micro-batch size.

What Unsloth reads of weights, which have no values on the emulated GPU.

Before training it looks for tokens whose embedding is zero. There, that is every token of the data,
so it would refuse to train.
"""

from __future__ import annotations

import sys
from functools import wraps
from pathlib import Path
from typing import Any

from oomdoctor.monitor.shared_folder import asked
from oomdoctor.system.environment import WATCH_FOLDER, variable

_UNSLOTH = "unsloth_zoo.tokenizer_utils"


def add_callback() -> None:
    """Add our callback to those that every Trainer starts with."""
    from transformers import trainer
    from transformers.trainer_callback import TrainerCallback

    from oomdoctor.monitor.inside import process_watch

    class StopWatched(TrainerCallback):  # type: ignore[misc]
        """Ends the training once the watch says so."""

        def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            process_watch.trainers += 1
            watch = process_watch.current()
            if watch is not None:
                whole = getattr(state, "train_batch_size", None) or args.train_batch_size
                watch.micro_batch_size = whole // max(1, args.n_gpu)

        def on_train_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            process_watch.trainers = max(0, process_watch.trainers - 1)

        def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> Any:
            watch = process_watch.current()
            if watch is not None and watch.stopped is not None:
                control.should_training_stop = True
            return control

    trainer.DEFAULT_CALLBACKS.append(StopWatched)


def change_settings() -> None:
    """Let each TrainingArguments have the settings of a remedy that is tried."""
    from transformers.training_args import TrainingArguments

    changes = asked(Path(variable(WATCH_FOLDER) or "")).get("changes") or {}
    prepare = TrainingArguments.__post_init__

    @wraps(prepare)
    def changed(self: Any, *args: Any, **kwargs: Any) -> Any:
        for name, value in changes.items():
            setattr(self, name, value)
        return prepare(self, *args, **kwargs)

    if changes:
        TrainingArguments.__post_init__ = changed


def mark_steps(module: str, name: str, method: str) -> None:
    """Let our step end where the `method` of the engine in an imported module ends."""
    from oomdoctor.monitor.inside import process_watch

    engine = getattr(sys.modules[module], name)
    take = getattr(engine, method)

    @wraps(take)
    def marked(self: Any, *args: Any, **kwargs: Any) -> Any:
        before = self.global_steps
        process_watch.engines += 1
        try:
            result = take(self, *args, **kwargs)
        finally:
            process_watch.engines -= 1
        here = process_watch.current()
        if here is not None and self.global_steps > before:
            here.end_step()
        return result

    setattr(engine, method, marked)


def trust_embeddings() -> None:
    """Let the check of an imported Unsloth find that all tokens of the data are trained."""

    def fix_untrained_tokens(*_: Any, **__: Any) -> None:
        return

    unsloth: Any = sys.modules[_UNSLOTH]
    if hasattr(unsloth, "fix_untrained_tokens"):
        unsloth.fix_untrained_tokens = fix_untrained_tokens
