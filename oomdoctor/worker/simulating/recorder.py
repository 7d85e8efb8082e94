"""A rung's training step on a simulated device, recorded at several micro-batch sizes.

The model has as many layers as `layers` says are enough; build and step are those that measure.
"""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import replace
from typing import Any

from oomdoctor.analysis.simulator.depth import IrregularError
from oomdoctor.analysis.simulator.tape import Region, Tape, TapeBlock, in_canonical_order
from oomdoctor.records.costs import OpCost
from oomdoctor.records.facts.attention import ATTENTIONS
from oomdoctor.records.facts.optimizers import OPTIMIZERS
from oomdoctor.records.result import ProbeJob
from oomdoctor.records.simulation import Target
from oomdoctor.worker.protocol.progress import Marks, PhaseFile
from oomdoctor.worker.simulating.costs.operators import cost_of
from oomdoctor.worker.simulating.cuda import (
    attention,
    autocast,
    dropout,
    flash_package,
    kernels,
    liger,
)
from oomdoctor.worker.simulating.cuda.choices import Choices
from oomdoctor.worker.simulating.device import simulated_device
from oomdoctor.worker.simulating.paged_states import paged_states
from oomdoctor.worker.simulating.recorded import Cost, Recorded
from oomdoctor.worker.simulating.shallow import (
    IrregularLayersError,
    in_units_of,
    is_shallow,
    shallow_config,
    units_of,
)
from oomdoctor.worker.simulating.whole_model import WholeModel
from oomdoctor.worker.tracing.trace import GRADIENTS, INPUTS, OPTIMIZER, WEIGHTS, AllocationTrace
from oomdoctor.worker.tracing.whereabouts import Whereabouts
from oomdoctor.worker.training import optimizers
from oomdoctor.worker.training.batch import logits_shape, micro_batches
from oomdoctor.worker.training.build import Setup, build, import_libraries
from oomdoctor.worker.training.layers import UNITS
from oomdoctor.worker.training.model_config import load_config
from oomdoctor.worker.training.step import training_step

MICRO_BATCHES = 2  # as many as a measurement holds


