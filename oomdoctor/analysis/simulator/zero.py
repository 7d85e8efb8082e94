"""A rung with DeepSpeed's ZeRO, from a simulation of its step on one GPU without an engine."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property

from oomdoctor.analysis.memory.closed_form import trained_bytes_of
from oomdoctor.analysis.memory.curve import spans
from oomdoctor.analysis.memory.phases import Parts, breakdown, peak_phase, size_of, together
from oomdoctor.analysis.memory.zero.peaks import ZeroPeaks, course_of, curve_of, peaks_of
from oomdoctor.analysis.memory.zero.setting import Beside, Parameter, setting_of
from oomdoctor.analysis.simulator.card import Card
from oomdoctor.analysis.simulator.playback import Layout
from oomdoctor.analysis.simulator.recorded import Played, Store, parameters_of
from oomdoctor.analysis.simulator.recordings import Recordings
from oomdoctor.analysis.simulator.sizes import Sizes
from oomdoctor.analysis.simulator.step_slices import Slice
from oomdoctor.records.configuration.adapters import casts_all, compute_dtype
from oomdoctor.records.configuration.config import TrainConfig
from oomdoctor.records.facts.categories import CATEGORIES, GRADIENTS, OPTIMIZER, WEIGHTS
from oomdoctor.records.job.measurement import Measurement, MemoryCurve, PhaseMemory, Timing
from oomdoctor.records.job.simulation import PhasePeak, SpeedErrorRecord, Target
from oomdoctor.records.job.step_time import StepTime

NOTE = (
    "from a model of DeepSpeed's buffers, not from its code; what the allocator reserves beyond "
    "tensors is not in it"
)


def alone_config(config: TrainConfig) -> TrainConfig:
    """The rung to simulate for one with ZeRO: one micro-batch on one GPU, in DeepSpeed's types.

    DeepSpeed casts the model to 16 bits where others would use autocast. In stages 1 and 2 so are
    adapters.
    """
    plain, named = TrainConfig(), config.adapter_dtype
    computed = compute_dtype(config)
    return replace(
        config,
        sharding="none",
        world_size=1,
        effective_batch_size=config.micro_batch(),
        weights_dtype=computed,
        autocast_dtype="none",
        adapter_dtype=computed if config.method != "full" and casts_all(config) else named,
        offload="activations" if config.offload == "activations" else "none",
        bucket_elements=plain.bucket_elements,
        prefetch=plain.prefetch,
        reduce_dtype=plain.reduce_dtype,
        sync_each_batch=plain.sync_each_batch,
    )


def peaks_beside(config: TrainConfig, layout: Layout, parameters: Sequence[Parameter]) -> ZeroPeaks:
    """The peaks of a rung with ZeRO; `layout` is that of `alone_config`.

    Raises:
        ValueError: the states of the optimizer are not known, or the weights are quantized.
    """
    return peaks_of(setting_of(config), parameters, _beside(config, layout))


def _beside(config: TrainConfig, layout: Layout) -> Beside:
    return beside_of(layout, trained_bytes_of(alone_config(config)))


def zero_measurement(alone: Measurement, peaks: ZeroPeaks) -> Measurement:
    """What the rank of a rung with ZeRO would measure that needs the most.

    `alone` is that of `alone_config`. Reserved memory is not known: the order in which DeepSpeed
    allocates is not modeled.
    """
    phases = {name: PhaseMemory(size_of(parts)) for name, parts in peaks.phases.items()}
    return replace(
        alone,
        peak_allocated_bytes=peaks.peak_bytes,
        peak_reserved_bytes=None,
        peak_phase=peak_phase(phases),
        phases=phases,
        first_step={},
        steady={},
        breakdown=breakdown(peaks.phases[peaks.peak_phase], peaks.peak_bytes),
        timing=None,
        notes=(*alone.notes, NOTE),
    )


class ZeroSizes:
    """What a rung with ZeRO needs at each size, in place of `Sizes`, which simulates it alone."""

    def __init__(
        self,
        config: TrainConfig,
        recordings: Recordings,
        card: Card,
        errors: Sequence[SpeedErrorRecord],
        store: Store,
    ) -> None:
        self._config, self._facts = config, recordings.facts
        alone = alone_config(config.with_micro_batch(1))  # no size accumulates then
        self._alone = Sizes(alone, recordings, card, errors, store, held_by=config)
        self._peaks: dict[int, ZeroPeaks] = {}
        self.least_bytes = 0  # that of the whole model says nothing about a rank

    @cached_property
    def _parameters(self) -> tuple[Parameter, ...]:
        return parameters_of(self._facts)

    def _peaks_at(self, size: int) -> ZeroPeaks:
        if size not in self._peaks:
            config, layout = self._config.with_micro_batch(size), self._alone.layout(size)
            self._peaks[size] = peaks_beside(config, layout, self._parameters)
        return self._peaks[size]

    def floor(self, size: int) -> int:
        """The peak of the tensors, which is the least that the rung needs."""
        return self._peaks_at(size).peak_bytes

    def played(self, size: int) -> Played | None:
        """None: no order of allocations is known to replay."""
        return None

    def measurement(self, size: int, replayed: Played | None) -> Measurement:
        """The record that a measurement would give, on a device without a limit."""
        return zero_measurement(self._alone.measurement(size, replayed), self._peaks_at(size))

    def curve(self, size: int) -> MemoryCurve | None:
        """The moments of the model of DeepSpeed's buffers on the rank that needs the most."""
        config, rank = self._config.with_micro_batch(size), self._peaks_at(size).rank
        beside = _beside(config, self._alone.layout(size))
        return curve_of(course_of(setting_of(config), self._parameters, beside, rank))

    def details(self, size: int) -> tuple[PhasePeak, ...]:
        """The peak of each phase by category; its single allocations are not known."""
        phases = []
        for phase, parts in self._peaks_at(size).phases.items():
            step = "load" if phase == "load" else "first"
            totals = dict.fromkeys(CATEGORIES, 0) | parts
            phases.append(PhasePeak(step, phase, size_of(parts), totals, ()))
        return tuple(phases)

    def timing(self, target: Target, size: int) -> Timing | None:
        """The times on a card; None if they cannot be estimated."""
        return self._alone.together(self._config, target, size, updates_all=True)

    def step_time(self, target: Target, size: int) -> StepTime | None:
        """Where the time of an optimizer step goes; None if it cannot be estimated."""
        timing = self.timing(target, size)
        return self._alone.apart(self._config, target, size, timing, updates_all=True)

    def slices(self, target: Target, size: int) -> list[Slice]:
        """The step on a time line; empty if its time cannot be estimated."""
        step = self.step_time(target, size)
        return self._alone.slices_of(self._config, target, size, step, updates_all=True)


