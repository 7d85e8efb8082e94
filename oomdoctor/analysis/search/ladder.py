"""What to do next in a survey: which rung at which micro-batch size, or which rung to skip and why.

The search starts with the rung that needs the least memory, so that a rung that runs out of memory
rules out those that need more. It depends only on the attempts so far, so a survey can be resumed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from oomdoctor.analysis.memory.closed_form import Bound, lower_bound
from oomdoctor.analysis.memory.rollout import engine_fault
from oomdoctor.analysis.memory.shape import shape_of
from oomdoctor.analysis.search.dominance import Setting, needs_more
from oomdoctor.analysis.search.from_prediction import RungPrediction, next_predicted, out_of_reach
from oomdoctor.analysis.search.micro_batch import NextSize, Sample, next_size, sample_of
from oomdoctor.records.configuration.config import Rung, TrainConfig
from oomdoctor.records.configuration.faults import cannot_run, unsupported
from oomdoctor.records.facts.checkpoints import Checkpoint
from oomdoctor.records.facts.choices import AUTO
from oomdoctor.records.job.dataset import TrainingData
from oomdoctor.records.job.machine import GpuFacts
from oomdoctor.records.job.model import Task
from oomdoctor.records.job.result import Attempt
from oomdoctor.units import format_bytes


@dataclass(frozen=True, slots=True)
class Context(Setting):
    """What is the same for all rungs of a survey; None if unknown.

    `usable_bytes` is what a rung may use of `total_bytes`, without headroom. `fixed_micro_batch` is
    --micro-batch; a rung's own fixed size overrides it. `gpu` has the published peaks of the card,
    `emulated` says that it only pretends to be one. `data` is what the user trains on,
    `checkpoint` how the weights of the model are stored, if they are quantized.
    `predictions` are by `config.key()` of the rung.
    """

    usable_bytes: int = field(kw_only=True)
    total_bytes: int | None = None
    fixed_micro_batch: int | None = None
    task: Task | None = None
    gpu: GpuFacts | None = None
    emulated: bool = False
    data: TrainingData | None = None
    checkpoint: Checkpoint | None = None
    predictions: Mapping[str, RungPrediction] = field(default_factory=dict)

    def refuses(self, config: TrainConfig) -> str | None:
        """Why the device cannot run a configuration, or gains nothing by it; None otherwise."""
        reason = cannot_run(config, self.compute_capability)
        if reason is None and self.checkpoint is not None:
            reason = self.checkpoint.lacks(config.quantization, self.compute_capability)
        if reason is None and self.gpu is not None and self.gpu.shares_host_memory:
            reason = unsupported(config, "unified", installed=bool)
        if reason is None and self.counts is not None and self.total_bytes is not None:
            return engine_fault(config, self.model_config, self.counts, self.total_bytes)
        return reason


@dataclass(frozen=True, slots=True)
class NextTry:
    """Run this rung at this micro-batch size, for this reason."""

    rung: Rung
    micro_batch_size: int
    why: str


@dataclass(frozen=True, slots=True)
class SkipRung:
    """Skip this rung, for this reason; `missed_by_bytes` if it follows from the arithmetic."""

    rung: Rung
    reason: str
    missed_by_bytes: int | None


@dataclass(frozen=True, slots=True)
class Standing:
    """How far a survey has come.

    `attempts` is keyed by `config.rung_key()`, which is the same for all sizes of a rung, and
    `skipped` by `config.key()` of the rung.
    """

    rungs: tuple[Rung, ...]
    attempts: Mapping[str, tuple[Attempt, ...]]
    skipped: Mapping[str, SkipRung]
    context: Context

    def next_step(self) -> NextTry | SkipRung | None:
        """The next try or the next rung to skip; None once every rung is settled."""
        for rung in run_order(self.rungs, self.context):
            if rung.config.key() in self.skipped:
                continue
            tried = attempts_of(rung, self.attempts)
            if not tried and (skip := self._reason_to_skip(rung)) is not None:
                return skip
            step = _next_size(rung, tuple(map(sample_of, tried)), self.context)
            if step is not None:
                return NextTry(rung, step.micro_batch_size, step.why)
        return None

    def still_to_try(self) -> tuple[Rung, ...]:
        """The rungs without a try, without those that would be skipped by what is known now."""
        open_rungs = (rung for rung in self.rungs if rung.config.key() not in self.skipped)
        untried = (rung for rung in open_rungs if not attempts_of(rung, self.attempts))
        return tuple(rung for rung in untried if self._reason_to_skip(rung) is None)

    def _reason_to_skip(self, rung: Rung) -> SkipRung | None:
        context = self.context
        return too_big(rung, context) or _predicted_to_miss(rung, context) or self._ruled_out(rung)

    def _ruled_out(self, rung: Rung) -> SkipRung | None:
        """A skip if a rung that surely needs no more ran out at the same or a smaller size."""
        smallest = rung.config.with_micro_batch(fixed_size(rung.config, self.context) or 1)
        for other in self.rungs:
            for attempt in attempts_of(other, self.attempts):
                if attempt.outcome != "oom":
                    continue
                raised = needs_more(smallest, attempt.config, self.context)
                if raised is not None:
                    size, keys = attempt.config.micro_batch_size, " and ".join(raised)
                    ran_out = f"{other.label} ran out of memory at micro-batch size {size}"
                    why = f"{ran_out}, and this one needs more because of its {keys}"
                    return SkipRung(rung, why, None)
        return None


def run_order(rungs: tuple[Rung, ...], context: Context) -> tuple[Rung, ...]:
    """The rungs by increasing memory; in the recipe's order if parameters were not counted."""
    if context.counts is None:
        return rungs

    def least(rung: Rung) -> int:
        prediction = context.predictions.get(rung.config.key())
        if prediction is not None and prediction.peaks:
            return min(prediction.peaks.values())
        return bound_of(rung.config, context).size_bytes

    return tuple(sorted(rungs, key=lambda rung: (least(rung), _relative_need(rung.config))))


