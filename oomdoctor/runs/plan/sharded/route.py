"""How a plan answers for a rung: by its own engine on the emulated card, or by simulation.

The engine of several GPUs (FSDP, DDP, DeepSpeed) runs its own code there with one rank, and its
peak is exact. That needs an interpreter whose torch has a CUDA build. Elsewhere, and for questions
that take many runs, the rung is simulated. Unsloth compiles its layers for the card, and
Transformer Engine has its own kernels, so these run there or not at all.
"""

from __future__ import annotations

from collections.abc import Callable

from oomdoctor.records.config import TrainConfig
from oomdoctor.records.facts.warnings import engines_not_run
from oomdoctor.records.report import Warn
from oomdoctor.records.result import Attempt
from oomdoctor.runs.devices import emulated
from oomdoctor.runs.devices.cards import Card
from oomdoctor.runs.plan.findings import Findings

Chosen = Callable[[TrainConfig], bool]


def is_sharded(config: TrainConfig) -> bool:
    """Whether a rung trains on several GPUs, or needs an engine for them."""
    return config.sharding != "none"


def is_unsloth(config: TrainConfig) -> bool:
    """Whether Unsloth trains a rung."""
    return config.library == "unsloth"


def runs_on_card_only(config: TrainConfig) -> bool:
    """Whether a rung has kernels that no simulation knows: Unsloth's, or Transformer Engine's."""
    return is_unsloth(config) or config.fp8 == "transformer_engine"


def engine_cards(known: Findings, chosen: Chosen = is_sharded) -> tuple[Card, ...]:
    """The cards on which the `chosen` rungs of the plan run; none if they are all simulated."""
    plan = known.plan
    asks_more = plan.why is not None or plan.sweep is not None or plan.solve is not None
    if asks_more or known.request.snapshot is not None or known.shapes:
        return ()
    if not any(chosen(rung.config) for rung in known.rungs):
        return ()
    if emulated.why_not(known.request.python) is not None or emulated.is_inside():
        return ()
    return tuple(card for card in known.cards if emulated.can_be(card))


def was_stopped_by_host(attempt: Attempt) -> bool:
    """Whether this machine had too little memory for a rung, and not the card."""
    pinned = attempt.oom is not None and attempt.oom.dialect == "cuda_driver"
    return attempt.outcome == "host_oom" or (pinned and attempt.config.offload != "none")


def route_warnings(known: Findings) -> tuple[Warn, ...]:
    """That rungs are simulated whose engines could run with another interpreter."""
    if not any(is_sharded(rung.config) for rung in known.rungs):
        return ()
    reason = emulated.why_not(known.request.python)
    if reason is None:
        return ()
    return (engines_not_run(reason.message),)
