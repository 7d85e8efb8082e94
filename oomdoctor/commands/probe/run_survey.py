"""A whole survey: one model, one device, every rung of a ladder, and the report at the end.

It finds the model, locks the device, decides each next try, launches it, and keeps everything on
disk as it happens. It renders and prints nothing: events go to the caller.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from functools import partial

from oomdoctor.analysis.speed_verdict import speed_warnings
from oomdoctor.analysis.verdict import fits
from oomdoctor.commands.devices import device, emulated, startup_errors
from oomdoctor.commands.devices.cards import variant_warnings
from oomdoctor.commands.events import Listener, SurveyEvent
from oomdoctor.commands.jobs.host import WorkerHost
from oomdoctor.commands.jobs.launch import Stopped
from oomdoctor.commands.ladder import assemble
from oomdoctor.commands.ladder.dataset import count_rows, measured_answer
from oomdoctor.commands.ladder.stored import with_stored
from oomdoctor.commands.ladder.unfinished import keeping
from oomdoctor.commands.probe.knowledge import Knowledge, predict_rungs
from oomdoctor.commands.probe.own_changes import try_changes, unmeasured
from oomdoctor.commands.probe.state import Ending, Stop, SurveySetup, SurveyState
from oomdoctor.commands.probe.walk import SurveyJobs, is_alone, record_rungs, walk
from oomdoctor.errors import OomDoctorError
from oomdoctor.records.report.report import Report, SurveyRequest, Warn
from oomdoctor.records.report.warnings import quoted, warning
from oomdoctor.system.environment import worker_environment
from oomdoctor.system.machine.capabilities import installed_versions
from oomdoctor.system.machine.devices import Device, choose_devices, describe
from oomdoctor.system.machine.lock import device_lock
from oomdoctor.system.machine.nvml import list_gpus
from oomdoctor.system.models import hub
from oomdoctor.system.store.run_folders import RunFolder
from oomdoctor.units import timestamp

_SAME_BUDGET = 0.97  # free memory differs a little from hour to hour


def run_survey(
    request: SurveyRequest, folder: RunFolder, *, wait: bool, on_event: Listener, stop: Stop
) -> Report:
    """Measure the request's ladder and write `report.json`, unless an error is raised.

    Once `stop()` returns an exit code, the worker is killed and the report holds what is known.
    `wait` waits for another survey on the same device instead of refusing.

    Raises:
        OomDoctorError: the model or the machine cannot be used (exit 4, 5), or the folder cannot
            be written.
    """
    started_at = timestamp()
    ending = Ending(stop, request.time_limit_s, time.monotonic())
    folder.write_request(request)
    setup = _setup(request, folder)
    state = SurveyState(setup)

    def on_wait(message: str) -> None:
        on_event(SurveyEvent("waiting", message=message))

    try:
        with _held(setup, wait, on_wait, ending) as setup:
            uuids = ",".join(gpu.uuid for gpu in setup.device.gpus)
            environment = worker_environment(uuids or None) | dict(setup.variables)
            state = SurveyState(setup)
            so_far = partial(_report, state, started_at, ending)
            noting = keeping(folder, so_far, on_event, every_s=0.0)
            with WorkerHost(request.python, environment, folder.path) as host, suppress(Stopped):
                _run(state, SurveyJobs(setup, host, ending, noting), started_at)
    except OomDoctorError:
        if stop() is None:  # otherwise the signal broke off the wait for the device
            raise
    report = _report(state, started_at, ending)
    folder.write_report(report)
    on_event(SurveyEvent("done", total=len(state.rungs)))
    return report


@contextmanager
def _held(
    setup: SurveySetup, wait: bool, on_wait: Callable[[str], None], ending: Ending
) -> Iterator[SurveySetup]:
    """The setup with its device as it is once no other survey uses it; emulated ones are free."""
    if setup.request.emulate is not None:
        gpus = _emulated(setup.request)
        python, place = setup.request.python, setup.folder.path
        with emulated.emulating(
            gpus, python, place, on_build=lambda: on_wait(emulated.BUILDING)
        ) as variables:
            more = emulated.value_warnings(setup.request.python)
            yield replace(setup, variables=variables, warnings=(*setup.warnings, *more))
        return
    with ExitStack() as held:
        # Always in the same order, so that two surveys never wait for each other.
        for name in sorted(gpu.uuid for gpu in setup.device.gpus) or ["cpu"]:
            held.enter_context(
                device_lock(
                    name,
                    wait,
                    on_wait,
                    run=setup.folder.name,
                    keep_waiting=lambda: not ending.is_over(),
                )
            )
        # Another survey may have held the device until now.
        yield replace(setup, device=device.as_it_is_now(setup.device))


def _setup(request: SurveyRequest, folder: RunFolder) -> SurveySetup:
    chosen, warns = _device(request)
    spec, notes = hub.resolve_with_notes(request.model)
    request = with_stored(request, spec)
    if request.weights == "pretrained":
        startup_errors.check_weights(spec)
    warns += quoted("model_source", notes)
    warns += assemble.warnings_of(request)
    return SurveySetup(request, spec, chosen, folder, tuple(warns))


def _device(request: SurveyRequest) -> tuple[Device, list[Warn]]:
    """The device of a request, and warnings about it. An emulated one is made from its card."""
    if request.emulate is None:
        try:
            return choose_devices(request.device, list_gpus(), request.gpus_here()), []
        except OomDoctorError as error:
            if error.code in ("too_few_gpus", "no_gpu") and request.most_gpus() > 1:
                raise device.too_few_gpus(error, request) from None
            raise
    emulated.check_possible(request.python, "--emulate")
    gpus = _emulated(request)
    return emulated.device_of(gpus), variant_warnings(gpus.card)


def _emulated(request: SurveyRequest) -> emulated.EmulatedGpus:
    assert request.emulate is not None
    return emulated.emulated_gpus(request.emulate, alone=is_alone(request))


def _run(state: SurveyState, jobs: SurveyJobs, started_at: str) -> None:
    """Look at the model, then measure its rungs until all are settled or a stop is requested."""
    _prepare(state, jobs)
    take_finished(state, jobs.on_event)
    knowledge = None
    if state.request.predict:
        setup, inspection, budget = state.setup, state.inspection, state.budget
        assert inspection is not None and budget is not None
        cap = budget.cap_bytes
        cap = cap if cap is not None and cap < budget.free_bytes else None  # else it caps nothing
        run = setup.folder.name
        knowledge = Knowledge(setup.device, inspection.versions, run, started_at, cap).recalled()
        state.warn(knowledge.warnings)
        predicted = predict_rungs(
            state, state.rungs, knowledge.learned, on_event=jobs.on_event, stop=jobs.ending.is_over
        )
        state.take_prediction(predicted)
    walk(state, jobs, knowledge)
    record_rungs(state, jobs)
    try_changes(state, jobs, knowledge)


def _prepare(state: SurveyState, jobs: SurveyJobs) -> None:
    """Look at the model and the data file.

    Raises:
        Stopped: told to stop.
        OomDoctorError: the worker cannot build the model or count the rows (exit 2, 4, 5), or the
            ladder would take hours on a CPU that was not asked for (exit 5).
    """
    setup = state.setup
    jobs.on_event(SurveyEvent("inspecting", message=f"{setup.spec.id} ({setup.spec.source})"))
    inspection = jobs.inspect(state.inspected())
    state.take_inspection(inspection)
    counted = count_rows(state.request, setup.spec, jobs.without_deadline, jobs.on_event)
    if counted is not None:
        state.take_rows(counted)
    state.set_limits(inspection)
    if state.request.device == "auto" and setup.device.type == "cpu":
        device.refuse_what_takes_hours(
            setup.spec, state.rungs, inspection.parameters, state.request
        )


def _report(state: SurveyState, started_at: str, ending: Ending) -> Report:
    setup, results = state.setup, state.results()
    asked = state.request.emulate is not None  # then the page says what there is
    ended = (
        tuple(emulated.inexact_parts(setup.folder.path))
        if asked
        else tuple(speed_warnings(results, state.context))
    )
    ended += (warning("time_limit"),) if ending.by_time_limit() else ()
    versions = state.inspection.versions if state.inspection else installed_versions()
    report = assemble.report(
        state,
        assemble.Course(setup.folder, started_at, ending.elapsed_s(), ending.stop()),
        machine=describe(setup.device, versions),
        budget=state.budget,
        results=results,
        warnings=ended,
        yours=unmeasured(state),
    )
    return replace(report, lengths=measured_answer(state.counted, results, state.request))


def take_finished(state: SurveyState, on_event: Listener) -> None:
    """Take every stored try that still holds for this device and its budget."""

    def note(message: str) -> None:
        on_event(SurveyEvent("note", message=message))

    setup, usable = state.setup, state.context.usable_bytes
    for job, attempt in setup.folder.attempts(note):
        if job.device_id != setup.device_id:
            note(f"{attempt.folder} was measured on another device; trying again")
        elif attempt.outcome == "oom" and (job.budget_bytes or 0) < usable * _SAME_BUDGET:
            note(f"{attempt.folder} ran out of memory with a smaller budget; trying again")
        elif attempt.measurement is not None:
            outcome, reason = fits(attempt.measurement, usable)
            state.keep(replace(attempt, outcome=outcome, reason=reason))
        else:
            state.keep(attempt)
    taken = sum(len(attempts) for attempts in state.attempts.values())
    if taken:
        note(f"{taken} finished tries reused")