def _next_size(rung: Rung, samples: tuple[Sample, ...], context: Context) -> NextSize | None:
    """The next size of a rung: from its prediction, or by trial if there is none."""
    effective, usable = rung.config.rank_batch_size(), context.usable_bytes
    fixed = fixed_size(rung.config, context)
    prediction = context.predictions.get(rung.config.key())
    if prediction is None or not prediction.peaks or fixed is not None:
        return next_size(effective, samples, usable, fixed)
    return next_predicted(effective, samples, usable, prediction, timed=not context.emulated)


def _predicted_to_miss(rung: Rung, context: Context) -> SkipRung | None:
    """A skip if even the smallest size is predicted to be far above the usable memory."""
    prediction = context.predictions.get(rung.config.key())
    if prediction is None or rung.config.compile:  # it is for eager mode, which may need more
        return None
    missed = out_of_reach(prediction, context.usable_bytes)
    if missed is None:
        return None
    least = format_bytes(min(prediction.peaks.values()))
    needs = f"predicted to need at least {least}, short by {format_bytes(missed)}"
    return SkipRung(rung, f"{needs}; to measure it anyway, pass --no-predict", missed)


def attempts_of(rung: Rung, attempts: Mapping[str, tuple[Attempt, ...]]) -> tuple[Attempt, ...]:
    """The attempts at a rung: of all sizes, or of the size that it fixes."""
    of_rung = attempts.get(rung.config.rung_key(), ())
    size = rung.config.micro_batch_size
    if size == AUTO:
        return of_rung
    return tuple(attempt for attempt in of_rung if attempt.config.micro_batch_size == size)


def fixed_size(config: TrainConfig, context: Context) -> int | None:
    """The fixed micro-batch size; None to search for one."""
    size = config.micro_batch_size
    return size if isinstance(size, int) else context.fixed_micro_batch


def _relative_need(config: TrainConfig) -> int:
    """An order for rungs with the same weights, gradients and optimizer states."""
    return (
        2 * (config.activation_checkpointing == "none")
        + 2 * (config.attention == "eager")
        + (config.loss == "default")
        + (config.autocast_dtype == "none" and config.weights_dtype == "float32")
    )


def bound_of(config: TrainConfig, context: Context) -> Bound:
    """The lower bound of a rung's memory, by formula; 0 bytes if parameters were not counted."""
    if context.counts is None:
        return Bound(0, "")
    all_learn = not shape_of(context.model_config).towers
    return lower_bound(config, context.counts, all_learn=all_learn)


def too_big(rung: Rung, context: Context) -> SkipRung | None:
    """A skip if weights, gradients and optimizer states alone exceed the usable memory."""
    bound = bound_of(rung.config, context)
    missed = bound.size_bytes - context.usable_bytes
    if missed <= 0:
        return None
    needs = f"needs at least {format_bytes(bound.size_bytes)}, short by {format_bytes(missed)}"
    return SkipRung(rung, f"{needs}: {bound.arithmetic}", missed)
