"""A rung's training step on a simulated device, recorded at several micro-batch sizes.

The model has as many layers as `layers` says are enough; build and step are those that measure.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from typing import Any
from unittest import mock

from oomdoctor.analysis.tape import Region, Tape, TapeBlock, in_canonical_order
from oomdoctor.records.costs import OpCost
from oomdoctor.records.result import ProbeJob
from oomdoctor.worker import (
    cuda_attention,
    cuda_autocast,
    cuda_dropout,
    cuda_kernels,
    flash_package,
    layers,
    optimizers,
)
from oomdoctor.worker.batch import logits_shape, micro_batches
from oomdoctor.worker.build import Setup, build
from oomdoctor.worker.model_config import load_config
from oomdoctor.worker.op_costs import cost_of
from oomdoctor.worker.progress import Marks, PhaseFile
from oomdoctor.worker.simulated_device import simulated_device
from oomdoctor.worker.step import training_step
from oomdoctor.worker.trace import GRADIENTS, INPUTS, OPTIMIZER, WEIGHTS, AllocationTrace
from oomdoctor.worker.whereabouts import Whereabouts

_SMALLEST_PAGED = 100_000  # elements
MICRO_BATCHES = 2  # as many as a measurement holds


@dataclass(frozen=True, slots=True)
class Cost:
    """An operator's cost, with the unit and the phase it belongs to."""

    region: Region | None
    window: int  # index into the tape's windows
    cost: OpCost


@dataclass(slots=True)
class Recorded:
    """One step of one micro-step at a micro-batch size, the load before it included.

    `taken` has the blocks of gradients with the event before which each became one. `adding` is
    what it costs to add a further micro-step's gradients to them.
    """

    tape: Tape
    taken: dict[int, int]
    costs: list[Cost] = field(default_factory=list)
    adding: list[Cost] = field(default_factory=list)


