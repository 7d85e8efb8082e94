"""One training step by both ways: measured on the CPU, and simulated."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace

import torch
from plain_steps import step_loss

from oomdoctor.records.job.measurement import Measurement
from oomdoctor.records.job.result import ProbeJob
from oomdoctor.records.job.simulation import Prediction, SimulationRequest
from oomdoctor.worker.host import clean_slate
from oomdoctor.worker.measuring.measure import measure
from oomdoctor.worker.protocol import PhaseFile
from oomdoctor.worker.simulating.simulate import simulate
from oomdoctor.worker.training.batch import micro_batches
from oomdoctor.worker.training.build import build
from oomdoctor.worker.training.inspection import inspect_model
from oomdoctor.worker.training.setup import Setup

CPU = torch.device("cpu")
PHASES = ("forward", "backward", "optimizer")


def begun(job: ProbeJob, built: Setup) -> Setup:
    """A training of the job whose model is there already, for a technique that changes it."""
    setup = Setup(job, CPU, None, nullcontext)
    setup.model, setup.trainer = built.trainer.model, built.trainer
    return setup


def deeper(job: ProbeJob, **depths: int) -> ProbeJob:
    """The job with other numbers of layers."""
    return replace(job, model=replace(job.model, config={**job.model.config, **depths}))


def simulated(job: ProbeJob, *, cuda: bool = False, shallow: bool = False) -> Prediction:
    stacks = (
        inspect_model(replace(job, mode="inspect", device_type="cpu")).stacks if shallow else ()
    )
    request = SimulationRequest((2,), (), stacks, detail=True, as_cuda=cuda)
    (prediction,) = simulate(replace(job, mode="simulate", simulation=request), PhaseFile(None))
    return prediction


def phase_bytes(prediction: Prediction) -> dict[tuple[str, str], int]:
    """Peaks without the allocator's rounding, as the trace on the CPU counts them."""
    phases = prediction.sizes[0].phases
    return {(p.step, p.phase): p.peak_allocated_bytes for p in phases if p.phase in PHASES}


def step_bytes(result: Measurement) -> dict[tuple[str, str], int]:
    steps = {"first": result.first_step, "steady": result.steady}
    return {
        (step, phase): memory.peak_allocated_bytes
        for step, phases in steps.items()
        for phase, memory in phases.items()
    }


def trained(job: ProbeJob, each: int = 2) -> tuple[list[float], list[torch.Tensor]]:
    """The losses of three steps of `each` micro-batches, and the weights after them."""
    setup = build(job, CPU)
    batches = micro_batches(setup, job.config, count=each)
    losses = [step_loss(setup, batches) for _ in range(3)]
    return losses, [weight.detach().clone() for weight in setup.model.parameters()]


def differences(job: ProbeJob) -> dict[tuple[str, str], int]:
    """Simulated minus measured peak of each phase, where they differ."""
    job = replace(job, timing_limit_s=0.0, min_timed_steps=1, max_timed_steps=1)
    with clean_slate():
        real = step_bytes(measure(job, PhaseFile(None)))
    with clean_slate():
        predicted = phase_bytes(simulated(job))
    assert predicted.keys() == real.keys()
    return {at: predicted[at] - size for at, size in real.items() if predicted[at] != size}
