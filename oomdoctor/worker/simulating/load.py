"""Load a rung on the simulated device with few of its layers, and sort its memory by layer."""

from __future__ import annotations

from dataclasses import dataclass

from oomdoctor.analysis.simulator.tape import Region, Tape
from oomdoctor.records.config import is_fsdp
from oomdoctor.records.facts.categories import WEIGHTS
from oomdoctor.records.model import LayerStack
from oomdoctor.records.result import ProbeJob
from oomdoctor.worker.simulating.instruments import Instruments
from oomdoctor.worker.simulating.ranks.replicas import note_replica
from oomdoctor.worker.simulating.shallow import (
    IrregularLayersError,
    depths_of,
    in_units_of,
    is_shallow,
    shallow_config,
    units_of,
)
from oomdoctor.worker.simulating.whole_model import WholeModel
from oomdoctor.worker.tracing.trace import AllocationTrace
from oomdoctor.worker.training.build import Setup, build
from oomdoctor.worker.training.model_config import load_config
from oomdoctor.worker.training.techniques.adapter import without_adapter


@dataclass(frozen=True, slots=True)
class LoadedRung:
    """A rung that is ready to step. In each of `stacks`, a few units stand for all."""

    setup: Setup
    stacks: tuple[LayerStack, ...]
    whole: WholeModel


def load(
    job: ProbeJob, instruments: Instruments, *, shallow: bool, replicated: bool = False
) -> LoadedRung:
    """Build the rung and give every event of its load to the layer it served.

    If it is `replicated`, each GPU has all of it, and DDP's buckets besides.

    Raises:
        IrregularLayersError: with fewer layers, it is not the same model.
        UnsupportedError: the rung cannot be built.
    """
    import torch

    instruments.enter("load", "load")
    config = load_config(job.model)
    stacks = _stacks(job) if shallow else ()
    if stacks:
        fewer = shallow_config(config, stacks)
        if fewer is None:
            stacks = ()
        else:
            config = fewer
    trace = instruments.trace
    setup = build(job, torch.device("cpu"), instruments.marks, config, on_host=trace.paused)
    model = without_adapter(setup.model)
    if stacks and not is_shallow(model, config, stacks):
        raise IrregularLayersError
    prefix = next(path for path, module in setup.model.named_modules() if module is model)
    units = {f"{prefix}.{path}" if prefix else path: u for path, u in units_of(stacks).items()}
    instruments.where.follow(setup.model, units)
    whole = WholeModel(setup.model, units, depths_of(stacks))
    _settle(setup, whole, trace)
    if is_fsdp(job.config):
        _in_turn(trace.tape)
    if replicated:
        note_replica(setup.model, whole, trace)
    return LoadedRung(setup, stacks, whole)


def _stacks(job: ProbeJob) -> tuple[LayerStack, ...]:
    """The stacks of the job's model, in units that are treated alike."""
    assert job.simulation is not None
    if job.config.activation_checkpointing != "every_n":
        return job.simulation.stacks
    every = job.config.checkpoint_every
    return tuple(in_units_of(stack, every) for stack in job.simulation.stacks)


def _in_turn(tape: Tape) -> None:
    """Give a death to the unit whose turn it is: accelerate frees a weight at the next one."""
    for position, event in enumerate(tape.events[1:], 1):
        if event < 0:
            tape.regions[position] = tape.regions[position - 1]


def _settle(setup: Setup, whole: WholeModel, trace: AllocationTrace) -> None:
    """Give every event of the load to the unit whose parameter it served."""
    tape = trace.tape
    owner: dict[int, Region | None] = {}
    for named in (setup.model.named_parameters(), setup.model.named_buffers()):
        for name, tensor in named:
            unit = whole.unit_of(name)
            for block in trace.adopt([tensor], WEIGHTS, unit, name.rpartition(".")[0]):
                owner[block] = unit
    for made in sorted(trace.made_of, reverse=True):
        if made in owner:
            owner.setdefault(trace.made_of[made], owner[made])
    following: Region | None = None
    for event in reversed(tape.events):
        if event > 0:
            following = owner.get(event - 1, following)
            tape.blocks[event - 1].region = following
    tape.regions[:] = [tape.blocks[abs(event) - 1].region for event in tape.events]
