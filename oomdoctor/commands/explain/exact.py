"""Simulates a training that ran out of memory, and each remedy that `explain` proposes for it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial

from oomdoctor.analysis.changes.search import Search, verdict_of
from oomdoctor.analysis.changes.sets import ChangeSet
from oomdoctor.analysis.changes.table import Change, Tier
from oomdoctor.analysis.command_line import size_text
from oomdoctor.analysis.fit import USUAL_HEADROOM
from oomdoctor.commands.devices.cards import card_named, room_for
from oomdoctor.commands.events import Listener
from oomdoctor.commands.jobs.simulators import Simulators
from oomdoctor.commands.ladder.your_changes import Adapt, Offers, offered
from oomdoctor.commands.plan.changes import simulation_on
from oomdoctor.commands.plan.findings import Findings
from oomdoctor.commands.plan.run_plan import run_plan
from oomdoctor.commands.plan.tasks import PLANNED
from oomdoctor.errors import ExitCode
from oomdoctor.explain.remedies.closing import holds_it, told
from oomdoctor.explain.remedies.row import fill
from oomdoctor.explain.remedies.sets import OF_SOME_PROGRAMS, cost_of, of_simulation, with_autocast
from oomdoctor.explain.remedies.table import TABLE
from oomdoctor.explain.remedies.text_values import device_values
from oomdoctor.explain.remedies.wording import with_peaks
from oomdoctor.records.configuration.config import Recipe, Rung, TrainConfig, changed_keys
from oomdoctor.records.configuration.faults import config_faults
from oomdoctor.records.job.model import ModelRef
from oomdoctor.records.job.result import ProbeResult
from oomdoctor.records.report.diagnosis import Diagnosis, Remedy
from oomdoctor.records.report.plan import PlanRequest
from oomdoctor.records.report.report import Report, SurveyRequest
from oomdoctor.records.report.user_training import UserTraining
from oomdoctor.system.store.run_folders import RunFolder
from oomdoctor.units import format_bytes

_AS_IT_WAS = "the training"
_BORDERLINE = "borderline"
_AFTER_ALL = 1 + max(Tier)  # remedies that are no changes of the table, such as other hardware
_STOPPED = "the simulation was interrupted"

Rows = Mapping[str, ProbeResult]


@dataclass(frozen=True, slots=True)
class Checked:
    """A diagnosis after the simulation.

    `fault` says why all or some of it could not be simulated, if so. `interrupted` is the exit code
    of the signal that ended the simulation; then the diagnosis has what was known by then.
    """

    diagnosis: Diagnosis
    fault: str | None = None
    interrupted: ExitCode | None = None


def unknown(diagnosis: Diagnosis) -> str | None:
    """What a simulation would have to know and the diagnosis does not say; None if it knows all."""
    if diagnosis.resource != "gpu":
        return "GPU memory did not run out"
    if diagnosis.model is None:
        return "the model is not known; add --model MODEL"
    if diagnosis.config is None:
        return "add --micro-batch N and --seq-len N; sharded jobs cannot be simulated"
    if diagnosis.room_bytes is None:
        return "the message does not say how much memory the GPU has"
    return None


def check(
    diagnosis: Diagnosis,
    model: ModelRef,
    python: str,
    folder: RunFolder,
    *,
    on_event: Listener,
    stop: Callable[[], ExitCode | None],
    training: UserTraining | None = None,
) -> Checked:
    """The diagnosis with what its training needs and its remedies free, by simulation.

    `model` is that of the diagnosis, with the place where it may be looked up. `training` is that
    of the user's file, if there is one: only what it can say is searched. What could not be
    simulated keeps its arithmetic. The order is that of the costs, as without a simulation. Once
    `stop()` returns an exit code, the answer is what is known.

    Raises:
        OomDoctorError: the model cannot be used (exit 4), or no worker can be started (exit 5).
    """
    assert diagnosis.config is not None and diagnosis.room_bytes is not None  # `unknown` was asked
    wanted = _Search(diagnosis, training)
    request = _request(diagnosis, model, python)

    def simulate(
        labels: Mapping[TrainConfig, str],
        then: Callable[[Findings, Simulators], None] | None = None,
    ) -> Report:
        rungs = tuple(Rung(label, config) for config, label in labels.items())
        asked = replace(request, recipe=replace(request.recipe, rungs=rungs))
        return run_plan(asked, folder, on_event=on_event, stop=stop, then=then)

    changed = [_changed(diagnosis.config, remedy.changes) for remedy in diagnosis.remedies]
    labels = {diagnosis.config: _AS_IT_WAS}
    for remedy, config in zip(diagnosis.remedies, changed, strict=True):
        if config is not None:
            labels.setdefault(config, remedy.change)
    report = simulate(labels, wanted.run)
    rows = _rows(report)
    before = rows.get(_AS_IT_WAS)
    if before is None:
        reasons = [_STOPPED] if stop() is not None else [fault.message for fault in report.errors]
        reasons += [row.reason for row in report.results if row.reason is not None]
        return Checked(diagnosis, reasons[0] if reasons else "the simulation gave no peak", stop())
    wasteful = {
        replace(config, allocator="expandable_segments"): label
        for config, label in labels.items()
        if label in rows and _wastes(rows[label], diagnosis.room_bytes)
    }
    whole = _rows(simulate(wasteful)) if wasteful and stop() is None else {}
    remedies = []
    for remedy, config in zip(diagnosis.remedies, changed, strict=True):
        if remedy.key == "bigger_card":
            remedies.append(_on_a_bigger_card(remedy, before))
            continue
        label = labels.get(config, "") if config is not None else ""
        simulated = _checked(remedy, before, rows.get(label))
        remedies.append(_with_segments(diagnosis, simulated, before, whole.get(label)))
    told = wanted.among(_and_segments_alone(diagnosis, remedies, before, whole), before)
    answer = replace(
        diagnosis,
        simulated_bytes=before.peak_device_bytes,
        remedies=_in_order(diagnosis, [each for each in told if not _is_in_vain(each, before)]),
        oddities=(*diagnosis.oddities, *_oddities(before, diagnosis.room_bytes)),
    )
    return Checked(answer, None if stop() is None else _STOPPED, stop())


def _on_a_bigger_card(remedy: Remedy, before: ProbeResult) -> Remedy:
    """The remedy with the card that a plan names for the simulated peak."""
    name = room_for(before, None, USUAL_HEADROOM)
    if name is None or before.peak_device_bytes is None:
        return remedy
    text = holds_it(name, card_named(name, USUAL_HEADROOM).total_bytes)
    return replace(remedy, arithmetic=text, leaves_bytes=before.peak_device_bytes)


class _Search:
    """The search of `plan` for the cheapest set of changes, by simulation.

    `answer` is the set that fits and its row, once it was found.
    """

    def __init__(self, diagnosis: Diagnosis, training: UserTraining | None = None) -> None:
        self._found, self._training = diagnosis, training
        self.answer: tuple[ChangeSet, ProbeResult] | None = None

    def run(self, findings: Findings, simulators: Simulators) -> None:
        """Search, unless the training itself fits.

        Raises:
            Stopped: told to stop.
        """
        config, (card,) = self._found.config, findings.cards
        assert config is not None  # `unknown` was asked
        row = findings.row(card, Rung(_AS_IT_WAS, config))
        if row.surely_fits or row.peak_device_bytes is None:
            return
        judge = simulation_on(findings, simulators, card, _AS_IT_WAS)
        offers, adapt = self.ways(config, findings.lora_targets())
        answer = Search(config, verdict_of(row), judge, offers=offers, adapt=adapt).answer()
        if answer.fitting:
            best, _ = answer.fitting[0]
            self.answer = best, judge.row(best)

    def ways(self, config: TrainConfig, targets: tuple[str, ...] = ()) -> tuple[Offers, Adapt]:
        """The changes that the program can make; of a file, as `plan --from` takes them."""
        if self._training is not None:
            return offered(self._training, config, targets)
        return self._offers, partial(with_autocast, config)

    def _offers(self, change: Change) -> bool:
        named = {key for remedy in self._found.remedies for key in remedy.key.split("+")}
        return change.key in named or change.key not in OF_SOME_PROGRAMS

    def _spoken(self, lines: Mapping[str, str]) -> Mapping[str, str]:
        """The lines for the programs of the other remedies, in their order; else all."""
        names = dict.fromkeys(name for remedy in self._found.remedies for name in remedy.lines)
        return {name: lines[name] for name in names if name in lines} or lines

    def among(self, remedies: Sequence[Remedy], before: ProbeResult) -> tuple[Remedy, ...]:
        """The remedies, with the set that the search found; it comes first."""
        config = self._found.config
        if self.answer is None or config is None:
            return tuple(remedies)
        (best, row), changes = self.answer, changed_keys(config, self.answer[0].config)
        same = [remedy for remedy in remedies if remedy.changes == changes]
        values = {"was": f" (now {config.micro_batch_size})", **_device_values(self._found)}
        new = told(of_simulation(best), config.method, values)
        new = replace(new, changes=changes, lines=self._spoken(new.lines))
        chosen = same[0] if same else _checked(new, before, row)
        return (chosen, *(remedy for remedy in remedies if remedy.changes != changes))


def _changed(config: TrainConfig, changes: Mapping[str, object]) -> TrainConfig | None:
    """The rung with the changes of a remedy; None if it has none, or they contradict."""
    if not changes:
        return None
    changed = TrainConfig(**{**asdict(config), **changes})
    return None if config_faults(changed) else changed


def _request(diagnosis: Diagnosis, model: ModelRef, python: str) -> SurveyRequest:
    """A plan of rungs, which are still to be given, on a GPU with the room that there was."""
    assert diagnosis.config is not None and diagnosis.room_bytes is not None  # `unknown` was asked
    return PLANNED(
        model=model,
        recipe=Recipe("none", "", (), "command line"),
        headroom=0.0,
        sequence_length=diagnosis.config.sequence_length,
        effective_batch_size=diagnosis.config.effective_batch_size,
        micro_batch_size=None,
        rank_by="memory",
        tokens=10**6,
        python=python,
        plan=PlanRequest(
            gpus=(size_text(diagnosis.room_bytes),),
            suggest=False,
            context_bytes=diagnosis.context_bytes,
        ),
    )


def _rows(report: Report) -> Rows:
    """The rows of a plan that have a peak, by label."""
    return {row.label: row for row in report.results if row.peak_device_bytes is not None}


def _wastes(row: ProbeResult, room: int) -> bool:
    """Whether what it allocates would fit, but what the allocator reserves for it does not."""
    if row.outcome == "fits" or row.config.allocator != "default":
        return False
    outside = (row.peak_device_bytes or 0) - (row.peak_reserved_bytes or 0)
    return (row.peak_allocated_bytes or 0) + outside <= room


def _checked(remedy: Remedy, before: ProbeResult, row: ProbeResult | None) -> Remedy:
    """The remedy with the peak of its simulation; as it was if there is none."""
    if row is None or row.peak_device_bytes is None or before.peak_device_bytes is None:
        return remedy
    peak, after = before.peak_device_bytes, row.peak_device_bytes
    notes = [text for text in (remedy.note or "").split("; ") if text and text != _BORDERLINE]
    shown = with_peaks(remedy, peak, after, enough=row.outcome == "fits")
    return replace(shown, note="; ".join((*_borderline(row), *notes)) or None)


def _is_in_vain(remedy: Remedy, before: ProbeResult) -> bool:
    """Whether a simulation says that a training that does not fit needs as much with the change.

    Without a simulation, what frees nothing is no remedy either.
    """
    simulated = remedy.basis == "predicted" and before.outcome != "fits"
    return simulated and not remedy.frees_bytes and not remedy.enough


def _borderline(row: ProbeResult) -> tuple[str, ...]:
    """The note of a row that is closer to the limit than the prediction error."""
    return row.notes[-1:] if row.borderline else ()


def _with_segments(
    diagnosis: Diagnosis, remedy: Remedy, before: ProbeResult, row: ProbeResult | None
) -> Remedy:
    """The remedy with expandable segments, if it is enough only with them."""
    if remedy.enough or row is None or row.outcome != "fits":
        return remedy
    shell = [
        text for text in (remedy.lines.get("shell"), _segments(diagnosis).lines["shell"]) if text
    ]
    both = replace(
        remedy,
        change=f"{remedy.change}, with expandable segments",
        lines={**remedy.lines, "shell": "\n".join(shell)},
        changes={**remedy.changes, "allocator": "expandable_segments"},
    )
    return _checked(both, before, row)


def _and_segments_alone(
    diagnosis: Diagnosis, remedies: list[Remedy], before: ProbeResult, whole: Rows
) -> list[Remedy]:
    """The remedies, with expandable segments if they alone make the training fit."""
    row = whole.get(_AS_IT_WAS)
    if row is None or row.outcome != "fits":
        return remedies
    alone = _segments(diagnosis)
    others = [remedy for remedy in remedies if remedy.change != alone.change]
    return [_checked(alone, before, row), *others]


def _device_values(diagnosis: Diagnosis) -> dict[str, str]:
    return device_values(
        diagnosis.dialect, diagnosis.message, diagnosis.evidence, diagnosis.listed_processes
    )


def _segments(diagnosis: Diagnosis) -> Remedy:
    row = TABLE["expandable_segments"]
    values = _device_values(diagnosis)
    lines = {name: fill(line, values) for name, line in row.lines.items()}
    changes = {"allocator": "expandable_segments"}
    return Remedy(row.change, None, "rule", lines, note=row.note, changes=changes, key=row.key)


def _in_order(diagnosis: Diagnosis, remedies: Sequence[Remedy]) -> tuple[Remedy, ...]:
    """The order of `explain` without a simulation: what is enough by its cost, then what is not.

    Where the closed form had no need to compare costs, only what is not enough moves, to the end.
    """
    beyond = (diagnosis.needed_bytes or 0) > (diagnosis.room_bytes or 0)

    def place(remedy: Remedy) -> tuple[float, ...]:
        simulated = remedy.basis == "predicted"
        if not beyond:
            return (simulated and not remedy.enough,)
        doubt = {True: 0, False: 2, None: 3}[remedy.enough]
        close = remedy.enough is True and _BORDERLINE in (remedy.note or "")
        several = "allocator" in remedy.changes and "expandable_segments" not in remedy.key
        cost = cost_of(remedy.key.split("+"), several=several)
        return (doubt + close, *(cost or (_AFTER_ALL, 0)), not simulated)

    return tuple(sorted(remedies, key=place))


def _oddities(row: ProbeResult, room: int) -> tuple[str, ...]:
    """What is strange if the training fits by simulation, or nearly does."""
    near = _borderline(row)
    if row.outcome != "fits":
        return tuple(f"simulated as described, the training is {note}" for note in near)
    peak = format_bytes(row.peak_device_bytes)
    return (
        f"simulated as described, the training needs {peak} and fits in {format_bytes(room)}: a "
        "setting differs from what was assumed, a batch was longer, or memory was kept from "
        "earlier steps",
        *(f"the simulation is {note}" for note in near),
    )
