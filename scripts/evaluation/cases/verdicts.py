"""Devices somewhat smaller and larger than a run was measured to need, and our verdict on them.

A device is the card of the run with another size. It has 2 % less than was measured, so that the
run cannot fit, or 10 % and 25 % more than the whole card was seen to need, so that it does. Where
PyTorch's allocator was read, a CUDA context comes on top of the first, the smallest that is likely
on that card; and where the whole card was not read, the largest that is likely comes on top of
what the allocator needed. (There the truth is an assumption: the allocator gives unused segments
back before it fails, but may still need more than it had allocated.)

Our verdict is the row that `plan` makes for such a card, by the product's own functions: its
default headroom, the replay of the allocator under that limit, and the note "borderline" if the
limit is nearer than predictions are exact. That nearness comes from the recorded errors, which are
of these very runs: a new run may be farther off. Where the source of a run states the context, our
verdict has that one, as our figure has.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass

from cases.case import NO_LIMIT, Case, Reading, predicted_bytes, simulated
from oomdoctor.analysis.fit import USUAL_HEADROOM, PeakErrors, headroom_bytes, peak_error
from oomdoctor.analysis.memory.overhead import context_bytes
from oomdoctor.analysis.search.ladder import Context
from oomdoctor.analysis.simulator.predicted_attempts import attempts_of_prediction
from oomdoctor.analysis.verdict import conclude
from oomdoctor.commands.devices.cards import Card
from oomdoctor.records.configuration.config import Recipe, Rung
from oomdoctor.records.job.machine import ByteRange
from oomdoctor.records.job.model import ModelRef
from oomdoctor.records.job.result import Attempt
from oomdoctor.records.job.simulation import Prediction, Target
from oomdoctor.records.report.report import SurveyRequest
from oomdoctor.system.catalogue import find_gpu, peak_errors

HEADROOM = USUAL_HEADROOM
SHARES = (-0.02, 0.10, 0.25)  # more than was measured


@dataclass(frozen=True, slots=True)
class Device:
    """A card of a size for which the measurement says whether the run fits."""

    share: float
    total_bytes: int

    @property
    def holds(self) -> bool:
        """Whether the run fits there in truth."""
        return self.share > 0


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a tool decides, and whether it says that it is too close to be sure."""

    fits: bool
    in_doubt: bool


@dataclass(frozen=True, slots=True)
class Answer:
    """Bytes predicted for a reading, and the verdict on each of its devices, in their order."""

    predicted_bytes: int
    verdicts: tuple[Verdict, ...]


def devices_of(case: Case, reading: Reading) -> tuple[Device, ...]:
    """The devices on which every tool is asked about a reading, in the order of `SHARES`."""
    context, device = context_bytes(find_gpu(case.gpu)), reading.metric == "device"
    least = 0 if device else context.low
    most = reading.device_bytes or reading.measured_bytes + context.high
    return tuple(
        Device(share, round(most * (1 + share)))
        if share > 0
        else Device(share, round(reading.measured_bytes * (1 + share)) + least)
        for share in SHARES
    )


def our_answers(case: Case) -> tuple[Answer, ...]:
    """What we say of each reading of a case, by one simulation.

    Raises:
        UnsupportedError: the libraries or the simulator cannot run it.
    """
    cards = [
        [_card(case, reading, device) for device in devices_of(case, reading)]
        for reading in case.readings
    ]
    targets = [_target(case, card) for row in cards for card in row]
    unlimited = Target(case.gpu, NO_LIMIT, NO_LIMIT, 0, find_gpu(case.gpu))
    prediction = simulated(case, (unlimited, *targets))
    return tuple(
        Answer(size, tuple(_verdict(case, card, prediction) for card in row))
        for size, row in zip(predicted_bytes(case, prediction), cards, strict=True)
    )


def _card(case: Case, reading: Reading, device: Device) -> Card:
    gpu, stated = find_gpu(case.gpu), reading.beside_bytes
    return Card(
        name=f"{reading.metric} {device.share:+.0%}",
        facts=gpu,
        memory_bytes=device.total_bytes,
        total_bytes=device.total_bytes,
        total_source="measured",
        headroom_bytes=headroom_bytes(device.total_bytes, HEADROOM),
        context=ByteRange(stated, stated, stated, "stated") if stated else context_bytes(gpu),
    )


def _verdict(case: Case, card: Card, prediction: Prediction) -> Verdict:
    """As `runs.plan_report` makes the row of a rung on a card."""
    itself = Attempt(case.config, "fits", None, None, None, None, 0.0)
    rung, context = Rung(case.id, case.config), Context("cuda", usable_bytes=card.usable_bytes)
    target = _target(case, card)
    attempts = attempts_of_prediction(case.config, prediction, target, itself, context)
    row = conclude(rung, attempts, None, context, _request(case, rung), "predicted")
    return Verdict(row.outcome == "fits", row.borderline)


def _target(case: Case, card: Card) -> Target:
    errors = PeakErrors(peak_errors(), card.capability, None)
    return card.target(error=peak_error(card.context, errors, case.config.method))


def _request(case: Case, rung: Rung) -> SurveyRequest:
    return SurveyRequest(
        model=ModelRef(case.model.id),
        recipe=Recipe(case.id, "", (rung,), "published run"),
        device="cuda",
        vram_bytes=None,
        headroom=HEADROOM,
        sequence_length=case.config.sequence_length,
        effective_batch_size=case.config.effective_batch_size,
        micro_batch_size=None,
        weights="synthetic",
        evaluate=False,
        eval_batch_size=1,
        rank_by="throughput",
        tokens=1_000_000,
        time_limit_s=None,
        rung_limit_s=0.0,
        python=sys.executable,
        seed=0,
    )
