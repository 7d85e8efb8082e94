"""Load a rung on the simulated device with few of its layers, and sort its memory by layer."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from itertools import chain

import torch

from oomdoctor.analysis.simulator.card import card_of
from oomdoctor.analysis.simulator.tape import Region, Tape
from oomdoctor.records.capability import capability_numbers
from oomdoctor.records.configuration.config import has_reference_model, is_fsdp, trains_with_trl
from oomdoctor.records.facts.categories import WEIGHTS
from oomdoctor.records.job.model import LayerStack
from oomdoctor.records.job.result import ProbeJob
from oomdoctor.records.job.simulation import SimulationRequest
from oomdoctor.system.catalogue import gpus
from oomdoctor.worker.protocol import Marks, PhaseFile
from oomdoctor.worker.simulating.cuda.choices import Choices
from oomdoctor.worker.simulating.operator_log import OperatorLog
from oomdoctor.worker.simulating.shallow import (
    IrregularLayersError,
    WholeModel,
    after_frozen,
    depths_of,
    in_units_of,
    is_shallow,
    shallow_config,
    units_of,
    unrepeated,
)
from oomdoctor.worker.simulating.world import note_replica
from oomdoctor.worker.tracing.trace import AllocationTrace
from oomdoctor.worker.tracing.whereabouts import Whereabouts
from oomdoctor.worker.training.build import build
from oomdoctor.worker.training.model_config import load_config
from oomdoctor.worker.training.objectives.images import is_in_tower
from oomdoctor.worker.training.objectives.task import built_job
from oomdoctor.worker.training.setup import Setup, without_adapter


@dataclass(frozen=True, slots=True)
class Instruments:
    """`managed` holds the bytes of paged states in unified memory, by unit."""

    progress: PhaseFile
    marks: Marks
    where: Whereabouts
    trace: AllocationTrace
    choices: Choices
    operators: OperatorLog
    managed: dict[Region | None, int] = field(default_factory=dict)

    def enter(self, step: str, phase: str) -> None:
        """Begin a phase of a step on everything that keeps one."""
        self.progress.enter(phase)
        self.trace.enter(step, phase)


def instruments_for(request: SimulationRequest, progress: PhaseFile) -> Instruments:
    """Instruments for the cards of the request, and for all that are known."""
    where = Whereabouts()
    trace = AllocationTrace("cpu", where=where)
    capabilities = (capability_numbers(gpu.compute_capability or "8.0") for gpu in gpus())
    choices = Choices((*map(card_of, request.targets or (None,)), *capabilities))
    operators = OperatorLog(trace, choices if request.as_cuda else None)
    trace.watcher, trace.steps_of = operators.note, operators.steps
    return Instruments(progress, Marks(progress), where, trace, choices, operators)


REFERENCE = "reference"
"""The path of a second model, which is not trained."""


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
    instruments.enter("load", "load")
    job = built_job(job)
    config = load_config(job.model)
    stacks = _stacks(job) if shallow else ()
    fewer = shallow_config(config, stacks) if stacks else None
    if fewer is None:
        stacks = ()
    else:
        config = fewer
    trace = instruments.trace
    setup = build(job, torch.device("cpu"), instruments.marks, config, on_host=trace.paused)
    assert job.simulation is not None
    by_trl = trains_with_trl(job.config) and job.config.objective == "grpo"
    if job.simulation.as_cuda and by_trl:
        trace.found_on_host(setup.trainer.reward_weights)  # TRL makes it without a device
    model = without_adapter(setup.model)
    if stacks and not is_shallow(model, config, stacks):
        raise IrregularLayersError
    prefix = next(path for path, module in setup.model.named_modules() if module is model)
    units = {f"{prefix}.{path}" if prefix else path: u for path, u in units_of(stacks).items()}
    instruments.where.follow(setup.model, units)
    if setup.reference is not None:
        stacks, units = _with_reference(stacks, units)
        instruments.where.follow(setup.reference, units, REFERENCE)
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
    config, stacks = job.config, job.simulation.stacks
    before = (config.method, config.objective, config.reference) == ("full", "dpo", "precomputed")
    if is_fsdp(config) and (before or has_reference_model(config)):
        # TRL gives a second model to FSDP, also if only to compute log-probabilities before. It is
        # one unit, so a single block has the weights of all layers: few do not stand for all.
        return ()
    if config.activation_checkpointing == "every_n":
        several = Counter(stack.path for stack in stacks)
        stacks = tuple(
            unrepeated(stack)
            if is_in_tower(stack.path) or several[stack.path] > 1
            else in_units_of(stack, config.checkpoint_every)
            for stack in stacks
        )
    return after_frozen(stacks, config.frozen_layers)


def _with_reference(
    stacks: tuple[LayerStack, ...], units: dict[str, Region]
) -> tuple[tuple[LayerStack, ...], dict[str, Region]]:
    """The stacks and units of both models; the layers of the reference are further stacks."""
    own, count = units_of(stacks), len(stacks)
    more = {f"{REFERENCE}.{path}": (stack + count, unit) for path, (stack, unit) in own.items()}
    return stacks + stacks, units | more


def _in_turn(tape: Tape) -> None:
    """Give a death to the unit whose turn it is: accelerate frees a weight at the next one."""
    for position, event in enumerate(tape.events[1:], 1):
        if event < 0:
            tape.regions[position] = tape.regions[position - 1]


def _settle(setup: Setup, whole: WholeModel, trace: AllocationTrace) -> None:
    """Give every event of the load to the unit whose parameter it served."""
    tape = trace.tape
    owner: dict[int, Region | None] = {}
    models = [("", setup.model)]
    if setup.reference is not None:
        models.append((REFERENCE, setup.reference))
    for prefix, model in models:
        for name, tensor in chain(model.named_parameters(prefix), model.named_buffers(prefix)):
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
            if event - 1 not in trace.lasting:
                tape.blocks[event - 1].region = following
    tape.regions[:] = [tape.blocks[abs(event) - 1].region for event in tape.events]
