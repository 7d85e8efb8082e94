"""What would make the rung of --from fit, or faster: single changes of it, each simulated."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from oomdoctor.analysis.search.own_rung import OneChange
from oomdoctor.records.user_training import YOURS, YourRung
from oomdoctor.runs.devices.cards import Card, room_for
from oomdoctor.runs.files.your_changes import (
    Tried,
    answer_faster,
    answer_fits,
    changes_to_try,
    no_answer,
    rung_with,
    simulate_faster,
    simulate_fitting,
)
from oomdoctor.runs.jobs.simulators import Simulators
from oomdoctor.runs.plan.findings import Findings
from oomdoctor.runs.plan.sharded.route import runs_on_card_only
from oomdoctor.runs.plan.tasks import tasks_of


def find_yours(known: Findings, simulators: Simulators) -> YourRung | None:
    """The answer about the rung of --from; only its outcome in a plan that asks more.

    Raises:
        Stopped: told to stop.
    """
    request, training = known.request, known.request.user_training
    rung = next((rung for rung in known.rungs if rung.label == YOURS), None)
    if training is None or rung is None:
        return None
    plan = known.plan
    asked_more = plan.all_gpus or plan.sweep is not None or plan.why is not None
    if not plan.ranks or asked_more or request.lengths is not None or len(known.cards) != 1:
        return YourRung(
            rung.config.key(), YOURS, None, (), (), "changes are simulated in a plan of one card"
        )
    card = known.cards[0]
    row = known.row(card, rung)
    reason = no_answer(row)
    if reason is None and runs_on_card_only(rung.config):
        kernels = "Unsloth" if rung.config.library == "unsloth" else "Transformer Engine"
        reason = f"changes of a rung with {kernels} cannot be simulated"
    if reason is not None:
        return YourRung(row.key, YOURS, None, (), (), reason)
    changes = changes_to_try(training, row, card.usable_bytes)
    simulate = partial(_simulated, known, simulators, card)
    if row.outcome == "fits":
        better, tried = simulate_faster(changes, simulate, row.tokens_per_s)
        nothing = "no single change makes it faster"
        if row.tokens_per_s is None:
            nothing = "its speed cannot be estimated"
        return answer_faster(request, training, row, better, tried, nothing)
    found = simulate_fitting(changes, simulate)
    card_for = partial(room_for, own=card.capability, headroom=request.headroom)
    return answer_fits(
        request, training, row, found.fitting, found.tried, card.usable_bytes, found.least, card_for
    )


def _simulated(
    known: Findings, simulators: Simulators, card: Card, changes: Sequence[OneChange]
) -> list[Tried]:
    """The row of each change on the card."""
    rungs = {one.config.key(): rung_with(one) for one in changes}
    ladders = {card.name: tuple(rungs.values())}
    planned = tasks_of(known.plan, ladders, (card,), known.contexts)
    tasks = [task for task in map(known.supported, planned) if task is not None]
    for _ in known.simulate(simulators, tasks):
        pass
    return [(one, known.row(card, rungs[one.config.key()])) for one in changes]