_STATES = (WEIGHTS, GRADIENTS, OPTIMIZER)


def beside_of(layout: Layout, gradient_bytes: int) -> Beside:
    """The memory beside the model's states in the last step of a layout without accumulation.

    A gradient takes `gradient_bytes` for each element.
    """
    events, origin = layout.order.events, layout.order.origin
    windows = spans(layout.order.windows, len(events))
    last = windows[-1][2]
    held, made = _Held(), 0
    forward: Parts = {}
    kept: Parts | None = None
    curve: list[tuple[int, Parts]] = []
    for start, end, step, phase in windows:
        if step == last and phase == "forward" and kept is None:
            kept = {name: size for name, size in held.parts.items() if size}
        held.begin()
        for event in events[start:end]:
            source = origin[abs(event) - 1]
            size = layout.sizes[source] if event > 0 else -layout.sizes[source]
            category = layout.blocks[source].category
            if category not in _STATES:
                held.change(category, size)
            elif event > 0 and category == GRADIENTS and step == last and phase == "backward":
                made += size
                making = together(held.parts, {GRADIENTS: size})
                curve.append((made // gradient_bytes, max(held.most(), making, key=size_of)))
                held.begin()
        if step == last and phase == "forward":
            forward = max(forward, held.most(), key=size_of)
        if step == last and phase == "backward":
            curve.append((made // gradient_bytes, held.most()))
    return Beside(forward, tuple(curve), kept or {})


class _Held:
    """What is held by category, and the most since `begin`.

    Invariant: `_most` is a copy of the highest parts, or None while the parts are the highest.
    """

    def __init__(self) -> None:
        self.parts: Parts = {}
        self._total = self._highest = 0
        self._most: Parts | None = None

    def begin(self) -> None:
        """The most begins at what is held now."""
        self._highest, self._most = self._total, None

    def change(self, category: str, size: int) -> None:
        """Bytes of a category are taken, or given back if `size` is negative."""
        if size < 0 and self._most is None:
            self._most = dict(self.parts)
        self.parts[category] = self.parts.get(category, 0) + size
        self._total += size
        if self._total >= self._highest:
            self._highest, self._most = self._total, None

    def most(self) -> Parts:
        """The highest parts since `begin`."""
        return dict(self.parts) if self._most is None else self._most
