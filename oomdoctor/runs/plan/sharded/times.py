"""Times for rungs that their engines ran: the emulated card runs no kernels, so they are estimated.

The rung is also simulated at the micro-batch size that its engine fits. That gives the estimate of
its speed. Unsloth cannot be simulated, so its rungs have none.
"""

from __future__ import annotations

from dataclasses import replace

from oomdoctor.analysis.simulator.predicted_attempts import attempts_of_prediction, prediction_for
from oomdoctor.records.measurement import Measurement
from oomdoctor.records.result import Attempt
from oomdoctor.runs.devices.cards import Card
from oomdoctor.runs.events import Listener, SurveyEvent
from oomdoctor.runs.jobs.simulators import Simulators
from oomdoctor.runs.plan.findings import Findings
from oomdoctor.runs.plan.sharded.route import runs_on_card_only
from oomdoctor.runs.plan.tasks import Task, job_of


def estimate_times(known: Findings, card: Card, simulators: Simulators, on_event: Listener) -> None:
    """Simulate the rungs that fit by their engines; a rung that cannot be simulated has no time.

    Raises:
        Stopped: told to stop; what is known stays.
    """
    assert known.inspection is not None
    tasks = []
    for rung in known.ladder(card):
        if runs_on_card_only(rung.config):
            continue
        row = known.row(card, rung)
        if known.was_run(card, rung) and row.outcome == "fits" and row.micro_batch_size:
            tasks.append(Task(rung, (row.micro_batch_size,), (card,)))
    if card.facts is None or not tasks:
        return
    seed = known.request.seed
    jobs = [job_of(task, known.plan, known.spec, known.inspection, seed) for task in tasks]

    def started(number: int) -> None:
        on_event(SurveyEvent("simulating", tasks[number].rung, total=len(tasks)))

    for done, ended in enumerate(simulators.run(jobs, started), 1):
        task = tasks[ended.number]
        on_event(SurveyEvent("simulated", task.rung, index=done, total=len(tasks)))
        predictions = ended.reply.predictions if ended.reply is not None else ()
        prediction = prediction_for(predictions, card.name)
        if prediction is None:
            continue
        config = task.rung.config
        target = card.target().beside_vllm(config)
        found = attempts_of_prediction(config, prediction, target, ended.attempt)
        simulated = {one.config.micro_batch_size: one.measurement for one in found}
        key = card.name, task.rung.config.key()
        ran = tuple(
            _timed(one, simulated.get(one.config.micro_batch_size)) for one in known.attempts[key]
        )
        known.keep_run(card, task.rung, ran)


def _timed(attempt: Attempt, simulated: Measurement | None) -> Attempt:
    """The attempt with the estimated times of its size."""
    if attempt.measurement is None or simulated is None:
        return attempt
    return replace(attempt, measurement=replace(attempt.measurement, timing=simulated.timing))
