"""One rung predicted at several micro-batch sizes and for several devices, without a device.

It is built once and recorded for the first device; the recordings serve every other device for
which CUDA would have chosen the same kernels (`cuda_choices`), and the others get their own.
"""

from __future__ import annotations

from oomdoctor.analysis.simulator.depth import IrregularError
from oomdoctor.analysis.simulator.playback import Categories, RecordedRung
from oomdoctor.records.result import ProbeJob
from oomdoctor.records.simulation import PredictedSize, Prediction, Target
from oomdoctor.worker.protocol.progress import PhaseFile
from oomdoctor.worker.simulating.cuda.kernels import Card
from oomdoctor.worker.simulating.predict import Predictor, Recordings
from oomdoctor.worker.simulating.recorder import Recorder, card_of
from oomdoctor.worker.simulating.shallow import IrregularLayersError
from oomdoctor.worker.tracing.trace import GRADIENTS, INPUTS, OPTIMIZER, TEMPORARY

CATEGORIES_OF_STEPS = Categories(OPTIMIZER, GRADIENTS, TEMPORARY, INPUTS)


def simulate(job: ProbeJob, progress: PhaseFile) -> tuple[Prediction, ...]:
    """Peaks, fits and times of the job's rung at the sizes and for the devices it names.

    One prediction for each kind of card among the devices, or one without a device.

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
    with Recorder(job, progress, shallow=shallow) as recorder:
        while left:
            recordings = _recordings_for(next(iter(left)), known, recorder)
            cards = recordings.cards_alike(tuple(left))
            targets = tuple(target for card in cards for target in left[card])
            sizes = Predictor(job, recordings, cards[0], targets).run()
            # What was recorded on the way may have told that some are not alike after all.
            if recordings.alike.issuperset(cards):
                predictions.append(_prediction(job, recorder, sizes))
                for card in cards:
                    del left[card]
    return tuple(predictions)


def _recordings_for(card: Card, known: list[Recordings], recorder: Recorder) -> Recordings:
    """Those that hold for a card; new ones are kept."""
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
