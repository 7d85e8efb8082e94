"""What would make a rung fit that does not, by simulation: the rung of --from, and each method.

Both are the same search over the same table of changes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial

from oomdoctor.analysis.changes.faster import to_speed_up
from oomdoctor.analysis.changes.search import Answer, Search, verdict_of, why_nothing_fits
from oomdoctor.analysis.changes.sets import ChangeSet
from oomdoctor.analysis.changes.table import BY_KEY, Change
from oomdoctor.analysis.command_line import rung_text
from oomdoctor.analysis.ranking import too_close
from oomdoctor.analysis.search.ladder import bound_of
from oomdoctor.commands.devices import emulated
from oomdoctor.commands.devices.cards import Card, room_for
from oomdoctor.commands.jobs.simulators import Simulators
from oomdoctor.commands.ladder.your_changes import (
    Simulation,
    Sized,
    Tried,
    at_chosen_size,
    fastest_first,
    no_answer,
    other_changes,
    search_yours,
    shown,
    simulate_faster,
    too_large,
    unanswered,
)
from oomdoctor.commands.plan.engines import not_simulated, runs_on_card_only
from oomdoctor.commands.plan.findings import Findings
from oomdoctor.commands.plan.picks import METHODS, nearest
from oomdoctor.commands.plan.tasks import Task
from oomdoctor.records.job.result import Attempt, ProbeResult
from oomdoctor.records.report.plan import Faster, FasterChange, PlanRemedy
from oomdoctor.records.report.user_training import YOURS, UserTraining, YourRung
from oomdoctor.system.recipes.recipes import parse_rung
from oomdoctor.units import format_bytes

_BY_UNSLOTH = """\
method=qlora,quantization=nf4,library=unsloth,activation_checkpointing=offload"""
_MOST_CARDS = 4  # for which changes are simulated


def find_remedies(findings: Findings, simulators: Simulators) -> None:
    """Keep the remedies of each named card for the methods of the ladder that do not fit there.

    There are none in a plan that asks more, or of many cards.

    The rung of --from is no part of it: `find_yours` answers for it.

    Raises:
        Stopped: told to stop.
    """
    if _asks_more(findings) or not findings.plan.suggest:
        return
    for card in findings.cards if len(findings.cards) <= _MOST_CARDS else ():
        findings.remedies[card.name] = _of_card(findings, simulators, card)


def _of_card(findings: Findings, simulators: Simulators, card: Card) -> tuple[PlanRemedy, ...]:
    rows = tuple(row for row in findings.rows(card) if row.label != YOURS)
    remedies: list[PlanRemedy] = []
    counts = findings.contexts[card.name].counts
    has_experts = counts is not None and counts.experts > 0

    def offers(change: Change) -> bool:
        return change.group != "method" and (has_experts or not change.of_experts)

    for method in METHODS:
        own = tuple(row for row in rows if row.config.method == method)
        simulated = tuple(row for row in own if not runs_on_card_only(row.config))
        row = None if any(r.surely_fits for r in own) else nearest(simulated, method)
        if row is not None and row.micro_batch_size is not None:
            judge = simulation_on(findings, simulators, card, row.label)
            answer = Search(row.config, verdict_of(row), judge, offers=offers).answer()
            tried = _remedies(findings, card, row, answer)
            by_unsloth = _with_unsloth(findings, card, row) if has_experts else []
            sure = any(remedy.change for remedy in tried)
            remedies += (*tried, *by_unsloth) if sure or not by_unsloth else by_unsloth
    return tuple(remedies)


def _asks_more(findings: Findings) -> bool:
    """Whether a plan has a question beside its ladder, or is about all cards."""
    plan = findings.plan
    return plan.asks_more or plan.all_gpus or findings.request.lengths is not None


def _remedies(
    findings: Findings, card: Card, row: ProbeResult, answer: Answer
) -> tuple[PlanRemedy, ...]:
    """The cheapest set that fits, and what may fit with another package; or why there is none."""
    before = row.peak_device_bytes or 0
    remedies = [
        PlanRemedy(
            method=row.config.method,
            key=row.key,
            label=row.label,
            change=changed.words,
            frees_bytes=before - (verdict.needs_bytes or 0),
            peak_device_bytes=verdict.needs_bytes,
            basis="simulated",
            rung=rung_text(changed.config, findings.request),
            reason="borderline" if verdict.outcome == "borderline" else None,
        )
        for changed, verdict in answer.fitting[:1]
    ]
    remedies += _with_packages(findings, card, row, answer)
    if remedies:
        return tuple(remedies)
    reason = why_nothing_fits(answer, card.usable_bytes)
    nothing = PlanRemedy(
        row.config.method, row.key, row.label, None, None, None, None, None, reason
    )
    return (nothing,)


def _with_packages(
    findings: Findings, card: Card, row: ProbeResult, answer: Answer
) -> list[PlanRemedy]:
    """Single changes that a package would allow which is missing here, by arithmetic."""
    parts, peak = row.breakdown, row.peak_device_bytes
    remedies = []
    for key in answer.unsupported:
        change = BY_KEY[key]
        steps = list(change.steps(row.config))
        if parts is None or peak is None or change.package is None or not steps:
            continue
        frees = sum(getattr(parts, f"{part}_bytes") for part in change.frees)
        if peak - frees > card.usable_bytes:
            continue
        config = replace(row.config, **steps[-1])
        remedies.append(
            PlanRemedy(
                row.config.method, row.key, row.label, change.text(config), frees, None,
                "arithmetic", rung_text(config, findings.request), None,
            )
        )  # fmt: skip
    return remedies


def _with_unsloth(findings: Findings, card: Card, row: ProbeResult) -> list[PlanRemedy]:
    """QLoRA by Unsloth, which also stores experts in 4 bits; none if its bound is too large."""
    request, own = findings.request, row.config
    rung = parse_rung(
        _BY_UNSLOTH,
        sequence_length=own.sequence_length,
        effective_batch_size=own.effective_batch_size,
        micro_batch_size=1,
        routing=own.routing,
    )
    needs = bound_of(rung.config, findings.contexts[card.name]).size_bytes
    if own.method != "qlora" or needs > card.usable_bytes or not emulated.can_be(card):
        return []
    runs = emulated.why_not(request.python) is None
    how = "" if runs else "; give --python with Unsloth and a CUDA build of torch to run it"
    return [
        PlanRemedy(
            "qlora", row.key, row.label, "Unsloth", None, None, "bound",
            rung_text(rung.config, request) if runs else None,
            f"needs at least {format_bytes(needs)}, not simulated{how}",
        )
    ]  # fmt: skip


def find_yours(findings: Findings, simulators: Simulators) -> YourRung | None:
    """The answer about the rung of --from; only its outcome in a plan that asks more.

    Raises:
        Stopped: told to stop.
    """
    request, training = findings.request, findings.request.user_training
    rung = findings.own_rung()
    if training is None or rung is None:
        return None
    if _asks_more(findings) or len(findings.cards) != 1 or not findings.plan.ranks:
        return unanswered(rung.config.key(), "changes are simulated in a plan of one card")
    (card,) = findings.cards
    row = findings.row(card, rung)
    reason = no_answer(row)
    if reason is None and (part := not_simulated(rung.config)) is not None:
        reason = f"changes of a configuration with {part} cannot be simulated"
    if reason is not None:
        return unanswered(row.key, reason)
    judge = simulation_on(findings, simulators, card)
    if row.surely_fits or row.outcome == "unsupported":
        changes = other_changes(training, row)
        if row.outcome == "unsupported":
            return answer_runs(training, row, judge.rows(changes))
        better, tried = simulate_faster(changes, judge.rows, row.tokens_per_s)
        nothing = "no single change makes it faster"
        if row.tokens_per_s is None:
            nothing = "its speed cannot be estimated, so no change is known to make it faster"
        faster = shown(training, row, better)
        return YourRung(row.key, YOURS, "faster", faster, tried, None if faster else nothing)
    answer = search_yours(training, row, judge, findings.lora_targets())
    card_for = partial(room_for, own=card.capability, headroom=request.headroom)
    return answer_fits(training, row, answer, judge, card_for)


def find_faster(findings: Findings, simulators: Simulators) -> Faster | None:
    """What would make the rung of --why faster that fits; None without such a rung.

    Raises:
        Stopped: told to stop.
    """
    if findings.plan.why is None or len(findings.cards) != 1 or not findings.plan.ranks:
        return None
    (card,) = findings.cards
    row = next((row for row in findings.rows(card) if row.label == findings.plan.why), None)
    if row is None or not row.surely_fits or row.tokens_per_s is None:
        return None
    judge = simulation_on(findings, simulators, card, row.label)
    better, tried = simulate_faster(to_speed_up(row.config), judge.rows, row.tokens_per_s)
    changes = tuple(_faster(findings, row, *pair) for pair in better)
    return Faster(changes, tried)


def _faster(
    findings: Findings, row: ProbeResult, changed: ChangeSet, faster: ProbeResult
) -> FasterChange:
    config, words = at_chosen_size(changed, faster)
    assert faster.tokens_per_s is not None and row.tokens_per_s is not None
    return FasterChange(
        change=words,
        rung=rung_text(config, findings.request),
        micro_batch_size=faster.micro_batch_size,
        gradient_accumulation_steps=faster.gradient_accumulation_steps,
        peak_device_bytes=faster.peak_device_bytes,
        tokens_per_s=faster.tokens_per_s,
        speedup=faster.tokens_per_s / row.tokens_per_s,
        too_close=too_close(faster, row),
    )


def answer_fits(
    training: UserTraining,
    row: ProbeResult,
    answer: Answer,
    simulation: Simulation,
    card_for: Callable[[ProbeResult], str | None],
) -> YourRung:
    """The answer about a rung that does not fit, from a search by simulation.

    `card_for` names a card for a row.
    """
    tried = tuple(changed.words for changed, _ in answer.judged)
    fitting = [(changed, simulation.row(changed)) for changed, _ in answer.fitting]
    reason = None if fitting else too_large(row, answer, simulation, card_for)
    return YourRung(row.key, YOURS, "fits", shown(training, row, fitting), tried, reason)


def answer_runs(training: UserTraining, row: ProbeResult, tried: Sequence[Tried]) -> YourRung:
    """The answer about a rung that does not run here; nothing if no change of it does."""
    words = tuple(changed.words for changed, _ in tried)
    fitting = [pair for pair in tried if pair[1].surely_fits]
    changes = shown(training, row, fastest_first(fitting))
    return YourRung(row.key, YOURS, "fits" if fitting else None, changes, words, None)


def simulation_on(
    findings: Findings, simulators: Simulators, card: Card, label: str = YOURS
) -> Simulation:
    """A judge on the card; a simulation that failed is an attempt at each of its sizes."""

    def run(rungs: Sequence[Sized]) -> Iterator[tuple[Attempt, ...]]:
        tasks = [Task(rung, sizes, (card,)) for rung, sizes in rungs]
        for ended in findings.simulate(simulators, tasks, keep=False):
            task, failed = tasks[ended.number], ended.attempt
            config = task.rung.config
            findings.simulated[config.key()] = failed.cached_at
            yield findings.attempts_on(card, task, ended) or tuple(
                replace(failed, config=config.with_micro_batch(size)) for size in task.sizes
            )

    return Simulation(findings.contexts[card.name], findings.request, run, label)
