"""A whole plan: one model, a ladder, some devices, nothing measured; and the report at the end.

Every rung is simulated once for all cards. It joins the rooms below as a survey does and keeps
everything on disk; it renders nothing and prints nothing.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace

from oomdoctor.analysis.rows.distribution import shapes_of
from oomdoctor.analysis.search.ladder import bound_of, too_big
from oomdoctor.analysis.simulator.predicted_attempts import attempts_of_prediction, prediction_for
from oomdoctor.errors import ExitCode
from oomdoctor.records.config import config_faults
from oomdoctor.records.report import Report, SurveyRequest, Warn
from oomdoctor.records.result import Attempt, ProbeJob
from oomdoctor.runs import device, faults
from oomdoctor.runs.assemble import timestamp
from oomdoctor.runs.events import Listener, SurveyEvent
from oomdoctor.runs.jobs.launch import Stopped
from oomdoctor.runs.jobs.simulators import Ended, Simulators
from oomdoctor.runs.plan.cards import Card, cards_of
from oomdoctor.runs.plan.longest_row import find_limits, lengths_answer
from oomdoctor.runs.plan.report import Findings
from oomdoctor.runs.plan.report import report as finished_report
from oomdoctor.runs.plan.tasks import Task, context_of, job_of, shown, tasks_of
from oomdoctor.runs.position_limit import sweep_within_limits, within_limits
from oomdoctor.runs.rows import at_longest, count_rows, other_shapes
from oomdoctor.system.models import hub
from oomdoctor.system.store.run_folders import RunFolder
from oomdoctor.units import format_bytes

Stop = Callable[[], ExitCode | None]


def run_plan(
    request: SurveyRequest, folder: RunFolder, *, on_event: Listener, stop: Stop
) -> Report:
    """Predict the request's ladder and report; `report.json` is written in any case but an error.

    `stop()` returns an exit code once the plan is to end early: workers are killed and what is
    known is reported.

    Raises:
        OomDoctorError: the model cannot be had (exit 4), no worker can be started or the folder
            not be written (exit 5).
    """
    begin, started_at = time.monotonic(), timestamp()
    folder.write_request(request)
    simulators = Simulators(
        request.python, folder, request.rung_limit_s, lambda: stop() is not None
    )
    with simulators:  # they load their libraries while the model is looked for
        known = _known_of(request)
        with suppress(Stopped):
            _predict(known, simulators, on_event)
    report = finished_report(
        known,
        folder=folder,
        started_at=started_at,
        elapsed_s=time.monotonic() - begin,
        interrupted=stop(),
        lengths=lengths_answer(known),
    )
    folder.write_report(report)
    on_event(SurveyEvent("done"))
    return report


def _known_of(request: SurveyRequest) -> Findings:
    """What is known before anything is simulated: the model and the cards."""
    assert request.plan is not None
    spec, notes = hub.resolve_with_notes(request.model)
    known = Findings(request, request.plan, spec, cards_of(request.plan, request.headroom))
    known.warnings += [Warn("model_source", note) for note in notes]
    known.warnings += _card_warnings(known.cards, request)
    return known


def _predict(known: Findings, simulators: Simulators, on_event: Listener) -> None:
    """Everything that simulators have to say.

    Raises:
        Stopped: told to stop; what is known stays.
    """
    on_event(SurveyEvent("inspecting", message=f"{known.spec.id} ({known.spec.source})"))
    _inspect(known, simulators)
    _count_rows(known, simulators, on_event)
    _within_limits(known)
    _simulate(known, simulators, on_event)
    known.limits = find_limits(known, simulators)


def _inspect(known: Findings, simulators: Simulators) -> None:
    """Count the model's parameters, find its repeating layers and the limits of its rows."""
    job = ProbeJob(
        mode="inspect",
        label="inspect",
        model=known.spec,
        config=known.rungs[0].config,
        device_type="cpu",  # nothing is asked of a device
    )
    (ended,) = simulators.run([job])
    if ended.reply is None or ended.reply.inspection is None:
        raise faults.inspection_error(ended.attempt, known.spec, known.request.python)
    known.inspection = ended.reply.inspection
    known.warnings += device.model_warnings(known.inspection)


def _count_rows(known: Findings, simulators: Simulators, on_event: Listener) -> None:
    """Count the data file, if there is one; the rungs are then about its longest row."""
    known.counted = count_rows(known.request, known.spec, simulators.run_one, on_event)
    if known.counted is None:
        return
    assert known.request.lengths is not None and known.inspection is not None
    lengths, positions = known.counted.distribution, known.inspection.max_sequence_length
    known.shapes = shapes_of(lengths, known.request.lengths, positions)
    known.request = at_longest(known.request, lengths.longest.tokens)
    known.rungs = known.request.recipe.rungs


