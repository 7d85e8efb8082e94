"""Record one training step of a rung on a simulated device, at any micro-batch size.

`opening` builds the rung. Build and step are the same code that a measurement runs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from fractions import Fraction

import torch

from oomdoctor.analysis.simulator.card import Card
from oomdoctor.analysis.simulator.orders.depth import IrregularError
from oomdoctor.analysis.simulator.recorded import Cost, Recorded, RungFacts
from oomdoctor.analysis.simulator.tape import Region, Tape, TapeBlock
from oomdoctor.records.configuration.config import TrainConfig, documents_of, padded_rows
from oomdoctor.records.facts.categories import GRADIENTS, INPUTS, OPTIMIZER
from oomdoctor.records.job.costs import OpCost
from oomdoctor.records.job.model import ON_SOUND
from oomdoctor.records.job.result import ProbeJob
from oomdoctor.worker.simulating.cuda.choices import workspace_setting
from oomdoctor.worker.simulating.device.answers import Answers, know_padded
from oomdoctor.worker.simulating.load import Instruments, LoadedRung
from oomdoctor.worker.tracing import real_values
from oomdoctor.worker.tracing.tensors import local_part
from oomdoctor.worker.training import optimizers
from oomdoctor.worker.training.batch import (
    Batch,
    as_on_gpu,
    logits_shape,
    micro_batches,
    tensors_of,
)
from oomdoctor.worker.training.build import attention_implementation
from oomdoctor.worker.training.inspection import installed_versions, torch_release
from oomdoctor.worker.training.layers import kept_layers
from oomdoctor.worker.training.objectives.images import numbers_of
from oomdoctor.worker.training.objectives.task import scored_share
from oomdoctor.worker.training.step import training_step
from oomdoctor.worker.training.techniques.scaler import forget_scale


class Recorder:
    """Records steps of a loaded rung; every recording starts from the state after the load."""

    def __init__(
        self, job: ProbeJob, instruments: Instruments, loaded: LoadedRung, answers: Answers
    ) -> None:
        assert job.simulation is not None
        self.job, self.request = job, job.simulation
        self.setup, self.stacks, self.whole = loaded.setup, loaded.stacks, loaded.whole
        self.choices = instruments.choices
        self._instruments, self._answers = instruments, answers
        self._trace = instruments.trace
        # Blocks of gradients, each with the event before which it became its parameter's gradient.
        self._taken: dict[int, int] = {}
        self.with_values = False  # know the tokens of a batch of texts
        self._before: dict[str, int] = {}  # what a step finds in the books
        instruments.operators.compiles = job.config.compile
        self._begin = self._lengths()
        self._loaded = self._types()
        if job.config.sharding == "none":
            self._watch_gradients()
        self._watch_optimizer()

    def set_length(self, sequence_length: int) -> None:
        """Record rows of this length from now on; the model does not depend on it."""
        config = replace(self.job.config, sequence_length=sequence_length)
        self.job = replace(self.job, config=config)

    def facts(self) -> RungFacts:
        """What is the same in all recordings."""
        trainable, parameters = self.whole.parameter_counts()
        models = 1 if self.setup.reference is None else 2  # with layers
        return RungFacts(
            units=tuple(self.whole.depths.values()),
            least_bytes=self.whole.sum_of(self._loaded_bytes()) + self.whole.gradient_bytes(),
            trainable_parameters=trainable,
            parameters=parameters,
            simulated_layers=sum(map(kept_layers, self.stacks)),
            layers=sum(stack.layers for stack in self.request.stacks) * models,
            attention=attention_implementation(self.setup),
            notes=tuple(self.setup.notes),
            versions=installed_versions(),
            torch_release=torch_release(),
            workspace_setting=workspace_setting(),
            as_cuda=self.request.as_cuda,
            groups=self.whole.groups(),
        )

    def record(self, size: int, card: Card | None = None) -> Recorded:
        """Record one step with one micro-batch of `size` rows, for `card` or the first target.

        If it changes parameters for good, as bitsandbytes casts biases in the first step, that is
        part of the load, and another step is recorded: all sizes start from the same state.
        """
        made = self._recorded(size, card)
        return self._recorded(size, card) if self._keeps_changes() else made

    def _recorded(self, size: int, card: Card | None) -> Recorded:
        trace, operators = self._trace, self._instruments.operators
        self.choices.begin(card or self.choices.cards[0])
        trace.attention_ops.clear()
        accumulated = None
        if self.job.config.sharding != "none":
            # Of two micro-steps, only the second reduces gradients.
            with self._one_step(size, 2):
                accumulated = self._copied()
        with self._one_step(size):
            return Recorded(
                size,
                self._copied(),
                dict(self._taken),
                set(self.choices.alike),
                set(trace.attention_ops),
                self.whole.sum_of(self._instruments.managed),
                operators.costs(),
                [self._adding(trace.tape.blocks[block]) for block in self._taken],
                accumulated,
            )

    @contextmanager
    def _one_step(self, size: int, micro_steps: int = 1) -> Iterator[None]:
        """Run a step, whose tape is there inside the context; forget the step at its end."""
        self._instruments.operators.begin()
        self._instruments.managed.clear()
        self._taken.clear()
        kept = dict(self._tensors_of_modules())
        batches = self._step(size, micro_steps)
        yield
        del batches  # not before the tape was copied: the inputs outlive the step
        for (module, name), _ in self._tensors_of_modules():
            if (module, name) not in kept:  # such as the offsets of rows with images
                setattr(module, name, None)
        self._rewind()

    def _types(self) -> dict[torch.nn.Parameter, tuple[torch.dtype, int | None]]:
        """The type and the block of each parameter."""
        parameters = self.setup.model.parameters()
        return {
            parameter: (parameter.dtype, self._trace.part_of(parameter)) for parameter in parameters
        }

    def _keeps_changes(self) -> bool:
        """Add to the load what a step has changed of parameters; whether there is any."""
        kept = [weight for weight, (dtype, _) in self._loaded.items() if weight.dtype != dtype]
        for parameter in kept:
            _, block = self._loaded[parameter]
            if block is not None:
                self._trace.stays_for(block, local_part(parameter))
        if kept:
            self._begin, self._loaded = self._lengths(), self._types()
        return bool(kept)

    def _tensors_of_modules(self) -> Iterator[tuple[tuple[torch.nn.Module, str], torch.Tensor]]:
        """The tensors that modules keep as plain attributes."""
        for module in self.setup.model.modules():
            for name, value in list(vars(module).items()):
                if isinstance(value, torch.Tensor):
                    yield (module, name), value

    def _copied(self) -> Tape:
        tape, left = self._trace.tape, self._in_books()
        carried = {block: left[name] for name, block in self._before.items() if name in left}
        events, regions, windows = list(tape.events), list(tape.regions), list(tape.windows)
        return Tape(self._blocks(), events, regions, windows, carried)

    def _blocks(self) -> list[TapeBlock]:
        """The blocks of the tape; those with an entry for each parameter are as in all layers."""
        blocks = list(self._trace.tape.blocks)
        for number in self._before.values():
            blocks[number] = replace(blocks[number], size=0)  # a first step finds nothing
        for number, units in self._instruments.operators.entries.items():
            block = blocks[number]
            each = block.size // units.total()
            blocks[number] = replace(block, size=each * self.whole.sum_of(units))
        return blocks

    def _leave(self) -> None:
        """Put in the books what a step before would have left: it shows when it is freed."""
        # One that does not name a device would count as a number on the host.
        last, norm = (torch.zeros((), device=self.setup.device) for _ in range(2))
        self.setup.books.last, self.setup.books.norm = last, norm
        del last, norm
        self._before = self._in_books()

    def _in_books(self) -> dict[str, int]:
        """The blocks of what is carried over to the next step."""
        books = self.setup.books
        blocks = {"last": self._trace.part_of(books.last), "norm": self._trace.part_of(books.norm)}
        return {name: block for name, block in blocks.items() if block is not None}

    def _step(self, size: int, micro_steps: int) -> list[Batch]:
        """Run one step under the trace, and say what is an input, a gradient or a state.

        Returns the inputs, which would otherwise die on the tape.
        """
        setup, trace, marks = self.setup, self._trace, self._instruments.marks
        config = self.job.config.with_micro_batch(size)
        batches = micro_batches(setup, config, count=1)
        if self.request.as_cuda:
            batches = [as_on_gpu(batch) for batch in batches]
        if padded_rows(config):
            know_padded(
                mask
                for batch in batches
                for name, mask in batch.items()
                if name.endswith("attention_mask") and isinstance(mask, torch.Tensor)
            )
        images = setup.task == "image-text-to-text" and config.images > 0
        beside_sound = setup.task in ON_SOUND and "input_ids" in batches[0]
        # A grid of patches decides shapes, which no operator says.
        with_values = images or beside_sound or self.with_values or "spatial_shapes" in batches[0]
        self._answers.values_known = with_values
        if with_values:
            self._know(batches, config, images=images)
        trace.adopt(tensors_of(batches), INPUTS)
        trace.vocabulary, trace.tokens = logits_shape(setup, config)

        def watch(phase: str) -> None:
            self._instruments.enter("first", phase)
            if phase == "optimizer":
                gradients = (p.grad for p in setup.model.parameters() if p.grad is not None)
                trace.adopt(gradients, GRADIENTS)

        def names_parts() -> bool:
            """Whether a list has sizes or names: an optimizer draws seeds, also going backward."""
            return not images and self._instruments.progress.step_phase == "forward"

        marks.listen(watch)
        self._instruments.enter("batch", "load")  # what a step makes before its first micro-step
        self._leave()
        several = config.packing != "none" and documents_of(config) * size > 1
        # Idefics3 leaves out images that are padding; here none is.
        every = images or setup.task == "ctc"  # no label of a recording is padding
        share = Fraction(1) if every else scored_share(config)
        with (
            self._answers.several_in_a_row(several),
            self._answers.scored(share),
            self._answers.reads_as(config.images if images else 1),  # images of a row are counted
            real_values.lists_known(names_parts),
        ):
            training_step(setup, batches * micro_steps, marks)
        trace.adopt(optimizers.state_tensors(setup.trainer.optimizer), OPTIMIZER)
        return batches

    def _know(self, batches: Sequence[Batch], config: TrainConfig, *, images: bool) -> None:
        """Keep the numbers in batches, from which models compute shapes.

        With `images`, any number stands for a token of text.
        """
        for batch in batches:
            with real_values.computing():
                if images:
                    texts: torch.Tensor = batch["labels"]
                    rows, length = texts.shape
                    values = numbers_of(rows, length, config, self.setup.model_config)
                else:
                    (values,) = micro_batches(self.setup, config, count=1)
            for name, value in values.items():
                tensor = batch[name]
                if isinstance(tensor, torch.Tensor) and not tensor.is_floating_point():
                    real_values.know(tensor, value)

    def _lengths(self) -> tuple[int, int, int]:
        tape = self._trace.tape
        return len(tape.blocks), len(tape.events), len(tape.windows)

    def _rewind(self) -> None:
        """Forget the step: drop states, gradients and the scale; cut the tape back to the load."""
        optimizers.forget_states(self.setup.trainer.optimizer)
        self.setup.model.zero_grad()
        self.setup.books.close()
        forget_scale(self.setup)
        self._instruments.enter("load", "load")
        blocks, events, windows = self._begin
        self._trace.cut(blocks, events)
        del self._trace.tape.windows[windows:]

    def _watch_gradients(self) -> None:
        """Note when a gradient becomes its parameter's: a later one is added to it and freed."""
        in_units = {
            p for name, p in self.setup.model.named_parameters() if self.whole.unit_of(name)
        }

        def became(parameter: torch.nn.Parameter) -> None:
            # A step in the backward pass has freed it already.
            block = None if parameter.grad is None else self._trace.block_of(parameter.grad)
            if block is None:
                return
            self._taken[block] = len(self._trace.tape.events)
            if self._trace.tape.blocks[block].region is None and parameter in in_units:
                raise IrregularError("the gradient of a layer was made outside all known layers")

        for parameter in self.setup.model.parameters():
            if parameter.requires_grad:
                parameter.register_post_accumulate_grad_hook(became)

    def _watch_optimizer(self) -> None:
        """Tell the trace when the optimizer begins to update parameters and when it ends."""
        optimizer = self.setup.trainer.optimizer
        plain = getattr(optimizer, "optimizer", optimizer)
        plain.register_step_pre_hook(lambda *_: self._trace.optimizer.step_begins(True))
        plain.register_step_post_hook(lambda *_: self._trace.optimizer.step_begins(False))

    def _loaded_bytes(self) -> dict[Region | None, int]:
        """Bytes that are alive after the load, by unit."""
        tape = self._trace.tape
        totals: Counter[Region | None] = Counter()
        for event in tape.events[: self._begin[1]]:
            block = tape.blocks[abs(event) - 1]
            totals[block.region] += block.size if event > 0 else -block.size
        return totals

    def _adding(self, gradient: TapeBlock) -> Cost:
        """The cost of adding to a gradient: two gradients are read and their sum is written."""
        phases = [phase for _, _, phase in self._trace.tape.windows]
        cost = OpCost("aten::add_", "elementwise", "float32", 0.0, 3.0 * gradient.size)
        return Cost(gradient.region, phases.index("backward"), cost)