class Recorder:
    """A rung built once on a simulated device; `record` runs its step at a micro-batch size."""

    def __init__(self, job: ProbeJob, progress: PhaseFile, *, shallow: bool) -> None:
        request = job.simulation
        assert request is not None
        self._needs_package = job.config.attention in flash_package.SIMULATED
        if self._needs_package:  # the package's kernels take the place of sdpa's
            job = replace(job, config=replace(job.config, attention="sdpa"))
        self.job, self.request = job, request
        every = job.config.checkpoint_every
        self.stacks = request.stacks if shallow else ()
        if job.config.activation_checkpointing == "every_n":
            self.stacks = tuple(layers.in_units_of(stack, every) for stack in self.stacks)
        self.card = card_of(job)
        self.managed: dict[Region | None, int] = {}  # unified memory of paged states
        self._progress = progress
        self._marks = Marks(progress)
        self._where = Whereabouts()
        self._costs: list[Cost] = []
        self._taken: dict[int, int] = {}
        self._lasting: set[str] = set()
        self._trace = AllocationTrace("cpu", where=self._where, watcher=self._watch)
        self._patches = ExitStack()

    def __enter__(self) -> Recorder:
        with ExitStack() as stack:
            stack.enter_context(simulated_device(cuda=self.request.as_cuda))
            if self.request.as_cuda:
                stack.enter_context(cuda_autocast.cuda_autocast())
                stack.enter_context(cuda_dropout.cuda_dropout())
                stack.enter_context(cuda_attention.cuda_sdpa(self.card))
                if self._needs_package:
                    stack.enter_context(flash_package.simulated_attention())
                stack.enter_context(self._paged_states())
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
            number: (min(stack.units, layers.UNITS), stack.units)
            for number, stack in enumerate(self.stacks)
        }

    @property
    def attention_operators(self) -> set[str]:
        return self._trace.attention_ops

    def loaded_bytes(self) -> dict[Region | None, int]:
        """What lives after the load, by unit."""
        tape = self._trace.tape
        totals: dict[Region | None, int] = {}
        for event in tape.events[: self._begin[1]]:
            block = tape.blocks[abs(event) - 1]
            change = block.size if event > 0 else -block.size
            totals[block.region] = totals.get(block.region, 0) + change
        return totals

    def gradient_bytes(self) -> dict[Region | None, int]:
        """What the gradients of all trainable parameters take, by unit."""
        totals: dict[Region | None, int] = {}
        for name, parameter in self.setup.model.named_parameters():
            if parameter.requires_grad:
                unit = self.unit_of(name)
                totals[unit] = totals.get(unit, 0) + parameter.untyped_storage().nbytes()
        return totals

    def record(self, size: int) -> Recorded:
        """The events of one step of one micro-batch of `size` rows, after the load."""
        import torch

        setup, trace = self.setup, self._trace
        self._costs, self._lasting, self.managed = [], set(), {}
        config = self.job.config.with_micro_batch(size)
        count = MICRO_BATCHES if config.accumulation_steps() > 1 else 1
        batches = micro_batches(
            config,
            self.job.model.task,
            setup.model_config,
            torch.device("cpu"),
            count=count,
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
            if block is not None:
                self._taken[block] = len(self._trace.tape.events)

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
            shallow = layers.shallow_config(config, self.stacks)
            if shallow is None:
                self.stacks = ()
            else:
                config = shallow
        setup = build(
            self.job, torch.device("cpu"), self._marks, config, on_host=self._trace.paused
        )
        model = _base(setup.model)
        if self.stacks and not layers.is_shallow(model, config, self.stacks):
            raise layers.IrregularLayersError
        prefix = next(path for path, module in setup.model.named_modules() if module is model)
        units = layers.units_of(self.stacks, {n: units for n, (units, _) in self.depths.items()})
        self._units = {f"{prefix}.{path}" if prefix else path: u for path, u in units.items()}
        self._where.follow(setup.model, self._units)
        return setup

    def _settle_load(self) -> None:
        """Give every event of the load to the unit whose parameter it served."""
        trace, tape = self._trace, self._trace.tape
        owner: dict[int, Region | None] = {}
        for named in (self.setup.model.named_parameters(), self.setup.model.named_buffers()):
            for name, tensor in named:
                unit = self.unit_of(name)
                for block in trace.adopt([tensor], WEIGHTS, unit):
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

    def unit_of(self, name: str) -> Region | None:
        """The unit of a parameter by its name, None outside of the repeating layers."""
        parts = name.split(".")
        for end in range(len(parts), 0, -1):
            unit = self._units.get(".".join(parts[:end]))
            if unit is not None:
                return unit
        return None

    def _watch(self, func: Any, args: Any, kwargs: Any, result: Any) -> None:
        if self.request.as_cuda:
            lasting = cuda_kernels.lasting_workspace(func, args, self.card)
            if lasting is not None and lasting[0] not in self._lasting:
                self._lasting.add(lasting[0])
                self._trace.note_lasting(*lasting)
            hidden = cuda_kernels.hidden_blocks(func, args, kwargs, result, self.card)
            if hidden:
                self._trace.note_hidden(func._schema.name, hidden)
        cost = cost_of(func, args, kwargs, result)
        if cost is not None:
            region = self._trace.region_of_operator
            self._costs.append(Cost(region, len(self._trace.tape.windows) - 1, cost))

    @contextmanager
    def _paged_states(self) -> Iterator[None]:
        """States of paged optimizers lie in unified memory, which the allocator never sees.

        As in bitsandbytes' `get_state_buffer`: small states are not paged.
        """
        if not self.job.config.optimizer.startswith("paged_"):
            yield
            return
        import torch
        from bitsandbytes.optim.optimizer import Optimizer8bit

        def get_state_buffer(_: Any, parameter: Any, dtype: Any = torch.float32) -> Any:
            if parameter.numel() < _SMALLEST_PAGED:
                return torch.zeros_like(parameter, dtype=dtype)
            with self._trace.paused():
                state = torch.zeros_like(parameter, dtype=dtype)
            block = self._trace.block_of(parameter)
            unit = None if block is None else self._trace.tape.blocks[block].region
            self.managed[unit] = self.managed.get(unit, 0) + state.untyped_storage().nbytes()
            return state

        with mock.patch.object(Optimizer8bit, "get_state_buffer", get_state_buffer):
            yield


def card_of(job: ProbeJob) -> cuda_kernels.Card:
    """What decides kernels, of the job's first device; an A100 where nothing is known."""
    request = job.simulation
    gpu = next((t.gpu for t in request.targets if t.gpu is not None), None) if request else None
    capability = gpu.compute_capability if gpu is not None else None
    major, minor = (int(part) for part in (capability or "8.0").split("."))
    return cuda_kernels.Card((major, minor))


def _base(model: Any) -> Any:
    """The transformers model inside what peft made of it."""
    return model.get_base_model() if hasattr(model, "get_base_model") else model
