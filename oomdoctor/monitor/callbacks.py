"""The same watch as a callback: for transformers' Trainer, and for Lightning.

The classes can be imported without transformers or Lightning, and without torch. An instance is
also one of the library's own callback class, so the library is imported when one is made.
"""

from __future__ import annotations

import importlib
import sys
from functools import cache, partial
from typing import Any

from oomdoctor.monitor.memory import MemoryWatch

_LIGHTNING = ("lightning.pytorch", "pytorch_lightning")


class _Callback:
    """What the callbacks of both libraries do. They take the options of `watch_memory`."""

    def __init__(self, *, metrics: bool = True, **options: Any) -> None:
        self.memory = MemoryWatch(**options)
        self._options, self._metrics = options, metrics

    def __reduce__(self) -> Any:
        return partial(_own_class(self), metrics=self._metrics, **self._options), ()

    def on_train_end(self, *_: Any, **__: Any) -> None:
        """End the watch."""
        self.memory.close()

    def _begin(self, steps: float) -> None:
        """Begin to watch, once for each training; `steps` is its length, if that is known."""
        self.memory.close()
        self.memory = MemoryWatch(**self._options)
        self.memory.start(int(steps) if 0 < steps < float("inf") else None)


class MemoryCallback(_Callback):
    """Watches the memory of transformers' Trainer, and of trainers built on it such as TRL's.

    Trainer(..., callbacks=[MemoryCallback(warn_at=0.92)])

    Takes the options of `watch_memory`. With `metrics`, memory goes with the losses to TensorBoard,
    Weights & Biases, MLflow or wherever the Trainer reports to, as `oomdoctor/..` in GiB.
    """

    def __new__(cls, *_: Any, **__: Any) -> MemoryCallback:
        return object.__new__(mixed_with(cls, "transformers.trainer_callback", "TrainerCallback"))

    def on_init_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """The Trainer was made."""
        _become_first(self)

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Begin to watch."""
        _become_first(self)
        self._begin(state.max_steps)

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """An optimizer step has ended."""
        self.memory.step(state.global_step)

    def on_log(
        self, args: Any, state: Any, control: Any, logs: dict[str, Any] | None = None, **_: Any
    ) -> None:
        """Add memory to what the Trainer logs of its steps, not of evaluations or at the end."""
        if not self._metrics or not logs or "train_runtime" in logs:
            return
        if any(name.startswith(("eval_", "test_", "predict_")) for name in logs):
            return
        metrics = self.memory.metrics()
        logs.update(metrics)
        if state.log_history and state.log_history[-1].get("step") == state.global_step:
            state.log_history[-1].update(metrics)


class LightningMemoryCallback(_Callback):
    """Watches the memory of Lightning's Trainer.

    Trainer(..., callbacks=[LightningMemoryCallback(warn_at=0.92)])

    Takes the options of `watch_memory`. With `metrics`, memory goes to the Trainer's loggers.
    """

    def __new__(cls, *_: Any, **__: Any) -> LightningMemoryCallback:
        package = next((name for name in _LIGHTNING if name in sys.modules), _LIGHTNING[0])
        return object.__new__(mixed_with(cls, package, "Callback"))

    _seen = 0  # the step that was taken last

    def on_train_start(self, trainer: Any, module: Any) -> None:
        """Begin to watch."""
        self._begin(trainer.estimated_stepping_batches)
        self._seen = trainer.global_step

    def on_train_batch_end(self, trainer: Any, module: Any, *_: Any, **__: Any) -> None:
        """A batch has ended, which is a step unless gradients are accumulated."""
        if trainer.global_step <= self._seen:
            return
        self._seen = trainer.global_step
        self.memory.step(trainer.global_step)
        if self._metrics and trainer.global_step % trainer.log_every_n_steps == 0:
            metrics = self.memory.metrics()
            if metrics:
                module.log_dict(metrics, on_step=True, on_epoch=False)

    def on_exception(self, trainer: Any, module: Any, exception: BaseException) -> None:
        """The training was ended by an exception."""
        self.memory.failed(exception)
        self.memory.close()


def mixed_with(cls: type, module: str, name: str) -> type:
    """The class, as one that also is the library's."""
    theirs = getattr(importlib.import_module(module), name)
    if issubclass(cls, theirs):  # a subclass of the user's names it as a base itself
        return cls
    return _mixed(cls, theirs)


@cache
def _mixed(cls: Any, theirs: Any) -> type:
    return type(cls.__name__, (cls, theirs), {"__module__": cls.__module__, "is_mixed": True})


def _own_class(callback: Any) -> type:
    """The class that was asked for, which can be found by its name."""
    kind = type(callback)
    return kind.__bases__[0] if getattr(kind, "is_mixed", False) else kind


def _become_first(callback: MemoryCallback) -> None:
    """Be asked before the callbacks that report to loggers, so that they see our metrics.

    The Trainer puts those before the user's. Its list is found through the caller; if that is not
    possible, the metrics are only in the Trainer's own log.
    """
    frame = sys._getframe(2)
    handler = frame.f_locals.get("self")
    callbacks = getattr(handler, "callbacks", None)
    if isinstance(callbacks, list) and any(other is callback for other in callbacks):
        callbacks.remove(callback)
        callbacks.insert(0, callback)
