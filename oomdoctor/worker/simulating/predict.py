"""Predict the micro-batch sizes of a rung on devices of one kind, from few recordings.

Two recordings predict all sizes. The first is of the second smallest size, because the smallest is
often a special case. The second is of the size that is expected to be the largest that fits. If the
request names one device, the largest size that fits it is always recorded, so that the answer does
not depend on interpolation.
"""

from __future__ import annotations

from collections.abc import Mapping

from oomdoctor.analysis.allocator import AllocatorSettings, Replay, out_of_memory_message
from oomdoctor.analysis.memory.phases import peak_phase, worst_by_phase
from oomdoctor.analysis.simulator import playback
from oomdoctor.analysis.simulator.playback import Layout
from oomdoctor.analysis.speed.throughput import tokens_per_s
from oomdoctor.explain.reading.dialects.parse import parse_oom
from oomdoctor.records.measurement import Measurement, PhaseMemory, Timing
from oomdoctor.records.result import ProbeJob
from oomdoctor.records.simulation import DevicePrediction, PredictedSize, Target
from oomdoctor.worker.simulating.costs.estimate import costs_between, estimated_timing
from oomdoctor.worker.simulating.cuda.card import Card
from oomdoctor.worker.simulating.cuda.choices import workspaces
from oomdoctor.worker.simulating.peaks import breakdown, phase_peaks
from oomdoctor.worker.simulating.recorded import Cost
from oomdoctor.worker.simulating.recordings import Recordings
from oomdoctor.worker.tracing.categories import GRADIENTS, OPTIMIZER, WEIGHTS
from oomdoctor.worker.training.attention_kernel import attention_kernel
from oomdoctor.worker.training.inspection import installed_versions
from oomdoctor.worker.training.techniques.offload import uses_host

_STAYING = (WEIGHTS, GRADIENTS, OPTIMIZER)  # these do not grow with the micro-batch
_FASTER = 1.01  # a smaller speed-up is not worth a smaller size
Positions = Mapping[playback.Window, tuple[int, int]]


