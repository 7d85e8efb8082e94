"""Predict one rung at several micro-batch sizes and for several devices, without a device.

The rung is built once and recorded for the first device. The recordings also hold for every other
device for which CUDA would choose the same kernels (`cuda.choices`). The rest get their own.
"""

from __future__ import annotations

from oomdoctor.analysis.simulator.depth import IrregularError
from oomdoctor.analysis.simulator.playback import Categories, RecordedRung
from oomdoctor.records.result import ProbeJob
from oomdoctor.records.simulation import PredictedSize, Prediction, Target
from oomdoctor.worker.protocol.progress import PhaseFile
from oomdoctor.worker.simulating.cuda.card import Card
from oomdoctor.worker.simulating.cuda.choices import card_of
from oomdoctor.worker.simulating.opening import simulated_rung
from oomdoctor.worker.simulating.predict import Predictor
from oomdoctor.worker.simulating.recorder import Recorder
from oomdoctor.worker.simulating.recordings import Recordings
from oomdoctor.worker.simulating.shallow import IrregularLayersError
from oomdoctor.worker.tracing.categories import GRADIENTS, INPUTS, OPTIMIZER, TEMPORARY

CATEGORIES_OF_STEPS = Categories(OPTIMIZER, GRADIENTS, TEMPORARY, INPUTS)


def simulate(job: ProbeJob, progress: PhaseFile) -> tuple[Prediction, ...]:
    """Predict peaks, fit and times of the job's rung for the sizes and devices it names.

    Returns one prediction for each kind of card, or a single one if the job names no device.

    Raises:
        UnsupportedError: the rung or the model cannot be simulated.
    """
    try:
        return _simulated(job, progress, shallow=True)
    except (IrregularError, IrregularLayersError):
        return _simulated(job, progress, shallow=False)


def _simulated(job: ProbeJob, progress: PhaseFile, *, shallow: bool) -> tuple[Prediction, ...]:
    assert job.simulation is not None
    left: dict[Card, list[Target]] = {}
    for target in job.simulation.targets:
        left.setdefault(card_of(target), []).append(target)
    if not left:
        left[card_of(None)] = []
    predictions: list[Prediction] = []
    known: list[Recordings] = []
    with simulated_rung(job, progress, shallow=shallow) as recorder:
        while left:
            recordings = _recordings_for(next(iter(left)), known, recorder)
            cards = recordings.cards_alike(tuple(left))
            targets = tuple(target for card in cards for target in left[card])
            sizes = Predictor(job, recordings, cards[0], targets).run()
            # A later recording may have shown that some cards are not alike after all.
            if recordings.alike.issuperset(cards):
                predictions.append(_prediction(job, recorder, sizes))
                for card in cards:
                    del left[card]
    return tuple(predictions)


def _recordings_for(card: Card, known: list[Recordings], recorder: Recorder) -> Recordings:
    """The recordings that hold for a card; new ones are added to `known`."""
    for recordings in known:
        if card in recordings.alike:
            return recordings
    rung = RecordedRung(recorder.depths, CATEGORIES_OF_STEPS, recorder.held)
    known.append(Recordings(rung, recorder, card))
    return known[-1]


def _prediction(job: ProbeJob, recorder: Recorder, sizes: tuple[PredictedSize, ...]) -> Prediction:
    assert job.simulation is not None
    return Prediction(
        sizes=sizes,
        simulated_layers=sum(
            stack.layers - (real - simulated) * stack.period
            for stack, (simulated, real) in zip(
                recorder.stacks, recorder.depths.values(), strict=True
            )
        ),
        layers=sum(stack.layers for stack in job.simulation.stacks),
        notes=tuple(recorder.setup.notes),
    )