class Recorder:
    """A rung built once on a simulated device; `record` runs its step at a micro-batch size."""

    def __init__(self, job: ProbeJob, progress: PhaseFile, *, shallow: bool) -> None:
        request = job.simulation
        assert request is not None
        stand_in = ATTENTIONS[job.config.attention].stand_in
        self._needs_package = stand_in is not None
        if stand_in is not None:  # the package's kernels take the place of sdpa's
            job = replace(job, config=replace(job.config, attention=stand_in))
        self.job, self.request = job, request
        every = job.config.checkpoint_every
        self.stacks = request.stacks if shallow else ()
        if job.config.activation_checkpointing == "every_n":
            self.stacks = tuple(in_units_of(stack, every) for stack in self.stacks)
        self.choices = Choices(map(card_of, request.targets or (None,)))
        self._managed: dict[Region | None, int] = {}  # unified memory of paged states
        self._progress = progress
        self._marks = Marks(progress)
        self._where = Whereabouts()
        self._costs: list[Cost] = []
        self._taken: dict[int, int] = {}
        self._lasting: set[str] = set()
        self._trace = AllocationTrace("cpu", where=self._where, watcher=self._watch)
        self._patches = ExitStack()

    def __enter__(self) -> Recorder:
        import_libraries()
        with ExitStack() as stack:
            stack.enter_context(simulated_device(cuda=self.request.as_cuda))
            if self.request.as_cuda:
                stack.enter_context(autocast.cuda_autocast())
                stack.enter_context(dropout.cuda_dropout())
                stack.enter_context(attention.cuda_sdpa(self.choices.attention))
                if self._needs_package:
                    stack.enter_context(flash_package.simulated_attention())
                if OPTIMIZERS[self.job.config.optimizer].paged:
                    stack.enter_context(paged_states(self._trace, self._managed))
                if self.job.config.loss == "liger":
                    stack.enter_context(liger.simulated_kernels(self.choices))
            stack.enter_context(self._trace.recording())
            self._enter("load", "load")
            self.setup = self._build()
            self._settle_load()
            self._watch_step()
            self._begin = (len(self._trace.tape.blocks), len(self._trace.tape.events))
            self._patches = stack.pop_all()  # an error on the way leaves nothing behind
        return self

    def __exit__(self, *_: object) -> None:
        self._trace.finish()
        self._patches.close()

    @property
    def depths(self) -> dict[int, tuple[int, int]]:
        """(simulated, real) units of each stack."""
        return {
            number: (min(stack.units, UNITS), stack.units)
            for number, stack in enumerate(self.stacks)
        }

    def is_out_of_reach(self) -> bool:
        """Whether weights and gradients alone are too much for every device."""
        least = self.whole.sum_of(self._loaded_bytes()) + self.whole.gradient_bytes()
        limits = [target.limit_bytes for target in self.request.targets]
        return bool(limits) and least > max(limits)

    def first_size(self) -> int:
        """The size to record first: the one above the smallest, unless that is all to be told."""
        sizes = sorted(self.request.micro_batch_sizes)
        return sizes[1] if len(sizes) > 2 and not self.is_out_of_reach() else sizes[0]

    def _loaded_bytes(self) -> dict[Region | None, int]:
        """What lives after the load, by unit."""
        tape = self._trace.tape
        totals: dict[Region | None, int] = {}
        for event in tape.events[: self._begin[1]]:
            block = tape.blocks[abs(event) - 1]
            change = block.size if event > 0 else -block.size
            totals[block.region] = totals.get(block.region, 0) + change
        return totals

    @property
    def held(self) -> int:
        """Micro-batches whose inputs are on a tape."""
        accumulates = any(
            self.job.config.with_micro_batch(size).accumulation_steps() > 1
            for size in self.request.micro_batch_sizes
        )
        return MICRO_BATCHES if accumulates else 1

    def record(self, size: int, card: kernels.Card | None = None) -> Recorded:
        """The events of one step of one micro-batch of `size` rows, after the load.

        `card` is one of the targets', the first of them unless it is said.
        """
        import torch

        setup, trace = self.setup, self._trace
        self.choices.begin(card or self.choices.cards[0])
        trace.attention_ops.clear()
        self._costs, self._lasting = [], set()
        self._managed.clear()
        config = self.job.config.with_micro_batch(size)
        batches = micro_batches(
            config,
            self.job.model.task,
            setup.model_config,
            torch.device("cpu"),
            count=self.held,
            seed=self.job.seed,
        )
        trace.adopt((tensor for batch in batches for tensor in batch.values()), INPUTS)
        trace.vocabulary, trace.tokens = logits_shape(config, setup.task, setup.model_config)
        self._taken = {}

        def watch(phase: str) -> None:
            self._enter("first", phase)
            if phase == "optimizer":
                gradients = (p.grad for p in setup.model.parameters() if p.grad is not None)
                trace.adopt(gradients, GRADIENTS)

        self._marks.listen(watch)
        self._enter("batch", "load")  # what a step makes before its first micro-step
        training_step(setup, batches[:1], self._marks)
        trace.adopt(optimizers.state_tensors(setup.trainer.optimizer), OPTIMIZER)
        tape = trace.tape
        recorded = Recorded(
            Tape(list(tape.blocks), list(tape.events), list(tape.regions), list(tape.windows)),
            self._taken,
            set(self.choices.alike),
            set(trace.attention_ops),
            self.whole.sum_of(self._managed),
            self._costs,
            [self._adding(tape.blocks[block]) for block in self._taken],
        )
        del batches
        self._rewind()
        return recorded

    def _adding(self, gradient: TapeBlock) -> Cost:
        """Two gradients are read and their sum is written."""
        window = next(
            i for i, (_, _, phase) in enumerate(self._trace.tape.windows) if phase == "backward"
        )
        moved = 3.0 * gradient.size
        return Cost(
            gradient.region, window, OpCost("aten::add_", "elementwise", "float32", 0.0, moved)
        )

    def _watch_step(self) -> None:
        """Note when a gradient becomes its parameter's: a second one is added and freed then.

        And when the optimizer begins and ends.
        """

        def became(parameter: Any) -> None:
            block = self._trace.block_of(parameter.grad)
            if block is None:
                return
            self._taken[block] = len(self._trace.tape.events)
            if self._trace.tape.blocks[block].region is None and parameter in in_units:
                raise IrregularError("a gradient of a layer was made where no layer was known")

        in_units = {
            p for name, p in self.setup.model.named_parameters() if self.whole.unit_of(name)
        }
        for parameter in self.setup.model.parameters():
            if parameter.requires_grad:
                parameter.register_post_accumulate_grad_hook(became)
        optimizer = self.setup.trainer.optimizer
        plain = getattr(optimizer, "optimizer", optimizer)
        plain.register_step_pre_hook(lambda *_: self._trace.step_begins(True))
        plain.register_step_post_hook(lambda *_: self._trace.step_begins(False))

    def _rewind(self) -> None:
        """Forget the step: states and gradients go, and the tape ends with the load again."""
        optimizer = self.setup.trainer.optimizer
        getattr(optimizer, "optimizer", optimizer).state.clear()
        self.setup.model.zero_grad()
        self._enter("load", "load")
        blocks, events = self._begin
        tape = self._trace.tape
        del tape.blocks[blocks:], tape.events[events:], tape.regions[events:], tape.windows[1:]

    def _enter(self, step: str, phase: str) -> None:
        self._progress.enter(phase)
        self._trace.tape.enter(step, phase)
        self._trace.enter(phase)

    def _build(self) -> Setup:
        import torch

        config = load_config(self.job.model)
        if self.stacks:
            shallow = shallow_config(config, self.stacks)
            if shallow is None:
                self.stacks = ()
            else:
                config = shallow
        setup = build(
            self.job, torch.device("cpu"), self._marks, config, on_host=self._trace.paused
        )
        model = _base(setup.model)
        if self.stacks and not is_shallow(model, config, self.stacks):
            raise IrregularLayersError
        prefix = next(path for path, module in setup.model.named_modules() if module is model)
        units = units_of(self.stacks, {n: units for n, (units, _) in self.depths.items()})
        units = {f"{prefix}.{path}" if prefix else path: u for path, u in units.items()}
        self._where.follow(setup.model, units)
        self.whole = WholeModel(setup.model, units, self.depths)
        return setup

    def _settle_load(self) -> None:
        """Give every event of the load to the unit whose parameter it served."""
        trace, tape = self._trace, self._trace.tape
        owner: dict[int, Region | None] = {}
        for named in (self.setup.model.named_parameters(), self.setup.model.named_buffers()):
            for name, tensor in named:
                unit = self.whole.unit_of(name)
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
        ordered = in_canonical_order(tape)
        tape.events[:], tape.regions[:] = ordered.events, ordered.regions

    def _watch(self, func: Any, args: Any, kwargs: Any, result: Any) -> None:
        if self.request.as_cuda:
            lasting = self.choices.workspace(func)
            if lasting is not None and lasting[0] not in self._lasting:
                self._lasting.add(lasting[0])
                self._trace.note_lasting(*lasting)
            hidden = self.choices.hidden(func, args, kwargs, result)
            if hidden:
                self._trace.note_hidden(func._schema.name, hidden)
        cost = cost_of(func, args, kwargs, result)
        if cost is not None:
            region = self._trace.region_of_operator
            self._costs.append(Cost(region, len(self._trace.tape.windows) - 1, cost))


def card_of(target: Target | None) -> kernels.Card:
    """What decides kernels; an A100 where nothing is known."""
    gpu = target.gpu if target is not None else None
    capability = gpu.compute_capability if gpu is not None else None
    major, minor = (int(part) for part in (capability or "8.0").split("."))
    return kernels.Card((major, minor))


def _base(model: Any) -> Any:
    """The transformers model inside what peft made of it."""
    return model.get_base_model() if hasattr(model, "get_base_model") else model
