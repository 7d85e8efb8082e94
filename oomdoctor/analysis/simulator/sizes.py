"""A rung at any micro-batch size, on cards that need the same recordings: memory and times."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from functools import cached_property

from oomdoctor.analysis.allocator.settings import AllocatorSettings, equal_blocks_of
from oomdoctor.analysis.memory.phases import Window, breakdown, peak_phase, worst_of
from oomdoctor.analysis.simulator.card import Card
from oomdoctor.analysis.simulator.playback import Layout, curve, parts_of, play, rounded_sizes
from oomdoctor.analysis.simulator.recorded import (
    Cost,
    Floors,
    Held,
    OfSteps,
    Played,
    Store,
    parameters_of,
)
from oomdoctor.analysis.simulator.recordings import Recordings
from oomdoctor.analysis.simulator.step_parts import Engine, step_time
from oomdoctor.analysis.simulator.step_slices import Slice, step_slices
from oomdoctor.analysis.simulator.timing import Work, costs_between, estimated_timing, work_of
from oomdoctor.analysis.speed.communication import (
    has_estimate,
    host_update_s,
    update_share,
    with_communication,
)
from oomdoctor.analysis.speed.hosts import COMPILED, Host
from oomdoctor.analysis.speed.traffic import SentModel, at_most_packed
from oomdoctor.records.configuration.config import TrainConfig, held_micro_batches
from oomdoctor.records.facts.attention import attention_kernel
from oomdoctor.records.facts.categories import CATEGORIES
from oomdoctor.records.job.measurement import Measurement, MemoryCurve, PhaseMemory, Timing
from oomdoctor.records.job.simulation import Allocation, PhasePeak, SpeedErrorRecord, Target
from oomdoctor.records.job.step_time import StepTime

_LARGEST = 15  # allocations to name at a peak


class Sizes:
    """What a rung needs at each size; `card` is one of those that `recordings` hold for.

    `errors` are those of earlier estimates of speed. The inputs of a step are those that `held_by`
    says, if that is another rung. `settings` are those of the allocator that the rung runs with.
    """

    def __init__(
        self,
        config: TrainConfig,
        recordings: Recordings,
        card: Card,
        errors: Sequence[SpeedErrorRecord],
        store: Store,
        held_by: TrainConfig | None = None,
    ) -> None:
        self._config, self._recordings, self._store = config, recordings, store
        self._held_by = held_by or config
        self._errors = errors
        self._resized = recordings.resized(card)
        self._card = card
        self.settings = AllocatorSettings(
            expandable_segments=config.allocator == "expandable_segments",
            equal_blocks=equal_blocks_of(recordings.facts.torch_release),
        )
        self._work: dict[int, Work] = {}
        self._timings: dict[tuple[str, int], Timing | None] = {}
        self._layouts: dict[int, Layout] = {}

    def layout(self, size: int) -> Layout:
        """The events of the rung at a size, with the bytes of its blocks."""
        if size not in self._layouts:
            accumulates = size < self._config.rank_batch_size()
            self._layouts[size] = self._recordings.rung.layout(
                size,
                self._recordings.line(size),
                accumulates=accumulates,
                held=self._held(size),
                resized=self._resized,
                card=self._card,
            )
        return self._layouts[size]

    def _held(self, size: int) -> int:
        """The micro-batches whose inputs the device has."""
        config, on_cpu = self._held_by.with_micro_batch(size), not self._recordings.facts.as_cuda
        return max(1, held_micro_batches(config, on_cpu=on_cpu))

    def _key(self, what: str, size: int) -> str:
        line, by_size = self._recordings.line(size), self._recordings.by_size
        low, high = (self._store.number(by_size[end]) for end in line)
        accumulates = size < self._config.rank_batch_size()
        workspace = max(self._resized.values(), default=0)
        words = [what, low, high, size, int(accumulates), self._held(size)]
        words += [workspace, self._config.allocator]
        if self._recordings.rung.has_row_sums:
            words += self._card
        return " ".join(map(str, words))

    @property
    def least_bytes(self) -> int:
        """What every size needs at least."""
        return self._recordings.facts.least_bytes

    def floor(self, size: int) -> int:
        """The lower bound of the peak."""
        return self.floors(size).floor

    def floors(self, size: int) -> Floors:
        """The lower bounds of the peaks."""
        key = self._key("floors", size)
        return self._store.get(key, Floors, lambda: floors(self.layout(size)))

    def played(self, size: int) -> Played:
        """The peaks on a device without a limit."""
        key = self._key("played", size)
        return self._store.get(key, Played, lambda: played(self.layout(size), self.settings))

    def held(self, size: int, limit: int) -> Held:
        """Whether a device with a limit holds it."""
        key = self._key("held", size) + f" {limit}"
        return self._store.get(
            key, Held, lambda: held(self.layout(size), self.settings, max(limit, 1))
        )

    def curve(self, size: int) -> MemoryCurve | None:
        """How memory rises and falls, on a device without a limit."""
        key, peaks = self._key("curve", size), self.played(size).moments
        return self._store.get(key, MemoryCurve, lambda: curve(self.layout(size), peaks))

    def details(self, size: int) -> tuple[PhasePeak, ...]:
        """What the peak of each phase consists of."""
        return phase_peaks(self.layout(size))

    def measurement(self, size: int, replayed: Played | None) -> Measurement:
        """The record that a measurement would give, on a device without a limit."""
        least, facts = self.floors(size), self._recordings.facts
        steps = (least if replayed is None else replayed).steps
        phases = worst_of(item for phases in steps.values() for item in phases.items())
        peak = max(replayed.peak_allocated_bytes if replayed is not None else 0, least.floor)
        recorded = self._recordings.by_size[self._recordings.line(size)[0]]
        return Measurement(
            peak_allocated_bytes=peak,
            peak_reserved_bytes=replayed.peak_reserved_bytes if replayed is not None else None,
            peak_device_bytes=None,
            overhead_bytes=None,
            peak_rss_bytes=None,
            peak_phase=peak_phase(phases),
            phases=phases,
            first_step=dict(steps.get("first", {})),
            steady=dict(steps.get("steady", {})),
            breakdown=breakdown(least.parts, peak),
            allocation_retries=replayed.retries if replayed is not None else None,
            managed_bytes=recorded.managed_bytes,
            timing=None,
            attention_kernel=attention_kernel(
                facts.attention, recorded.attention_operators, compiled=self._config.compile
            ),
            trainable_parameters=facts.trainable_parameters,
            parameters=facts.parameters,
            losses=(),
            skipped_optimizer_steps=0,
            notes=facts.notes,
            versions=facts.versions,
            resting=replayed.resting if replayed is not None else None,
        )

    def timing(self, target: Target, size: int) -> Timing | None:
        """The times on a card; None if they cannot be estimated."""
        if not has_estimate(self._config):
            return None
        if (target.name, size) not in self._timings:
            self._timings[target.name, size] = self.together(self._config, target, size)
        return self._timings[target.name, size]

    def together(
        self, config: TrainConfig, target: Target, size: int, *, updates_all: bool = False
    ) -> Timing | None:
        """The times of the computation, with what a GPU waits for the others as `config` has them.

        None if the card's speed or its links are not known.
        """
        if target.gpu is None:
            return None
        work = self._work_at(size)
        alone = estimated_timing(work, target.gpu, target.calibration, self._errors)
        if alone is None:
            return None
        return with_communication(
            alone,
            config.with_micro_batch(size),
            self._sent,
            target.gpu,
            target.interconnect,
            updates_all=updates_all,
        )

    @cached_property
    def _sent(self) -> SentModel:
        facts = self._recordings.facts
        return SentModel(at_most_packed(facts.parameters), facts.layers, parameters_of(facts))

    def step_time(self, target: Target, size: int) -> StepTime | None:
        """Where the time of an optimizer step goes; None if it cannot be estimated."""
        return self.apart(self._config, target, size, self.timing(target, size))

    def apart(
        self,
        config: TrainConfig,
        target: Target,
        size: int,
        timing: Timing | None,
        *,
        updates_all: bool = False,
    ) -> StepTime | None:
        """The parts of a `timing` that is `together` of the same rung."""
        if timing is None or target.gpu is None:
            return None
        micro_steps = config.with_micro_batch(size).accumulation_steps()
        engine = self._engine(config, updates_all=updates_all)
        work, factors = self._work_at(size), target.calibration
        return step_time(work, timing, micro_steps, target.gpu, factors, engine)

    def slices(self, target: Target, size: int) -> list[Slice]:
        """The step on a time line; empty if its time cannot be estimated."""
        return self.slices_of(self._config, target, size, self.step_time(target, size))

    def slices_of(
        self,
        config: TrainConfig,
        target: Target,
        size: int,
        step: StepTime | None,
        *,
        updates_all: bool = False,
    ) -> list[Slice]:
        """The time line of a `step` that is `apart` of the same rung."""
        if step is None or target.gpu is None:
            return []
        engine = self._engine(config, updates_all=updates_all)
        return step_slices(self._work_at(size), step, target.gpu, target.calibration, engine)

    def _engine(self, config: TrainConfig, *, updates_all: bool) -> Engine:
        trained = self._recordings.facts.trainable_parameters
        share = update_share(config, updates_all=updates_all)
        return Engine(share, host_update_s(config, trained) if config.sharding != "none" else 0.0)

    def _work_at(self, size: int) -> Work:
        """The work of a micro-step at a size and of the optimizer step."""
        if size not in self._work:
            low, high = self._recordings.line(size)
            first, second = (self._costs(recorded, size) for recorded in (low, high))
            costs = costs_between(first, low, second, high, size)
            windows = self._recordings.by_size[low].windows
            checkpoints = self._config.activation_checkpointing != "none"
            host = COMPILED if self._config.compile else Host(checkpoints=checkpoints)
            self._work[size] = work_of(costs, windows, self._recordings.facts.depths, host)
        return self._work[size]

    def _costs(self, recorded: int, size: int) -> list[Cost]:
        """The costs of a recording; with accumulation, each micro-step adds to the gradients.

        The first micro-step has no gradients to add to, but counts like the others.
        """
        recording = self._recordings.by_size[recorded]
        accumulates = size < self._config.rank_batch_size()
        return recording.costs + recording.adding if accumulates else recording.costs


def phase_peaks(layout: Layout) -> tuple[PhasePeak, ...]:
    """The peak of each phase by category, with its largest allocations."""
    phases = []
    for (step, phase), peak in layout.outline.peaks(layout.sizes).items():
        totals = dict.fromkeys(CATEGORIES, 0)
        grouped: dict[tuple[int, str, str, str], int] = {}
        for block, count in layout.outline.alive(peak).items():
            if not layout.sizes[block]:
                continue
            entry = layout.blocks[block]
            totals[entry.category] += count * layout.sizes[block]
            module = re.sub(r"\.\d+\.", ".*.", entry.module + ".")[:-1]
            kind = (layout.sizes[block], entry.category, entry.operator, module)
            grouped[kind] = grouped.get(kind, 0) + count
        largest = sorted(grouped.items(), key=lambda item: -item[0][0] * item[1])[:_LARGEST]
        allocations = tuple(Allocation(size, count, *of) for (size, *of), count in largest)
        phases.append(PhasePeak(step, phase, peak.size, totals, allocations))
    return tuple(phases)


def floors(layout: Layout) -> Floors:
    """The lower bounds of the peaks, and what the highest of them consists of."""
    peaks = layout.outline.peaks(rounded_sizes(layout.sizes))
    highest = max(peaks.values(), key=lambda peak: peak.size)
    parts = dict.fromkeys(CATEGORIES, 0)
    for block, count in layout.outline.alive(highest).items():
        parts[layout.blocks[block].category] += count * layout.sizes[block]
    steps = _by_step((window, PhaseMemory(peak.size)) for window, peak in peaks.items())
    return Floors(highest.size, steps, parts)


def played(layout: Layout, settings: AllocatorSettings) -> Played:
    """The peaks of a replay without a limit."""
    parts = parts_of(layout.order)
    replayed = play(layout, settings, parts=parts, rests=True)
    *peaks, resting = (
        PhaseMemory(window.peak_allocated_bytes, window.peak_reserved_bytes)
        for window in replayed.windows
    )
    of_parts = list(zip(parts, peaks, strict=True))
    return Played(
        replayed.peak_allocated_bytes,
        replayed.peak_reserved_bytes,
        replayed.retries,
        _by_step(((part.step, part.phase), peak) for part, peak in of_parts),
        resting,
        tuple(peak.peak_allocated_bytes for part, peak in of_parts if part.first < part.end),
    )


def _by_step(peaks: Iterable[tuple[Window, PhaseMemory]]) -> OfSteps:
    by_step: dict[str, dict[str, PhaseMemory]] = {}
    for (step, phase), memory in worst_of(peaks).items():
        by_step.setdefault(step, {})[phase] = memory
    return by_step


def held(layout: Layout, settings: AllocatorSettings, limit: int) -> Held:
    """A replay on a device that lets the process reserve up to `limit` bytes."""
    replayed = play(layout, settings, limit)
    last = layout.outline.windows[len(replayed.windows) - 1][1]
    return Held(replayed.fits, replayed.peak_reserved_bytes, replayed.out_of_memory, last)
