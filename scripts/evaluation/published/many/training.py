"""One rung of several GPUs as a row's code ran it: a job in this process, with adaptations.

    python training.py JOB.json REPLY.json [ADAPTATION ...]

It does what the worker of `oomdoctor plan --gpus` does. Older libraries are called as they want it.
"""

from __future__ import annotations

import sys
from contextlib import ExitStack
from inspect import signature
from pathlib import Path
from typing import Any


def main(job_file: Path, reply_file: Path, names: list[str]) -> None:
    from old_code.engines import ENGINE_ADAPTATIONS

    from oomdoctor.records.codec import dumps, loads
    from oomdoctor.records.job.result import ProbeJob
    from oomdoctor.worker.answer import answer
    from oomdoctor.worker.protocol import PhaseFile, phase_file

    job = loads(ProbeJob, job_file.read_text())
    _call_older_trainers()
    with ExitStack() as stack:
        for name in names:
            stack.enter_context(ENGINE_ADAPTATIONS[name].apply(job.config))
        reply = answer(job, PhaseFile(phase_file(reply_file)), reply_file.parent)
    reply_file.write_text(dumps(reply))


def _call_older_trainers() -> None:
    """Let transformers' Trainers from 4.45 to 4.50 take what the worker gives to later ones."""
    from transformers import Trainer

    usual = 4  # self, the batches, their number, the device
    collect = getattr(Trainer, "get_batch_samples", None)
    if collect is None:  # before 4.46, where nobody counted the tokens of a step
        step = Trainer.training_step

        def training_step(self: Any, model: Any, inputs: Any, _: Any = None) -> Any:
            return step(self, model, inputs)

        Trainer.get_batch_samples = lambda _, batches, *__: (list(batches), None)
        Trainer.training_step = training_step
    elif len(signature(collect).parameters) < usual:
        Trainer.get_batch_samples = lambda self, *given: collect(self, *given[:2])


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3:])
