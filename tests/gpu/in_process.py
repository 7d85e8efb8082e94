"""What only shows inside the worker's process: `in_process.py plain-loop | scaler JOB`.

Run by test_gpu_probe.py in a process of its own, so that pytest never holds a CUDA context. Prints
one JSON object.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

from oomdoctor.records.codec import loads
from oomdoctor.records.job.result import ProbeJob

LOOPS = 20


def setup_of(job: ProbeJob) -> tuple[Any, Any, Any]:
    """The training of a job ready to step, its batches and its marks."""
    import torch

    from oomdoctor.worker.protocol import Marks, PhaseFile
    from oomdoctor.worker.training.batch import micro_batches
    from oomdoctor.worker.training.build import build

    device = torch.device("cuda:0" if job.device_type == "cuda" else "cpu")
    marks = Marks(PhaseFile(None))
    setup = build(job, device, marks)
    batches = micro_batches(setup, job.config, count=job.config.accumulation_steps())
    return setup, batches, marks


def plain_loop(job: ProbeJob) -> dict[str, Any]:
    """Seconds of a step: as the worker times it, and by the clock around a loop of steps."""
    import torch

    from oomdoctor.worker.measuring.timing import time_steps
    from oomdoctor.worker.training.step import training_step

    setup, batches, marks = setup_of(job)
    timing, _ = time_steps(setup, batches, job, marks)
    marks.listen(lambda phase: None)
    synchronise = torch.cuda.synchronize if job.device_type == "cuda" else lambda: None
    synchronise()
    begin = time.perf_counter()
    for _ in range(LOOPS):
        training_step(setup, batches, marks)
    synchronise()
    wall = (time.perf_counter() - begin) / LOOPS
    steps = job.config.accumulation_steps()
    return {"timed_s": steps * timing.micro_step_s + timing.optimizer_step_s, "wall_s": wall}


def scaler(job: ProbeJob) -> dict[str, Any]:
    """Timing with a gradient scaler that starts far too high, so that it has to skip steps."""
    from oomdoctor.worker.measuring.timing import time_steps

    setup, batches, marks = setup_of(job)
    setup.trainer.accelerator.scaler._init_scale = 2.0**40  # read at the first scaled loss
    timing, skipped = time_steps(setup, batches, job, marks)
    return {
        "skipped": skipped,
        "timed_steps": timing.timed_steps,
        "stopped_by": timing.stopped_by,
        "optimizer_step_s": timing.optimizer_step_s,
    }


if __name__ == "__main__":
    task = {"plain-loop": plain_loop, "scaler": scaler}[sys.argv[1]]
    print(json.dumps(task(loads(ProbeJob, Path(sys.argv[2]).read_text()))))
