"""A callback that stops a training at its start if it will run out of GPU memory.

It works on a login node too, for a card that is not there.
"""

from __future__ import annotations

import sys
import warnings
from types import FrameType, SimpleNamespace
from typing import Any

from oomdoctor.errors import ExitCode, OomDoctorError
from oomdoctor.library.estimate import Estimate, estimate
from oomdoctor.monitor.callbacks import mixed_with
from oomdoctor.units import format_bytes

_OF_EVALUATION = ("eval_dataset", "compute_metrics", "preprocess_logits_for_metrics")


class Preflight:
    """Estimates the memory of transformers' Trainer, and of TRL's, before its first step.

    Trainer(..., callbacks=[Preflight()])

    The rows are as long as the longest one of the data set, where it has tokens, and evaluations
    are those of the Trainer. On a GPU, what
    other processes and the program itself hold there at the start is taken into account. Where no
    estimate is possible, a warning says why, and the training goes on. `gpu` is a card or a size to
    judge by instead, such as on a login node. `estimate` is the last answer.
    """

    def __new__(cls, *_: Any, **__: Any) -> Preflight:
        return object.__new__(mixed_with(cls, "transformers.trainer_callback", "TrainerCallback"))

    def __init__(self, gpu: str | None = None, sequence_length: int | None = None) -> None:
        self.estimate: Estimate | None = None
        self._gpu, self._sequence_length = gpu, sequence_length

    def on_train_begin(
        self,
        args: Any,
        state: Any,
        control: Any,
        model: Any = None,
        train_dataloader: Any = None,
        **_: Any,
    ) -> None:
        """Judge the training that is about to start; one process of a machine does.

        Raises:
            OomDoctorError: it will run out of memory (exit 3).
        """
        if args.local_process_index:
            return
        gpus = args.world_size if args.world_size > 1 else None
        training = SimpleNamespace(
            model=model,
            args=args,
            train=None,
            train_dataset=getattr(train_dataloader, "dataset", None),
            **_evaluation_of(args),
        )
        try:
            answer = estimate(
                training, gpu=self._gpu, gpus=gpus, sequence_length=self._sequence_length
            )
        except OomDoctorError as error:
            warnings.warn(f"Preflight: no estimate: {error.message}", stacklevel=2)
            return
        self.estimate = answer
        if answer.short_bytes:
            raise _refusal(str(answer))
        if self._gpu is None and (told := _too_little_free(answer)) is not None:
            raise _refusal(told)
        if not answer.fits:
            warnings.warn(f"Preflight: {answer}", stacklevel=2)


def _evaluation_of(args: Any) -> dict[str, Any]:
    """What the Trainer of these settings has for its evaluation; nothing if it is not there.

    transformers gives a callback neither. The Trainer is what calls it, a few frames up.
    """
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        trainer = frame.f_locals.get("self")
        if getattr(trainer, "args", None) is args and hasattr(trainer, "compute_metrics"):
            return {name: getattr(trainer, name, None) for name in _OF_EVALUATION}
        frame = frame.f_back
    return {}


def _too_little_free(answer: Estimate) -> str | None:
    """What is missing on this process's GPU now; None if nothing, or if no GPU is used."""
    torch: Any = sys.modules.get("torch")
    result = answer.result
    if torch is None or not torch.cuda.is_available() or result.peak_reserved_bytes is None:
        return None
    free, total = torch.cuda.mem_get_info()
    available = free + torch.cuda.memory_reserved()
    short = result.peak_reserved_bytes - available
    if short <= 0:
        return None
    needs, has = format_bytes(result.peak_reserved_bytes), format_bytes(available)
    return (
        f"the training needs {needs} for tensors, and the GPU has {has} of {format_bytes(total)} "
        f"free for it, short by {format_bytes(short)}: another process may use the rest"
    )


def _refusal(what: str) -> OomDoctorError:
    return OomDoctorError(
        "does_not_fit",
        f"Preflight: {what}",
        "oomdoctor plan --from SCRIPT --gpu CARD says which changes make it fit",
        ExitCode.NO,
    )
