"""What would make a rung fit that does not, by simulation: the rung of --from, and each method.

Both are the same search over the same table of changes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from oomdoctor.analysis.changes.search import (
    Answer,
    Verdict,
    search,
    verdict_of,
    why_nothing_fits,
)
from oomdoctor.analysis.changes.sets import ChangeSet
from oomdoctor.analysis.changes.table import BY_KEY, Change
from oomdoctor.analysis.command_line import rung_text
from oomdoctor.analysis.search.ladder import certainly_more, least_of
from oomdoctor.records.config import Rung, TrainConfig
from oomdoctor.records.facts.choices import AUTO
from oomdoctor.records.planned.plan import PlanRemedy
from oomdoctor.records.result import Attempt, ProbeResult, refused
from oomdoctor.records.rung.faults import cannot_run
from oomdoctor.records.user_training import YOURS, YourRung
from oomdoctor.runs.devices.cards import Card, room_for
from oomdoctor.runs.files.your_changes import (
    Tried,
    answer_faster,
    answer_fits,
    answer_runs,
    changed_rung,
    no_answer,
    other_changes,
    search_yours,
    simulate_faster,
)
from oomdoctor.runs.jobs.simulators import Simulators
from oomdoctor.runs.plan.findings import Findings
from oomdoctor.runs.plan.picks import METHODS, nearest
from oomdoctor.runs.plan.sharded.engines import runs_on_card_only
from oomdoctor.runs.plan.tasks import Task, tasks_of


@dataclass(slots=True)
class Simulation:
    """A judge that simulates on a card; it keeps the row of each configuration."""

    known: Findings
    simulators: Simulators
    card: Card
    label: str

    @property
    def usable_bytes(self) -> int:
        """What a rung may use."""
        return self.card.usable_bytes

    def judge(self, sets: Sequence[ChangeSet]) -> list[Verdict]:
        """Simulate each configuration; one recording serves all its micro-batch sizes.

        Raises:
            Stopped: told to stop.
        """
        rungs = [Rung(f"{self.label} with {one.words}", one.config) for one in sets]
        tasks: dict[str, Task] = {}
        for rung in rungs:
            reason = cannot_run(rung.config, self.card.capability)
            if reason is not None:
                self._keep(rung.config, refused(rung.config, reason))
                continue
            size, key = rung.config.micro_batch_size, rung.config.rung_key()
            assert isinstance(size, int)
            others = tasks[key].sizes if key in tasks else ()
            alike = Rung(rung.label, rung.config.with_micro_batch(AUTO))
            tasks[key] = Task(alike, tuple(sorted({*others, size})), (self.card,))
        self._simulate(list(tasks.values()))
        return [verdict_of(self.known.row(self.card, rung)) for rung in rungs]

    def least_bytes(self, config: TrainConfig) -> int:
        """Weights, gradients and states, by formula."""
        return least_of(config, self.known.contexts[self.card.name])

    def needs_more(self, more: TrainConfig, less: TrainConfig) -> bool:
        """Whether the rules of dominance say so."""
        return certainly_more(more, less, self.known.contexts[self.card.name])

    def _simulate(self, tasks: Sequence[Task]) -> None:
        for ended in self.known.simulate(self.simulators, tasks, keep=False):
            task = tasks[ended.number]
            self.known.simulated[task.rung.config.key()] = ended.attempt.cached_at
            attempts = self.known.attempts_on(self.card, task, ended)
            if not attempts:
                for size in task.sizes:
                    self._keep(task.rung.config.with_micro_batch(size), ended.attempt)
            for attempt in attempts:
                self._keep(attempt.config, attempt)

    def _keep(self, config: TrainConfig, attempt: Attempt) -> None:
        self.known.attempts[self.card.name, config.key()] = (attempt,)


_MOST_CARDS = 4  # for which changes are simulated


def find_remedies(known: Findings, simulators: Simulators) -> None:
    """Keep the remedies of each named card for the methods of the ladder that do not fit there.

    There are none in a plan that asks more, or of many cards.

    The rung of --from is no part of it: `find_yours` answers for it.

    Raises:
        Stopped: told to stop.
    """
    if _asks_more(known) or not known.plan.suggest or known.request.most_gpus() > 1:
        return
    for card in known.cards if len(known.cards) <= _MOST_CARDS else ():
        known.remedies[card.name] = _of_card(known, simulators, card)


def _of_card(known: Findings, simulators: Simulators, card: Card) -> tuple[PlanRemedy, ...]:
    rows = tuple(row for row in known.rows(card) if row.label != YOURS)
    found: list[PlanRemedy] = []
    for method in METHODS:
        own = tuple(row for row in rows if row.config.method == method)
        simulated = tuple(row for row in own if not runs_on_card_only(row.config))
        row = None if any(r.surely_fits for r in own) else nearest(simulated, method)
        if row is not None and row.micro_batch_size is not None:
            judge = Simulation(known, simulators, card, row.label)
            answer = search(row.config, verdict_of(row), judge, offers=_keeps_method)
            found += _remedies(known, card, row, answer)
    return tuple(found)


def _keeps_method(change: Change) -> bool:
    return change.group != "method"


def _why_not(known: Findings) -> str | None:
    """Why no changes are simulated; None if they are."""
    if _asks_more(known) or len(known.cards) != 1:
        return "changes are simulated in a plan of one card"
    return None


def _asks_more(known: Findings) -> bool:
    """Whether a plan has a question beside its ladder, or is about all cards."""
    plan = known.plan
    beside = plan.sweep is not None or plan.why is not None or plan.solve is not None
    return beside or plan.all_gpus or known.request.lengths is not None


def _remedies(
    known: Findings, card: Card, row: ProbeResult, answer: Answer
) -> tuple[PlanRemedy, ...]:
    """The cheapest set that fits, and what may fit with another package; or why there is none."""
    before = row.peak_device_bytes or 0
    found = [
        PlanRemedy(
            method=row.config.method,
            key=row.key,
            label=row.label,
            change=one.words,
            frees_bytes=before - (verdict.needs_bytes or 0),
            peak_device_bytes=verdict.needs_bytes,
            basis="simulated",
            rung=rung_text(one.config, known.request),
            reason="borderline" if verdict.outcome == "borderline" else None,
        )
        for one, verdict in answer.fitting[:1]
    ]
    found += _with_packages(known, card, row, answer)
    if found:
        return tuple(found)
    reason = why_nothing_fits(answer, card.usable_bytes)
    nothing = PlanRemedy(
        row.config.method, row.key, row.label, None, None, None, None, None, reason
    )
    return (nothing,)


def _with_packages(
    known: Findings, card: Card, row: ProbeResult, answer: Answer
) -> list[PlanRemedy]:
    """Single changes that a package would allow which is missing here, by arithmetic."""
    parts, peak = row.breakdown, row.peak_device_bytes
    found = []
    for key in answer.unsupported:
        change = BY_KEY[key]
        steps = list(change.steps(row.config))
        if parts is None or peak is None or change.package is None or not steps:
            continue
        frees = sum(getattr(parts, f"{part}_bytes") for part in change.frees)
        if peak - frees > card.usable_bytes:
            continue
        config = change.applied(row.config, steps[-1])
        found.append(
            PlanRemedy(
                row.config.method, row.key, row.label, change.text(config), frees, None,
                "arithmetic", rung_text(config, known.request), None,
            )
        )  # fmt: skip
    return found


def find_yours(known: Findings, simulators: Simulators) -> YourRung | None:
    """The answer about the rung of --from; only its outcome in a plan that asks more.

    Raises:
        Stopped: told to stop.
    """
    request, training = known.request, known.request.user_training
    rung = next((rung for rung in known.rungs if rung.label == YOURS), None)
    if training is None or rung is None:
        return None
    reason = _why_not(known)
    if reason is None and not known.plan.ranks:
        reason = "changes are simulated in a plan of one card"
    if reason is not None:
        return YourRung(rung.config.key(), YOURS, None, (), (), reason)
    (card,) = known.cards
    row = known.row(card, rung)
    reason = no_answer(row)
    if reason is None and runs_on_card_only(rung.config):
        kernels = "Unsloth" if rung.config.library == "unsloth" else "Transformer Engine"
        reason = f"changes of a rung with {kernels} cannot be simulated"
    if reason is not None:
        return YourRung(row.key, YOURS, None, (), (), reason)
    if row.surely_fits or row.outcome == "unsupported":
        simulate = partial(_simulated, known, simulators, card)
        changes = other_changes(training, row)
        if row.outcome == "unsupported":
            return answer_runs(training, row, simulate(changes))
        better, tried = simulate_faster(changes, simulate, row.tokens_per_s)
        nothing = "no single change makes it faster"
        if row.tokens_per_s is None:
            nothing = "its speed cannot be estimated, so no change is known to make it faster"
        return answer_faster(training, row, better, tried, nothing)
    judge = Simulation(known, simulators, card, YOURS)
    answer = search_yours(training, row, judge)
    card_for = partial(room_for, own=card.capability, headroom=request.headroom)

    def row_of(found: ChangeSet) -> ProbeResult:
        return known.row(card, changed_rung(found))

    return answer_fits(training, row, answer, row_of, card.usable_bytes, card_for)


def _simulated(
    known: Findings, simulators: Simulators, card: Card, changes: Sequence[ChangeSet]
) -> list[Tried]:
    """The row of each change on the card."""
    rungs = [changed_rung(one) for one in changes]
    planned = tasks_of(known.plan, {card.name: tuple(rungs)}, (card,), known.contexts)
    tasks = [task for task in map(known.supported, planned) if task is not None]
    for _ in known.simulate(simulators, tasks):
        pass
    return [(one, known.row(card, rung)) for one, rung in zip(changes, rungs, strict=True)]
