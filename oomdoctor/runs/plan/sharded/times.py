"""Times for rungs that their engines ran: the emulated card runs no kernels, so they are estimated.

The rung is also simulated at the micro-batch size that its engine fits. That gives the estimate of
its speed. Unsloth cannot be simulated, so its rungs have none.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Literal

from oomdoctor.records.measurement import Measurement
from oomdoctor.records.result import Attempt
from oomdoctor.runs.devices.cards import Card
from oomdoctor.runs.events import Listener, SurveyEvent
from oomdoctor.runs.jobs.simulators import Simulators
from oomdoctor.runs.plan.findings import Findings
from oomdoctor.runs.plan.sharded.route import runs_on_card_only
from oomdoctor.runs.plan.tasks import Task


def estimate_times(known: Findings, card: Card, simulators: Simulators, on_event: Listener) -> None:
    """Simulate the rungs that fit by their engines; a rung that cannot be simulated has no time.

    Raises:
        Stopped: told to stop; what is known stays.
    """
    tasks = []
    for rung in known.ladder(card):
        if runs_on_card_only(rung.config):
            continue
        row = known.row(card, rung)
        if known.was_run(card, rung) and row.outcome == "fits" and row.micro_batch_size:
            tasks.append(Task(rung, (row.micro_batch_size,), (card,)))
    if card.facts is None or not tasks:
        return

    def started(number: int) -> None:
        on_event(SurveyEvent("simulating", tasks[number].rung, total=len(tasks)))

    for done, ended in enumerate(known.simulate(simulators, tasks, started, keep=False), 1):
        task = tasks[ended.number]
        on_event(SurveyEvent("simulated", task.rung, index=done, total=len(tasks)))
        simulated = {
            attempt.config.micro_batch_size: attempt.measurement
            for attempt in known.attempts_on(card, task, ended)
        }
        if simulated:
            ran = known.attempts[card.name, task.rung.config.key()]
            known.keep_run(card, task.rung, tuple(with_times(one, simulated) for one in ran))


def with_times(
    attempt: Attempt, simulated: Mapping[int | Literal["auto"], Measurement | None]
) -> Attempt:
    """The attempt with the estimated times of its size; `simulated` is by micro-batch size."""
    estimate = simulated.get(attempt.config.micro_batch_size)
    if attempt.measurement is None or estimate is None:
        return attempt
    return replace(attempt, measurement=replace(attempt.measurement, timing=estimate.timing))
