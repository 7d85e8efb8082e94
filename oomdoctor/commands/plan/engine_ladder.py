"""Rungs of a plan that run: for each the largest micro-batch size that fits, by its engine.

All searches advance together, one size at a time, so that rungs run side by side. A rung whose
lower bound is above the usable memory does not run.

The emulated card runs no kernels, so times are estimated: the rung is also simulated at the
micro-batch size that its engine fits. Unsloth cannot be simulated, so its rungs have none.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from oomdoctor.analysis.memory.closed_form import shards_of
from oomdoctor.analysis.search.ladder import Context, fixed_size, too_big
from oomdoctor.analysis.search.micro_batch import divisors, next_with_room, sample_of
from oomdoctor.analysis.search.moments import Room, with_moments
from oomdoctor.commands.devices.cards import Card
from oomdoctor.commands.events import Listener, SurveyEvent, starting
from oomdoctor.commands.jobs.simulators import Simulators
from oomdoctor.commands.plan.engines import (
    Chosen,
    Engines,
    is_sharded,
    runs_on_card_only,
    was_stopped_by_host,
)
from oomdoctor.commands.plan.findings import Findings
from oomdoctor.commands.plan.tasks import Task
from oomdoctor.records.configuration.config import Rung
from oomdoctor.records.facts.dtypes import dtype_bytes
from oomdoctor.records.job.result import Attempt, refused


@dataclass(slots=True)
class _Search:
    """The search for a rung on a card; over if an attempt ended in anything but a verdict."""

    rung: Rung
    sizes: tuple[int, ...]
    spared_bytes: int
    attempts: list[Attempt] = field(default_factory=list)

    def next_size(self, usable_bytes: int) -> int | None:
        """The next size to run."""
        if any(attempt.outcome not in ("fits", "oom") for attempt in self.attempts):
            return None
        tried = {attempt.micro_batch_size: attempt for attempt in map(sample_of, self.attempts)}
        return next_with_room(self.sizes, tried, usable_bytes, self.spared_bytes)


def run_ladder(
    findings: Findings,
    card: Card,
    engines: Engines,
    on_event: Listener,
    chosen: Chosen = is_sharded,
) -> None:
    """Run the `chosen` rungs of a card and keep what they need.

    A rung that its engine cannot run is left to the simulation, unless it is one of Unsloth.

    Raises:
        Stopped: told to stop; what is known stays.
        OomDoctorError: no worker can be started (exit 5).
    """
    context, usable = findings.contexts[card.name], card.usable_bytes
    room = Room(usable, card.total_bytes)
    searches = [
        _Search(rung, _sizes(rung, context), _gradient_bytes(rung, context))
        for rung in findings.ladder(card)
        if chosen(rung.config) and _may_run(findings, card, rung, context)
    ]
    total, done = len(searches), 0
    while True:
        wanted = [
            (number, size)
            for number, search in enumerate(searches)
            if (size := search.next_size(usable)) is not None
        ]
        if not wanted:
            return
        asked = [
            Rung(searches[number].rung.label, searches[number].rung.config.with_micro_batch(size))
            for number, size in wanted
        ]
        for ran in engines.run(asked, usable, starting(on_event, asked, total)):
            search = searches[wanted[ran.number][0]]
            search.attempts.append(with_moments(ran.attempt, context, room))
            if search.next_size(usable) is not None:
                continue
            done, rung, attempts = done + 1, search.rung, tuple(search.attempts)
            keep(findings, card, rung, attempts)
            event = SurveyEvent("predicted", rung, attempts=attempts, index=done, total=total)
            on_event(event)


def keep(findings: Findings, card: Card, rung: Rung, attempts: tuple[Attempt, ...]) -> None:
    """Keep the attempts, unless the engine is not supported here: then the rung is simulated."""
    last = attempts[-1]
    if last.outcome != "unsupported" and not was_stopped_by_host(last):
        findings.keep_run(card, rung, attempts)
    elif len(attempts) > 1:
        findings.keep_run(card, rung, attempts[:-1])
    elif runs_on_card_only(rung.config):
        findings.keep_run(card, rung, attempts)  # why it does not run
    else:
        findings.not_run[card.name, rung.config.key()] = last.reason or "not supported"


def _may_run(findings: Findings, card: Card, rung: Rung, context: Context) -> bool:
    """Whether a rung runs; if not, why is kept."""
    smallest = rung.config.with_micro_batch(fixed_size(rung.config, context) or 1)
    reason = context.refuses(smallest)
    if reason is not None:
        findings.attempts[card.name, rung.config.key()] = (refused(smallest, reason),)
        return False
    skip = too_big(rung, context)
    if skip is not None:
        findings.skipped[card.name, rung.config.key()] = skip
        return False
    return True


def _sizes(rung: Rung, context: Context) -> tuple[int, ...]:
    fixed = fixed_size(rung.config, context)
    return (fixed,) if fixed is not None else divisors(rung.config.rank_batch_size())


def _gradient_bytes(rung: Rung, context: Context) -> int:
    """What a rank holds of the gradients while it accumulates; 0 for adapters, which are small."""
    config = rung.config
    if config.method != "full" or context.counts is None:
        return 0
    return context.counts.total * dtype_bytes(config.weights_dtype) // shards_of(config)


def estimate_times(
    findings: Findings, card: Card, simulators: Simulators, on_event: Listener
) -> None:
    """Simulate the rungs that fit by their engines; a rung that cannot be simulated has no time.

    Raises:
        Stopped: told to stop; what is known stays.
    """
    tasks = []
    for rung in findings.ladder(card):
        if runs_on_card_only(rung.config):
            continue
        row = findings.row(card, rung)
        by_engine = row.evidence == "emulated"
        if by_engine and row.outcome == "fits" and row.micro_batch_size:
            tasks.append(Task(rung, (row.micro_batch_size,), (card,)))
    if card.facts is None or not tasks:
        return

    told = starting(on_event, [task.rung for task in tasks])
    for done, ended in enumerate(findings.simulate(simulators, tasks, told, keep=False), 1):
        task = tasks[ended.number]
        on_event(SurveyEvent("simulated", task.rung, index=done, total=len(tasks)))
        simulated = findings.attempts_on(card, task, ended)
        if simulated:
            ran = findings.attempts[card.name, task.rung.config.key()]
            findings.keep_run(card, task.rung, tuple(with_times(tried, simulated) for tried in ran))


def with_times(attempt: Attempt, simulated: tuple[Attempt, ...]) -> Attempt:
    """The attempt with the estimated times of the one that was simulated at its size."""
    by_size = {other.config.micro_batch_size: other.measurement for other in simulated}
    estimate = by_size.get(attempt.config.micro_batch_size)
    if attempt.measurement is None or estimate is None:
        return attempt
    return replace(attempt, measurement=replace(attempt.measurement, timing=estimate.timing))
