"""A whole plan: one model, a ladder, some devices, nothing measured, and the report at the end.

Every rung is simulated once for all cards. Like a survey, it keeps everything on disk, and renders
and prints nothing.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass, replace

from oomdoctor.analysis.search.ladder import bound_of
from oomdoctor.commands.devices import emulated, startup_errors
from oomdoctor.commands.devices.cards import Card, card_named, cards_of, variant_warnings
from oomdoctor.commands.events import Listener, SurveyEvent, starting
from oomdoctor.commands.jobs.host import WorkerHost
from oomdoctor.commands.jobs.launch import Stopped, on_one_gpu
from oomdoctor.commands.jobs.simulators import Simulators
from oomdoctor.commands.ladder.assemble import Course, warnings_of
from oomdoctor.commands.ladder.dataset import count_rows, other_shapes
from oomdoctor.commands.ladder.ledger import bounds_only, counts_from_config
from oomdoctor.commands.ladder.stored import with_stored
from oomdoctor.commands.ladder.unfinished import keeping
from oomdoctor.commands.plan.changes import find_faster, find_remedies, find_yours
from oomdoctor.commands.plan.engine_ladder import estimate_times, run_ladder
from oomdoctor.commands.plan.engines import (
    Chosen,
    Engines,
    engine_cards,
    inexact_warnings,
    is_sharded,
    route_warnings,
    runs_on_card_only,
)
from oomdoctor.commands.plan.fewest import find_fewest
from oomdoctor.commands.plan.findings import Findings
from oomdoctor.commands.plan.longest_row import find_limits
from oomdoctor.commands.plan.plan_report import report as finished_report
from oomdoctor.commands.plan.recording import record_files
from oomdoctor.commands.plan.solve import find_crossings, solve
from oomdoctor.commands.plan.tasks import context_of, shown, tasks_of
from oomdoctor.commands.plan.verify import Checker, verify
from oomdoctor.errors import ExitCode, OomDoctorError
from oomdoctor.records.job.result import Inspection, ProbeJob
from oomdoctor.records.report.report import Report, SurveyRequest, Warn
from oomdoctor.records.report.warnings import calibration_ignored, quoted, warning
from oomdoctor.system.catalogue import find_gpu, find_machine
from oomdoctor.system.environment import worker_environment
from oomdoctor.system.models import hub
from oomdoctor.system.store.run_folders import RunFolder
from oomdoctor.units import format_bytes, timestamp

# A plan of many cards has a large report.
_KEPT_EVERY_S = 5.0
# Without a worker, the lower bounds are still right.
_LEAVE_BOUNDS = frozenset({"library_missing", "host_limit", "host_oom"})
Stop = Callable[[], ExitCode | None]


def run_plan(
    request: SurveyRequest,
    folder: RunFolder,
    *,
    on_event: Listener,
    stop: Stop,
    then: Callable[[Findings, Simulators], None] | None = None,
) -> Report:
    """Predict the request's ladder and write `report.json`, unless an error is raised.

    `then` may simulate more, once the ladder is known.

    Once `stop()` returns an exit code, the workers are killed and the report holds what is known.

    Where torch is missing, or a limit of this machine ends the workers, the report has the error
    and lower bounds (exit 5).

    Raises:
        OomDoctorError: the model cannot be used (exit 4), or no worker can be started or the
            folder cannot be written (exit 5).
    """
    begin, started_at = time.monotonic(), timestamp()
    folder.write_request(request)
    if request.plan is not None and request.plan.verify:
        emulated.check_possible(request.python, "--verify")
    findings = _known_of(request)

    def so_far() -> Report:
        course = Course(folder, started_at, time.monotonic() - begin, stop())
        return finished_report(findings, course)

    listen = keeping(folder, so_far, on_event, _KEPT_EVERY_S)
    run = _Run(findings, folder, listen, lambda: stop() is not None)
    sweep = findings.plan.sweep
    with run.emulated() as variables:
        simulators = Simulators(
            request.python,
            folder,
            request.rung_limit_s,
            run.is_over,
            fresh=request.fresh,
            variables=variables,
            before_start=lambda: findings.warn(startup_errors.check_limits(request)),
            expected=len(request.recipe.rungs) * (len(sweep.values) if sweep is not None else 1),
        )
        fault: OomDoctorError | None = None
        try:
            with suppress(Stopped), simulators:
                try:
                    run.predict(simulators, variables)
                finally:
                    findings.warn(inexact_warnings(findings, folder))
                if then is not None:
                    then(findings, simulators)
        except OomDoctorError as error:
            fault = startup_errors.with_remedy(error, request)
            if error.code not in _LEAVE_BOUNDS or counts_from_config(findings.spec) is None:
                raise fault from None
        if simulators.memory.failure is not None:
            findings.warn([warning("not_kept", reason=simulators.memory.failure)])
    report = so_far() if fault is None else bounds_only(so_far(), fault)
    folder.write_report(report)
    on_event(SurveyEvent("done"))
    return report


def _known_of(request: SurveyRequest) -> Findings:
    """What is known before anything is simulated: the model and the cards."""
    spec, notes = hub.resolve_with_notes(request.model)
    request = with_stored(request, spec)
    assert request.plan is not None
    cards = cards_of(request.plan, request.headroom)
    warns = quoted("model_source", notes)
    warns += warnings_of(request)
    return Findings(request, spec, cards, warns + _card_warnings(cards, request))


@dataclass(frozen=True, slots=True)
class _Run:
    """A plan in progress: what is known, where it is kept, who listens, whether to stop."""

    findings: Findings
    folder: RunFolder
    on_event: Listener
    is_over: Callable[[], bool]

    def predict(self, simulators: Simulators, variables: dict[str, str]) -> None:
        """Look at the model and the data file, simulate every rung, and check those that matter.

        Raises:
            Stopped: told to stop; what is known stays.
        """
        findings, on_event = self.findings, self.on_event
        on_event(SurveyEvent("inspecting", message=f"{findings.spec.id} ({findings.spec.source})"))
        _tell_bounds(findings, on_event)
        inspection = _inspect(findings, simulators)
        findings.take_inspection(inspection)
        counted = count_rows(findings.request, findings.spec, simulators.run_one, on_event)
        if counted is not None:
            findings.take_rows(counted)
        findings.set_limits(inspection)
        if findings.plan.solve is not None:
            solve(findings, findings.plan.solve, simulators, on_event)
            return
        findings.warn(route_warnings(findings))
        for card in findings.cards:
            with self._engines(card, is_sharded) as engines:
                if findings.plan.fewest is not None:
                    find_fewest(findings, card, engines, simulators, on_event)
                    continue
                if engines is not None:
                    run_ladder(findings, card, engines, on_event)
            with self._engines(card, runs_on_card_only) as engines:
                if engines is not None:
                    run_ladder(findings, card, engines, on_event, runs_on_card_only)
        if findings.plan.fewest is not None:
            return
        for card in findings.cards:
            estimate_times(findings, card, simulators, on_event)
        _simulate(findings, simulators, on_event)
        find_crossings(findings, simulators, on_event)
        record_files(findings, simulators, self.folder)
        findings.limits = find_limits(findings, simulators)
        if findings.plan.verify:
            environment = worker_environment(emulated.UUID) | variables
            with WorkerHost(findings.request.python, environment, self.folder.path) as host:
                verify(findings, Checker(host, self.folder, on_event, self.is_over))
        on_event(SurveyEvent("searching"))
        findings.yours = find_yours(findings, simulators)
        find_remedies(findings, simulators)
        findings.faster = find_faster(findings, simulators)

    @contextmanager
    def emulated(self) -> Iterator[dict[str, str]]:
        """The variables of processes that can see the emulated card.

        None if nothing is checked on it, unless the interpreter's torch cannot be imported
        otherwise.
        """
        python, verifies = self.findings.request.python, self.findings.plan.verify
        if not verifies and not emulated.needed_to_import(python):
            yield {}
            return
        if verifies:
            (card,) = self.findings.cards
            gpus = emulated.EmulatedGpus(card, 1)
        else:
            gpus = emulated.emulated_gpus("T4")  # which simulations do not see
        with emulated.emulating(
            gpus, python, self.folder.path, on_build=self._on_build
        ) as variables:
            yield variables

    def _engines(self, card: Card, chosen: Chosen) -> AbstractContextManager[Engines | None]:
        """The engines of the chosen rungs on a card, None where they cannot run."""
        if card not in engine_cards(self.findings, chosen):
            return nullcontext()
        return Engines(self.findings, card, self.folder, self.is_over, self._on_build, chosen)

    def _on_build(self) -> None:
        self.on_event(SurveyEvent("waiting", message=emulated.BUILDING))


def _tell_bounds(findings: Findings, on_event: Listener) -> None:
    """Say what each rung needs at least, by config.json, if all rungs are simulated on one card."""
    plan = findings.plan
    if len(findings.cards) > 1 or plan.sweep or plan.solve or plan.fewest:
        return
    context = context_of(findings.cards[0], findings.request, findings.spec, None)
    for rung in findings.request.recipe.rungs:
        least = bound_of(rung.config, context).size_bytes
        if least and rung.config.world_size == 1:
            text = f"needs at least {format_bytes(least)}"
            on_event(SurveyEvent("bounded", rung, message=text))


def _inspect(findings: Findings, simulators: Simulators) -> Inspection:
    """Count the model's parameters, find its repeating layers and its longest row."""
    job = ProbeJob(
        mode="inspect",
        label="inspect",
        model=findings.spec,
        config=on_one_gpu(findings.inspected()),
        device_type="cpu",  # an inspection needs no device
    )
    (ended,) = simulators.run([job])
    if ended.reply is None or ended.reply.inspection is None:
        raise startup_errors.inspection_error(ended.attempt, findings.spec, findings.request.python)
    return ended.reply.inspection


