"""One rung predicted at several micro-batch sizes and for several devices, without a device.

The rung is recorded at the two smallest sizes; what the others need follows from these, and the
largest that fits is recorded as well, so that the answer that counts rests on a simulation of its
own.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from oomdoctor.analysis import forecast
from oomdoctor.analysis.allocator import AllocatorSettings, Replay, out_of_memory_message
from oomdoctor.analysis.depth import IrregularError
from oomdoctor.analysis.forecast import Categories, Layout, NewStructureError, Rung
from oomdoctor.analysis.oom.dialects import parse_oom
from oomdoctor.analysis.tape import Region
from oomdoctor.analysis.throughput import tokens_per_s
from oomdoctor.records.measurement import Breakdown, Measurement, PhaseMemory, Timing
from oomdoctor.records.result import ProbeJob
from oomdoctor.records.simulation import (
    Allocation,
    Forecast,
    PhasePeak,
    PredictedSize,
    Prediction,
    Target,
)
from oomdoctor.worker import layers
from oomdoctor.worker.estimate import costs_between, estimated_timing, times
from oomdoctor.worker.inspection import installed_versions
from oomdoctor.worker.offload import uses_host
from oomdoctor.worker.progress import PhaseFile
from oomdoctor.worker.recording import Cost, Recorded, Recorder
from oomdoctor.worker.summary import attention_kernel, logical_numel, peak_phase, worst_by_phase
from oomdoctor.worker.trace import CATEGORIES, GRADIENTS, OPTIMIZER, TEMPORARY

CATEGORIES_OF_STEPS = Categories(OPTIMIZER, GRADIENTS, TEMPORARY)
Positions = Mapping[forecast.Window, tuple[int, int]]
_LARGEST = 15  # allocations to name at a peak
_FASTER = 1.01  # less is not worth a smaller size


def simulate(job: ProbeJob, progress: PhaseFile) -> Prediction:
    """Peaks, fits and times of the job's rung at the sizes and for the devices it names.

    Raises:
        UnsupportedError: the rung or the model cannot be simulated.
    """
    try:
        return _Simulation(job, progress, shallow=True).run()
    except (IrregularError, layers.IrregularLayersError):
        return _Simulation(job, progress, shallow=False).run()


class _Simulation:
    def __init__(self, job: ProbeJob, progress: PhaseFile, *, shallow: bool) -> None:
        assert job.simulation is not None
        self.job, self.request = job, job.simulation
        self.recorder = Recorder(job, progress, shallow=shallow)
        expandable = job.config.allocator == "expandable_segments"
        self.settings = AllocatorSettings(expandable_segments=expandable)
        self.recorded: dict[int, Recorded] = {}
        self.hopeless = False  # weights and gradients alone are too much

    def run(self) -> Prediction:
        with self.recorder as recorder:
            self.rung = Rung(recorder.depths, CATEGORIES_OF_STEPS)
            for size in self._to_record():
                self._record(size)
            return Prediction(
                sizes=self._predict_all(),
                simulated_layers=sum(
                    stack.layers - (real - simulated) * stack.period
                    for stack, (simulated, real) in zip(
                        recorder.stacks, recorder.depths.values(), strict=True
                    )
                ),
                layers=sum(stack.layers for stack in self.request.stacks),
                notes=tuple(recorder.setup.notes),
            )

    def _to_record(self) -> tuple[int, ...]:
        """The sizes that tell the others: two above the smallest, which is often a case apart.

        Only the smallest where weights and gradients alone are too much for every device.
        """
        sizes = tuple(sorted(self.request.micro_batch_sizes))
        least = self._deep(self.recorder.loaded_bytes()) + self._deep(
            self.recorder.gradient_bytes()
        )
        if self.request.targets and all(least > _limit(target) for target in self.request.targets):
            self.hopeless = True
            return sizes[:1]
        return sizes[-2:] if len(sizes) < 3 else sizes[1:3]

    def _predict_all(self) -> tuple[PredictedSize, ...]:
        """From the largest size down; once one fits everywhere, smaller ones only if faster."""
        sizes = sorted(self.request.micro_batch_sizes, reverse=True)
        if self.hopeless:
            sizes = sizes[-1:]
        found: list[PredictedSize] = []
        waiting = {target.name for target in self.request.targets}
        best = 0.0
        for size in sizes:
            rate = self._rate(size)
            decides = not self.request.targets or bool(waiting) or rate > best * _FASTER
            predicted = self._predict(size, plays=decides)
            fits = {forecast.target for forecast in predicted.forecasts if forecast.fits}
            if decides and size not in self.recorded and (waiting & fits or size == sizes[-1]):
                # What the answer rests on is simulated itself.
                self._record(size)
                predicted = self._predict(size, plays=True)
                fits = {forecast.target for forecast in predicted.forecasts if forecast.fits}
            waiting -= fits
            if fits:
                best = max(best, rate)
            found.append(predicted)
        return tuple(reversed(found))

    def _rate(self, size: int) -> float:
        """Tokens a second on the first card that tells them; 0 without one."""
        for target in self.request.targets:
            timing = self._timing(target, size)
            if timing is not None:
                return tokens_per_s(timing, self.job.config.with_micro_batch(size))
        return 0.0

    def _record(self, size: int) -> None:
        self.recorded[size] = self.recorder.record(size)
        self.rung.add(size, self.recorded[size].tape, self.recorded[size].taken)

    def _layout(self, size: int) -> Layout:
        accumulates = size < self.job.config.effective_batch_size
        self._line(size)
        return self.rung.layout(size, accumulates=accumulates)

    def _line(self, size: int) -> tuple[int, int]:
        """The recordings that tell a size; it is recorded where those at hand do not."""
        try:
            return self.rung.line(size)
        except NewStructureError:
            self._record(size)
            return size, size

    def _predict(self, size: int, *, plays: bool) -> PredictedSize:
        layout = self._layout(size)
        positions = forecast.phase_peak_positions(layout)
        floor = max(bytes_ for _, bytes_ in positions.values())
        targets = self.request.targets
        hopeless = targets and all(floor > _limit(target) for target in targets)
        played = forecast.play(layout, self.settings) if plays and not hopeless else None
        return PredictedSize(
            micro_batch_size=size,
            measurement=self._measurement(layout, positions, played),
            forecasts=tuple(
                self._forecast(target, size, layout, floor, played)
                if plays
                else Forecast(target.name, True, None, None, None, self._timing(target, size))
                for target in targets
            ),
            phases=phase_peaks(layout) if self.request.detail else (),
        )

    def _forecast(
        self, target: Target, size: int, layout: Layout, floor: int, played: Replay | None
    ) -> Forecast:
        """Whether the size fits one device; replayed under its limit only where that decides."""
        limit = _limit(target)
        reserved = played.peak_reserved_bytes if played is not None else None
        fits, oom = floor <= limit, None
        alone = len(self.request.targets) == 1  # else the message of the failure is not told
        if (fits or alone) and (played is None or (reserved is not None and reserved > limit)):
            held = forecast.play(layout, self.settings, max(limit, 1))
            fits = held.fits
            reserved = held.peak_reserved_bytes if held.fits else reserved
            if held.out_of_memory is not None:
                phase = layout.windows[len(held.windows) - 1][1]
                oom = parse_oom(
                    out_of_memory_message(held.out_of_memory, 0, target.total_bytes), phase
                )
        return Forecast(
            target=target.name,
            fits=fits,
            peak_reserved_bytes=reserved,
            missed_by_bytes=None if fits else max(1, floor - limit),
            oom=oom,
            timing=self._timing(target, size),
        )

    def _measurement(
        self, layout: Layout, positions: Positions, played: Replay | None
    ) -> Measurement:
        """The record that measuring gives, for a device without a limit."""
        if played is not None:
            memory = forecast.phase_memory(layout, played)
        else:
            memory = {w: PhaseMemory(size) for w, (_, size) in positions.items()}
        phases = worst_by_phase(memory)
        position, floor = max(positions.values(), key=lambda found: found[1])
        peak = max(played.peak_allocated_bytes if played is not None else 0, floor)
        trainable, parameters = self._parameters()
        setup = self.recorder.setup
        return Measurement(
            peak_allocated_bytes=peak,
            peak_reserved_bytes=played.peak_reserved_bytes if played is not None else None,
            peak_device_bytes=None,
            overhead_bytes=None,
            peak_rss_bytes=None,
            peak_phase=peak_phase(phases),
            phases=phases,
            first_step={p: m for (step, p), m in memory.items() if step == "first"},
            steady={p: m for (step, p), m in memory.items() if step == "steady"},
            breakdown=_breakdown(layout, position, peak),
            allocation_retries=played.retries if played is not None else None,
            managed_bytes=self._deep(self.recorder.managed),
            timing=None,
            attention_kernel=attention_kernel(setup, self.recorder.attention_operators),
            trainable_parameters=trainable,
            parameters=parameters,
            losses=(),
            skipped_optimizer_steps=0,
            notes=tuple(setup.notes),
            versions=installed_versions(),
        )

    def _timing(self, target: Target, size: int) -> Timing | None:
        if target.gpu is None or uses_host(self.job.config):
            return None  # nothing is known of the way to the host
        low, high = self._line(size)
        first, second = (self._costs(recorded, size) for recorded in (low, high))
        costs = costs_between(first, low, second, high, size)
        windows = self.recorded[low].tape.windows
        return estimated_timing(costs, windows, self.rung.depths, target.gpu, target.calibration)

    def _costs(self, recorded: int, size: int) -> list[Cost]:
        """The operators of a recording; with accumulation, gradients are added in each micro-step.

        The first micro-step of several has none to add to: it is counted like the others.
        """
        found = self.recorded[recorded]
        accumulates = size < self.job.config.effective_batch_size
        return found.costs + found.adding if accumulates else found.costs

    def _parameters(self) -> tuple[int, int]:
        """(trainable, all) parameters at full depth."""
        counts: dict[Region | None, list[int]] = {}
        for name, parameter in self.recorder.setup.model.named_parameters():
            found = counts.setdefault(self.recorder.unit_of(name), [0, 0])
            number = logical_numel(parameter)
            found[0] += number if parameter.requires_grad else 0
            found[1] += number
        return (
            self._deep({region: pair[0] for region, pair in counts.items()}),
            self._deep({region: pair[1] for region, pair in counts.items()}),
        )

    def _deep(self, by_region: Mapping[Region | None, int]) -> int:
        """A sum over units as it is at full depth."""
        return sum(n * times(region, self.rung.depths) for region, n in by_region.items())


def _limit(target: Target) -> int:
    """What the allocator may reserve on a device."""
    return target.usable_bytes - target.overhead_bytes


def phase_peaks(layout: Layout) -> tuple[PhasePeak, ...]:
    """Each phase's highest moment by category, with its largest allocations."""
    found = []
    for (step, phase), (position, size) in forecast.phase_peak_positions(
        layout, rounded=False
    ).items():
        alive = forecast.alive_at(layout, position)
        totals = dict.fromkeys(CATEGORIES, 0)
        grouped: dict[tuple[int, str, str, str], int] = {}
        for block, count in alive.items():
            entry = layout.blocks[block]
            totals[entry.category] += count * layout.sizes[block]
            module = re.sub(r"\.\d+\.", ".*.", entry.module + ".")[:-1]
            kind = (layout.sizes[block], entry.category, entry.operator, module)
            grouped[kind] = grouped.get(kind, 0) + count
        largest = sorted(grouped.items(), key=lambda item: -item[0][0] * item[1])[:_LARGEST]
        found.append(
            PhasePeak(
                step,
                phase,
                size,
                totals,
                tuple(
                    Allocation(bytes_, count, category, operator, module)
                    for (bytes_, category, operator, module), count in largest
                ),
            )
        )
    return tuple(found)


def _breakdown(layout: Layout, position: int, peak: int) -> Breakdown:
    """What the peak is made of; what rounding and unsplit blocks add to it is "other"."""
    parts = dict.fromkeys(CATEGORIES, 0)
    for block, count in forecast.alive_at(layout, position).items():
        parts[layout.blocks[block].category] += count * layout.sizes[block]
    rest = peak - sum(parts.values())
    return Breakdown(
        weights_bytes=parts["weights"],
        gradients_bytes=parts["gradients"],
        optimizer_bytes=parts["optimizer"],
        activations_bytes=parts["activations"],
        logits_bytes=parts["logits"],
        other_bytes=parts["inputs"] + parts["temporary"] + rest,
    )
