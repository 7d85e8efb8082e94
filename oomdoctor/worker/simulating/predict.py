"""The micro-batch sizes of a rung on devices of one kind, from as few recordings as tell them.

Two recordings tell all sizes. The first is of the size above the smallest, which is often a case
apart; the second is where the edge is expected. The largest size that fits the one device asked for
is recorded as well if it was not by then, so that the answer rests on a simulation of its own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from oomdoctor.analysis.allocator import AllocatorSettings, Replay, out_of_memory_message
from oomdoctor.analysis.memory.phases import peak_phase, worst_by_phase
from oomdoctor.analysis.simulator import playback
from oomdoctor.analysis.simulator.playback import Layout, NewStructureError, RecordedRung
from oomdoctor.analysis.speed.throughput import tokens_per_s
from oomdoctor.explain.reading.dialects.parse import parse_oom
from oomdoctor.records.measurement import Measurement, PhaseMemory, Timing
from oomdoctor.records.result import ProbeJob
from oomdoctor.records.simulation import DevicePrediction, PredictedSize, Target
from oomdoctor.worker.simulating.costs.estimate import costs_between, estimated_timing
from oomdoctor.worker.simulating.cuda.choices import workspaces
from oomdoctor.worker.simulating.cuda.kernels import Card
from oomdoctor.worker.simulating.peaks import breakdown, phase_peaks
from oomdoctor.worker.simulating.recorded import Cost, Recorded
from oomdoctor.worker.simulating.recorder import Recorder
from oomdoctor.worker.tracing.trace import GRADIENTS, OPTIMIZER, WEIGHTS
from oomdoctor.worker.training.attention_kernel import attention_kernel
from oomdoctor.worker.training.inspection import installed_versions
from oomdoctor.worker.training.offload import uses_host

_STAYING = (WEIGHTS, GRADIENTS, OPTIMIZER)  # what does not grow with the micro-batch
_FASTER = 1.01  # less is not worth a smaller size
Positions = Mapping[playback.Window, tuple[int, int]]


class Recordings:
    """A rung's recordings by micro-batch size, made for `card` and right for the cards `alike`."""

    def __init__(self, rung: RecordedRung, recorder: Recorder, card: Card) -> None:
        self.rung, self.recorder, self.card = rung, recorder, card
        self.by_size: dict[int, Recorded] = {}
        self.alike = set(recorder.choices.cards)
        self.record(recorder.first_size())

    def cards_alike(self, cards: Sequence[Card]) -> tuple[Card, ...]:
        """Of these cards the first that the recordings hold for, and those equal to it in all."""
        held = [card for card in cards if card in self.alike]
        return tuple(card for card in held if workspaces(card) == workspaces(held[0]))

    def record(self, size: int) -> None:
        """Record a size, unless it was."""
        if size in self.by_size:
            return
        made = self.recorder.record(size, self.card)
        self.by_size[size] = made
        self.alike &= made.alike
        self.rung.add(size, made.tape, made.taken)

    def line(self, size: int) -> tuple[int, int]:
        """The recordings that tell a size; it is recorded where those at hand do not."""
        try:
            return self.rung.line(size)
        except NewStructureError:
            self.record(size)
            return size, size


class Predictor:
    """A rung at the sizes of its job on devices that `recordings` hold for."""

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
        """From the largest size down; once one fits everywhere, smaller ones only if faster.

        Only the smallest where nothing fits in any case.
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
                # What the answer rests on is simulated itself; of many devices, none is the answer.
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
        """Record what tells the sizes, one of them at the expected edge; the sizes to predict."""
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
        """The largest size that has room where all but weights, gradients and states grows.

        The smallest where no device has room for `first`; `first` where nothing limits.
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
        """Tokens a second on the first card that tells them; 0 without one."""
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
        """Whether the size fits one device; replayed under its limit only where that decides."""
        limit = target.limit_bytes
        reserved = played.peak_reserved_bytes if played is not None else None
        fits, oom = floor <= limit, None
        # The message of a failure is told of the smallest size, on one device.
        told = len(self.request.targets) == 1 and size == self.sizes[0]
        if (fits or told) and (played is None or (reserved is not None and reserved > limit)):
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
        """The record that measuring gives, for a device without a limit."""
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
            return None  # nothing is known of the way to the host
        low, _ = self.recordings.line(size)
        return estimated_timing(
            self._costs_at(size),
            self.recordings.by_size[low].tape.windows,
            self.recordings.rung.depths,
            target.gpu,
            target.calibration,
        )

    def _costs_at(self, size: int) -> list[Cost]:
        """The operators of a micro-step at a size and of the optimizer step."""
        line = self.recordings.line(size)
        known = self._known_costs.get(size)
        if known is None or known[0] != line:  # a recording of its own may have come since
            first, second = (self._costs(recorded, size) for recorded in line)
            known = (line, costs_between(first, line[0], second, line[1], size))
            self._known_costs[size] = known
        return known[1]

    def _costs(self, recorded: int, size: int) -> list[Cost]:
        """The operators of a recording; with accumulation, gradients are added in each micro-step.

        The first micro-step of several has none to add to: it is counted like the others.
        """
        found = self.recordings.by_size[recorded]
        accumulates = size < self.job.config.effective_batch_size
        return found.costs + found.adding if accumulates else found.costs


def _fitting(predicted: PredictedSize) -> set[str]:
    return {device.target for device in predicted.devices if device.fits}