def _simulate(findings: Findings, simulators: Simulators, on_event: Listener) -> None:
    """Run every simulation and keep what it says about each card."""
    ladders = {
        name: (*rungs, *other_shapes(rungs, findings.shapes))
        for name, rungs in findings.ladders.items()
    }
    planned = tasks_of(findings.plan, ladders, findings.cards, findings.contexts)
    tasks = [task for task in map(findings.supported, planned) if task is not None]
    # The longest first, so that no worker idles at the end: those with the most sizes, and of these
    # the quantised ones, which come last in a ladder.
    tasks.reverse()
    tasks.sort(key=lambda task: -len(task.sizes))

    rungs = [shown(task, findings.plan) for task in tasks]
    for_later = findings.plan.sweep is None
    simulated = findings.simulate(simulators, tasks, starting(on_event, rungs), for_later=for_later)
    for done, ended in enumerate(simulated, 1):
        task = tasks[ended.number]
        attempts = [findings.attempts.get((c.name, task.rung.config.key()), ()) for c in task.cards]
        event = SurveyEvent("predicted", rungs[ended.number], index=done, total=len(tasks))
        if len(attempts) == 1:
            on_event(replace(event, attempts=attempts[0]))
        else:
            fitting = sum(any(attempt.outcome == "fits" for attempt in tries) for tries in attempts)
            on_event(replace(event, message=f"fits on {fitting} of {len(attempts)} cards"))