class Predictor:
    """Predicts a rung at the sizes of its job, on devices that `recordings` hold for."""

    def __init__(
        self, job: ProbeJob, recordings: Recordings, card: Card, targets: tuple[Target, ...]
    ) -> None:
        assert job.simulation is not None
        self.job, self.request, self.targets = job, job.simulation, targets
        self.recordings, self.recorder = recordings, recordings.recorder
        self.resized = workspaces(card) if self.request.as_cuda else {}
        expandable = job.config.allocator == "expandable_segments"
        self.settings = AllocatorSettings(expandable_segments=expandable)
        self.sizes = sorted(self.request.micro_batch_sizes)
        self.limit = max((target.limit_bytes for target in targets), default=None)
        self._known_costs: dict[int, tuple[tuple[int, int], list[Cost]]] = {}

    def run(self) -> tuple[PredictedSize, ...]:
        """Predict from the largest size down, and only the smallest if nothing can fit.

        Once a size fits every device, only faster sizes among the smaller ones are replayed.
        """
        if self.recorder.is_out_of_reach():
            return (self._predict(self.sizes[0], plays=True),)
        sizes = self._record_two()
        found: list[PredictedSize] = []
        waiting = {target.name for target in self.targets}
        best = 0.0
        for size in reversed(sizes):
            rate = self._rate(size)
            decides = not self.targets or bool(waiting) or rate > best * _FASTER
            predicted = self._predict(size, plays=decides)
            fits = _fitting(predicted)
            if decides and (size == self.sizes[0] or (waiting & fits and len(self.targets) == 1)):
                # The size that is the answer is recorded itself. With many devices there is none.
                if size not in self.recordings.by_size:
                    self.recordings.record(size)
                    predicted = self._predict(size, plays=True)
                fits = _fitting(predicted)
            waiting -= fits
            if fits:
                best = max(best, rate)
            found.append(predicted)
        return tuple(reversed(found))

    def _record_two(self) -> list[int]:
        """Record two sizes, one at the expected edge; returns the sizes to predict."""
        if len(self.sizes) < 3:
            for size in self.sizes:
                self.recordings.record(size)
            return self.sizes
        first = self.recorder.first_size()
        edge = self._expected_edge(first)
        if edge < first and not self.request.every_size:
            return self.sizes[:2]
        if len(self.recordings.by_size) < 2:
            self.recordings.record(max(edge, self.sizes[2]))
        return self.sizes

    def _expected_edge(self, first: int) -> int:
        """The largest size that fits if all but weights, gradients and states grow with the size.

        It is the smallest size if no device has room for `first`, and `first` if there is no limit.
        """
        if self.limit is None:
            return first
        layout = self._layout(first)
        position, floor = max(
            playback.phase_peak_positions(layout).values(), key=lambda found: found[1]
        )
        if floor > self.limit:
            return self.sizes[0]
        alive = playback.alive_at(layout, position).items()
        stays = sum(
            count * layout.sizes[block]
            for block, count in alive
            if layout.blocks[block].category in _STAYING
        )
        grown = max(1, floor - stays)
        room = [size for size in self.sizes if size * grown <= (self.limit - stays) * first]
        return max(room, default=first)

    def _rate(self, size: int) -> float:
        """Tokens per second on the first card with a known speed; 0 if there is none."""
        for target in self.targets:
            timing = self._timing(target, size)
            if timing is not None:
                return tokens_per_s(timing, self.job.config.with_micro_batch(size))
        return 0.0

    def _layout(self, size: int) -> Layout:
        self.recordings.line(size)
        accumulates = size < self.job.config.effective_batch_size
        return self.recordings.rung.layout(size, accumulates=accumulates, resized=self.resized)

    def _predict(self, size: int, *, plays: bool) -> PredictedSize:
        layout = self._layout(size)
        positions = playback.phase_peak_positions(layout)
        floor = max(bytes_ for _, bytes_ in positions.values())
        out_of_reach = self.limit is not None and floor > self.limit
        played = playback.play(layout, self.settings) if plays and not out_of_reach else None
        return PredictedSize(
            micro_batch_size=size,
            measurement=self._measurement(size, layout, positions, played),
            devices=tuple(
                self._on_device(target, size, layout, floor, played)
                if plays
                else DevicePrediction(
                    target.name, True, None, None, None, self._timing(target, size)
                )
                for target in self.targets
            ),
            phases=phase_peaks(layout) if self.request.detail else (),
        )

    def _on_device(
        self, target: Target, size: int, layout: Layout, floor: int, played: Replay | None
    ) -> DevicePrediction:
        """Whether the size fits one device; replayed under its limit only if that decides."""
        limit = target.limit_bytes
        reserved = played.peak_reserved_bytes if played is not None else None
        fits, oom = floor <= limit, None
        # Only the smallest size on a single device gets the message of its failure.
        has_message = len(self.request.targets) == 1 and size == self.sizes[0]
        if (fits or has_message) and (
            played is None or (reserved is not None and reserved > limit)
        ):
            held = playback.play(layout, self.settings, max(limit, 1))
            fits = held.fits
            reserved = held.peak_reserved_bytes if held.fits else reserved
            if held.out_of_memory is not None:
                phase = layout.windows[len(held.windows) - 1][1]
                oom = parse_oom(
                    out_of_memory_message(held.out_of_memory, 0, target.total_bytes), phase
                )
        return DevicePrediction(
            target=target.name,
            fits=fits,
            peak_reserved_bytes=reserved,
            missed_by_bytes=None if fits else max(1, floor - limit),
            oom=oom,
            timing=self._timing(target, size),
        )

    def _measurement(
        self, size: int, layout: Layout, positions: Positions, played: Replay | None
    ) -> Measurement:
        """The record that a measurement would give, on a device without a limit."""
        if played is not None:
            memory = playback.phase_memory(layout, played)
        else:
            memory = {w: PhaseMemory(size) for w, (_, size) in positions.items()}
        phases = worst_by_phase(memory)
        position, floor = max(positions.values(), key=lambda found: found[1])
        peak = max(played.peak_allocated_bytes if played is not None else 0, floor)
        trainable, parameters = self.recorder.whole.parameter_counts()
        setup = self.recorder.setup
        recorded = self.recordings.by_size[self.recordings.line(size)[0]]
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
            breakdown=breakdown(layout, position, peak),
            allocation_retries=played.retries if played is not None else None,
            managed_bytes=recorded.managed_bytes,
            timing=None,
            attention_kernel=attention_kernel(setup, recorded.attention_operators),
            trainable_parameters=trainable,
            parameters=parameters,
            losses=(),
            skipped_optimizer_steps=0,
            notes=tuple(setup.notes),
            versions=installed_versions(),
        )

    def _timing(self, target: Target, size: int) -> Timing | None:
        if target.gpu is None or uses_host(self.job.config):
            return None  # the bandwidth to the host is unknown
        low, _ = self.recordings.line(size)
        return estimated_timing(
            self._costs_at(size),
            self.recordings.by_size[low].tape.windows,
            self.recordings.rung.depths,
            target.gpu,
            target.calibration,
        )

    def _costs_at(self, size: int) -> list[Cost]:
        """The costs of a micro-step at a size and of the optimizer step."""
        line = self.recordings.line(size)
        known = self._known_costs.get(size)
        if known is None or known[0] != line:  # the size may have been recorded since
            first, second = (self._costs(recorded, size) for recorded in line)
            known = (line, costs_between(first, line[0], second, line[1], size))
            self._known_costs[size] = known
        return known[1]

    def _costs(self, recorded: int, size: int) -> list[Cost]:
        """The costs of a recording; with accumulation, each micro-step adds to the gradients.

        The first micro-step has no gradients to add to, but counts like the others.
        """
        found = self.recordings.by_size[recorded]
        accumulates = size < self.job.config.effective_batch_size
        return found.costs + found.adding if accumulates else found.costs


def _fitting(predicted: PredictedSize) -> set[str]:
    return {device.target for device in predicted.devices if device.fits}
