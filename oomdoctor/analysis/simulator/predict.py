"""Predict the micro-batch sizes of a rung on devices, from the recordings of its step.

This runs wherever the recordings are: in the worker that made them, or in a process without torch
that found them on disk. What is not recorded yet is asked for.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from oomdoctor.analysis.allocator.records import out_of_memory_message
from oomdoctor.analysis.fit import is_borderline
from oomdoctor.analysis.search.micro_batch import Sample, chosen, is_worth
from oomdoctor.analysis.simulator.card import Card, card_of
from oomdoctor.analysis.simulator.recorded import Played, Recorded, Store
from oomdoctor.analysis.simulator.recording_bytes import Pack
from oomdoctor.analysis.simulator.recordings import Record, Recordings
from oomdoctor.analysis.simulator.sizes import Sizes
from oomdoctor.analysis.simulator.zero import ZeroSizes
from oomdoctor.analysis.speed.throughput import tokens_per_s
from oomdoctor.records.configuration.config import TrainConfig, is_zero, joins_rows
from oomdoctor.records.job.measurement import OomEvent
from oomdoctor.records.job.result import Outcome
from oomdoctor.records.job.simulation import (
    DevicePrediction,
    PhasePeak,
    PredictedSize,
    Prediction,
    SimulationRequest,
    SpeedErrorRecord,
    Target,
)


@dataclass(frozen=True, slots=True)
class Knowledge:
    """What predictions need beside recordings.

    `errors` are those of earlier estimates of speed. `oom_event` reads the message of an allocator
    that ran out of memory in a phase.
    """

    errors: Sequence[SpeedErrorRecord]
    oom_event: Callable[[str, str], OomEvent | None]


def predictions(
    config: TrainConfig,
    request: SimulationRequest,
    pack: Pack,
    record: Record,
    knowledge: Knowledge,
) -> tuple[Prediction, ...]:
    """Predict peaks, fit and times of a rung for the sizes and devices of the request.

    Returns one prediction for each kind of card, or a single one if the request names no device.
    `pack` has recordings of the rung; `record` makes another one. What is computed from them is
    added to it.

    Raises:
        NewStructureError: a recording is missing, and `record` cannot make it.
        IrregularError: the layers of a recording do not repeat.
    """
    left: dict[Card, list[Target]] = {}
    for target in request.targets:
        left.setdefault(card_of(target), []).append(target)
    if not left:
        left[card_of(None)] = []
    facts, pool, store = pack.facts, list(pack.recordings), Store(pack.computed, {})
    for recorded in pool:
        store.number(recorded)
    predicted: list[Prediction] = []
    recordings: list[Recordings] = []

    def kept(size: int, card: Card) -> Recorded:
        pool.append(record(size, card))
        store.number(pool[-1])
        return pool[-1]

    while left:
        card = next(iter(left))
        of_card = next((each for each in recordings if each.hold_for(card)), None)
        if of_card is None:
            has_lines = not joins_rows(config)
            of_card = Recordings(facts, card, pool, kept, store, has_lines=has_lines)
            recordings.append(of_card)
        of_card.record_for(sorted(request.micro_batch_sizes), for_later=request.for_later)
        cards = of_card.cards_alike(tuple(left))
        targets = tuple(target for card in cards for target in left[card])
        kind = ZeroSizes if is_zero(config) else Sizes
        at = kind(config, of_card, cards[0], knowledge.errors, store)
        sizes = _Predictor(config, request, at, targets, knowledge).run()
        # A later recording may have shown that some cards are not alike after all.
        if all(map(of_card.hold_for, cards)):
            predicted.append(Prediction(sizes, facts.simulated_layers, facts.layers, facts.notes))
            for card in cards:
                del left[card]
    return tuple(predicted)


@dataclass(frozen=True)
class _Predictor:
    """Predicts a rung at the sizes of its request, on devices that need the same recordings."""

    config: TrainConfig
    request: SimulationRequest
    at: Sizes | ZeroSizes
    targets: tuple[Target, ...]
    knowledge: Knowledge

    @cached_property
    def sizes(self) -> list[int]:
        return sorted(self.request.micro_batch_sizes)

    @cached_property
    def limit(self) -> int | None:
        return max((target.limit_bytes for target in self.targets), default=None)

    def run(self) -> tuple[PredictedSize, ...]:
        """Predict from the largest size down, and only the smallest if nothing can fit.

        Once a size surely fits every device, only those smaller ones are replayed that a report may
        choose for their memory, and the smallest, at which rungs are compared, unless every size is
        of interest.
        """
        out_of_reach = self.limit is not None and self.at.least_bytes > self.limit
        if out_of_reach and not self.request.every_size:
            return self._with_curve([self._predict(self.sizes[0], plays=True)])
        predicted_sizes: list[PredictedSize] = []
        waiting, best = {target.name for target in self.targets}, dict[str, float]()
        for size in reversed(self._possible()):
            rates = {target.name: self._rate(target, size) for target in self.targets}
            decides = not rates or any(
                name in waiting or is_worth(rate, best[name]) for name, rate in rates.items()
            )
            compares = self.request.every_size or size == self.sizes[0]
            predicted = self._predict(size, plays=decides or compares)
            for device in predicted.devices:
                if device.fits and not device.borderline:
                    waiting.discard(device.target)
                    rate = max(rates[device.target], best.get(device.target, 0.0))
                    best[device.target] = rate
            predicted_sizes.append(predicted)
        predicted_sizes.reverse()
        return self._with_curve(predicted_sizes)

    def _with_curve(self, predicted_sizes: Sequence[PredictedSize]) -> tuple[PredictedSize, ...]:
        """The predictions; the one that a report shows has its curve."""
        if not self.request.curve:
            return tuple(predicted_sizes)
        samples = [self._sample(size) for size in predicted_sizes]
        best = chosen(samples)
        shown = predicted_sizes[samples.index(best)] if best is not None else predicted_sizes[0]
        curve = self.at.curve(shown.micro_batch_size)
        peak = shown.measurement.peak_allocated_bytes
        if curve is None or curve.allocated_bytes[curve.peak] != peak:
            return tuple(predicted_sizes)  # only tensors were counted
        drawn = replace(shown, measurement=replace(shown.measurement, curve=curve))
        return tuple(drawn if size is shown else size for size in predicted_sizes)

    def _possible(self) -> list[int]:
        """The sizes to predict: the smallest two if even the second is too large everywhere."""
        if len(self.sizes) < 3 or self.request.every_size or self.limit is None:
            return self.sizes
        return self.sizes[:2] if self.at.floor(self.sizes[1]) > self.limit else self.sizes

    def _sample(self, predicted: PredictedSize) -> Sample:
        """A predicted size as a try on the first device, for which there is a curve."""
        size, device = predicted.micro_batch_size, next(iter(predicted.devices), None)
        if device is None:
            return Sample(size, "fits")
        rate = self._rate(self.targets[0], size)
        outcome: Outcome = "fits" if device.fits else "oom"
        return Sample(size, outcome, None, rate, is_estimate=True, borderline=device.borderline)

    def _rate(self, target: Target, size: int) -> float:
        """Tokens per second on a card; 0 if its speed is not known."""
        timing = self.at.timing(target, size)
        return 0.0 if timing is None else tokens_per_s(timing, self.config.with_micro_batch(size))

    def _predict(self, size: int, *, plays: bool) -> PredictedSize:
        floor = self.at.floor(size)
        if self.limit is not None and floor > self.limit:
            # The smallest size shows what the rung needs. For the others a lower bound will do.
            unlimited = size == self.sizes[0] or self.request.every_size
        else:
            unlimited = plays
        replayed = self.at.played(size) if unlimited else None
        if plays:
            devices = [self._on_device(target, size, floor, replayed) for target in self.targets]
        else:
            times = [(target.name, self.at.timing(target, size)) for target in self.targets]
            devices = [DevicePrediction(name, True, None, None, None, time) for name, time in times]
        measurement = self.at.measurement(size, replayed)
        phases: tuple[PhasePeak, ...] = ()
        if self.request.detail:
            phases = self.at.details(size)
            steps = [self.at.step_time(target, size) for target in self.targets]
            devices = [replace(d, step=step) for d, step in zip(devices, steps, strict=True)]
        return PredictedSize(size, measurement, tuple(devices), phases)

    def _on_device(
        self, target: Target, size: int, floor: int, replayed: Played | None
    ) -> DevicePrediction:
        """Whether the size fits one device; replayed under its limit only if that decides.

        With ZeRO there is nothing to replay, so the tensors decide.
        """
        limit = target.limit_bytes
        reserved = replayed.peak_reserved_bytes if replayed is not None else None
        fits, oom = floor <= limit, None
        # Only the smallest size on a single device gets the message of its failure.
        has_message = len(self.request.targets) == 1 and size == self.sizes[0]
        undecided = replayed is None or (reserved is not None and reserved > limit)
        if isinstance(self.at, Sizes) and (fits or has_message) and undecided:
            limited = self.at.held(size, limit)
            fits = limited.fits
            reserved = limited.peak_reserved_bytes if limited.fits else reserved
            if limited.out_of_memory is not None:
                message = out_of_memory_message(limited.out_of_memory, 0, target.total_bytes)
                oom = self.knowledge.oom_event(message, limited.last_phase)
        zero = isinstance(self.at, ZeroSizes)
        borderline, error = False, target.error
        if error is not None and (reserved is not None or zero):
            around = (target.overhead_bytes, target.usable_bytes, error)
            held = max(floor, reserved or 0)
            borderline = is_borderline(held, *around, tensors_only=fits and zero)
        return DevicePrediction(
            target=target.name,
            fits=fits,
            peak_reserved_bytes=reserved,
            missed_by_bytes=None if fits else max(1, floor - limit),
            oom=oom,
            timing=self.at.timing(target, size),
            borderline=borderline,
        )