def _within_limits(known: Findings) -> None:
    """Lower what is longer than the model has positions for."""
    inspection = known.inspection
    assert inspection is not None
    limit = inspection.max_sequence_length
    if known.plan.sweep is not None and known.plan.sweep.key == "sequence_length":
        known.plan, lowered = sweep_within_limits(known.plan, known.spec.id, limit)
        known.request = replace(known.request, plan=known.plan)
    else:
        known.request, known.rungs, lowered = within_limits(known.request, known.spec.id, limit)
    known.warnings += lowered
    known.contexts = {
        card.name: context_of(card, known.request, known.spec, inspection) for card in known.cards
    }


def _simulate(known: Findings, simulators: Simulators, on_event: Listener) -> None:
    """Run every simulation and keep what it says of each card."""
    assert known.inspection is not None
    rungs = (*known.rungs, *other_shapes(known.rungs, known.shapes))
    planned = tasks_of(known.plan, rungs, known.cards, known.contexts)
    tasks = [task for task in planned if not _contradicts(known, task)]
    # The longest first, so that no worker idles at the end: those with most sizes, and of these the
    # quantised ones, which stand last in a ladder.
    tasks.reverse()
    tasks.sort(key=lambda task: -len(task.sizes))
    jobs = [
        job_of(task, known.plan, known.spec, known.inspection, known.request.seed) for task in tasks
    ]

    def started(number: int) -> None:
        rung = shown(tasks[number], known.plan)
        on_event(SurveyEvent("simulating", rung, total=len(tasks)))

    for done, ended in enumerate(simulators.run(jobs, started), 1):
        task = tasks[ended.number]
        for card in task.cards:
            _take(known, task, card, ended)
        told = [known.attempts.get((c.name, task.rung.config.key()), ()) for c in task.cards]
        on_event(
            SurveyEvent(
                "predicted",
                shown(task, known.plan),
                attempts=told[0] if len(told) == 1 else (),
                message=_fitting(told) if len(told) > 1 else None,
                index=done,
                total=len(tasks),
            )
        )


def _fitting(attempts: list[tuple[Attempt, ...]]) -> str:
    fitting = sum(any(attempt.outcome == "fits" for attempt in found) for found in attempts)
    return f"fits {fitting} of {len(attempts)} cards"


def _contradicts(known: Findings, task: Task) -> bool:
    """Whether a rung contradicts itself; then it is told as unsupported and not simulated."""
    config = task.rung.config.with_micro_batch(task.sizes[0])
    wrong = config_faults(config)
    reason = "; ".join(f"{key} {what}" for key, what in wrong)
    for card in task.cards if wrong else ():
        attempt = Attempt(config, "unsupported", None, None, None, reason, 0.0)
        known.attempts[card.name, task.rung.config.key()] = (attempt,)
    return bool(wrong)


def _take(known: Findings, task: Task, card: Card, ended: Ended) -> None:
    """Keep what a simulation says of a card; without one, what a formula can say."""
    config, context = task.rung.config, known.contexts[card.name]
    key = card.name, config.key()
    predictions = ended.reply.predictions if ended.reply is not None else ()
    prediction = prediction_for(predictions, card.name)
    if prediction is not None:
        known.predictions[key] = prediction
        known.attempts[key] = attempts_of_prediction(
            config, prediction, card.target(), ended.attempt.elapsed_s, ended.folder.name
        )
        return
    told = ended.attempt.reason or "it could not be simulated"
    skip = too_big(task.rung, context)
    if skip is not None:
        known.skipped[key] = replace(skip, reason=f"{skip.reason}; not simulated: {told}")
        return
    assert context.counts is not None
    bound = bound_of(config, context.counts, context)
    if bound.size_bytes:
        told += f"; by the formula it needs at least {format_bytes(bound.size_bytes)}"
    known.attempts[key] = (replace(ended.attempt, reason=told),)


def _card_warnings(cards: tuple[Card, ...], request: SurveyRequest) -> list[Warn]:
    """What a reader of the report has to know about the devices."""
    found = []
    sizes = ", ".join(card.name for card in cards if card.facts is None)
    if sizes:
        ranked = "; ranked by the lower peak" if request.rank_by == "throughput" else ""
        found.append(
            Warn(
                "no_card",
                f"{sizes} is a size and no card, so there are no speeds{ranked}; name a card, "
                "such as --gpu 'RTX 4090', to have them estimated",
            )
        )
    found += [
        Warn(
            "gpu_variant",
            f"{card.asked_as!r} taken as {card.name}, the smallest of that name; the others: "
            f"{', '.join(card.variants)}",
        )
        for card in cards
        if card.variants
    ]
    others = ", ".join(card.name for card in cards if card.facts and card.facts.vendor != "NVIDIA")
    if others:
        found.append(
            Warn(
                "not_nvidia",
                f"{others}: predicted with the kernels of CUDA; what ROCm allocates may differ",
            )
        )
    return found
