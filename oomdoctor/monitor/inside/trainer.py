"""transformers' Trainer: stop it as a callback does, so that the script goes on to save.

It also tells its micro-batch size.
"""

from __future__ import annotations

from typing import Any


def add_callback() -> None:
    """Add our callback to those that every Trainer starts with."""
    from transformers import trainer
    from transformers.trainer_callback import TrainerCallback

    from oomdoctor.monitor.inside.start import current

    class StopWatched(TrainerCallback):  # type: ignore[misc]
        """Ends the training once the watch says so."""

        def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            _set_trainer(True)
            _note_micro_batch(args, state)

        def on_train_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            _set_trainer(False)

        def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> Any:
            watch = current()
            if watch is not None and watch.stopped is not None:
                control.should_training_stop = True
            return control

    def _note_micro_batch(args: Any, state: Any) -> None:
        watch = current()
        if watch is not None:
            whole = getattr(state, "train_batch_size", None) or args.train_batch_size
            watch.micro_batch_size = whole // max(1, args.n_gpu)

    def _set_trainer(running: bool) -> None:
        from oomdoctor.monitor.inside import process_watch

        process_watch.trainers = max(0, process_watch.trainers + (1 if running else -1))

    trainer.DEFAULT_CALLBACKS.append(StopWatched)