def _card_warnings(cards: tuple[Card, ...], request: SurveyRequest) -> list[Warn]:
    warns = []
    sizes = [card.name for card in cards if card.facts is None]
    if sizes:
        ranks = request.plan is None or request.plan.ranks
        by_speed = request.rank_by == "throughput" and ranks
        warns.append(warning("no_card", sizes=sizes, by_peak=by_speed))
    warns += [warn for card in cards for warn in variant_warnings(card)]
    plan = request.plan
    if plan is not None and plan.fewest is None and request.most_gpus() == 1:
        rented = [machine for name in plan.gpus if (machine := find_machine(name))]
        warns += [
            warning("several_gpus", machine=machine.name, gpus=machine.gpus)
            for machine in rented
            if machine.gpus > 1
        ]
    warns += [calibration_ignored(card.name, card.ignored.run) for card in cards if card.ignored]
    others = [card.name for card in cards if card.facts and card.facts.vendor != "NVIDIA"]
    if others:
        warns.append(warning("not_nvidia", cards=others))
    return warns + _price_warnings(cards, request)


def _price_warnings(cards: tuple[Card, ...], request: SurveyRequest) -> list[Warn]:
    prices = request.plan.prices if request.plan is not None else None
    if prices is None:
        return []
    planned, source = {card.name for card in cards}, prices.source
    warns = [
        warn
        for price in prices.prices
        if price.card in planned
        for warn in variant_warnings(card_named(price.name, 0.0))
    ]
    if prices.examples is not None:
        warns.append(warning("prices", "examples", source=prices.examples))
    if prices.unknown:
        warns.append(warning("prices", "unknown", source=source, names=prices.unknown))
    if prices.repeated:
        warns.append(warning("prices", "repeated", source=source, cards=prices.repeated))
    if request.plan is not None and request.plan.all_gpus:
        others = [
            p.card for p in prices.prices if (gpu := find_gpu(p.card)) and gpu.vendor != "NVIDIA"
        ]
        if others:
            warns.append(warning("prices", "not_compared", source=source, cards=others))
    if not any(price.card in planned for price in prices.prices):
        warns.append(warning("prices", "of_others", source=source))
    return warns
