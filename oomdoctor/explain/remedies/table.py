"""All remedies by key, with what they free; `diagnosis.causes.rules` refers to them by these keys.

A row of `data/remedies.toml` says a rule of thumb, or what its settings save; the rest is here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from oomdoctor.explain.diagnosis.case import Case
from oomdoctor.explain.remedies.conditions import WHEN
from oomdoctor.explain.remedies.row import Effect, Row, difference, next_batch, printed
from oomdoctor.package_data import data_of
from oomdoctor.records.facts.optimizers import optimizer_named
from oomdoctor.units import format_bytes

_OF_TRAININGS = ("training", "rl", "inference")


def _smaller_batch(case: Case) -> Effect:
    size = next_batch(case)
    if size is None or case.batch is None:
        text = "halves everything that grows with the batch"
        return difference(case, {}, text, request=0.5)
    share = 1 - size / case.batch
    text = f"everything that grows with the batch shrinks to {size}/{case.batch}"
    return difference(case, {"micro_batch_size": size}, text, request=share)


def _shorter(case: Case) -> Effect:
    length = case.setup.get("sequence_length")
    text = "halves everything that grows with the sequence length"
    changes = {} if length is None else {"sequence_length": max(1, length // 2)}
    return difference(case, changes, text, request=0.5)


def _in_chunks(case: Case, loss: str) -> Effect:
    text = "the full logits are never stored; same loss"
    in_loss = case.phase == "loss" or case.tensor_is("logits")
    return difference(case, {"loss": loss}, text, request=1.0 if in_loss else 0.0)


def _scores(case: Case) -> Effect:
    text = "the attention scores (batch x heads x length x length) are never stored"
    seen = case.tensor_is("attention scores") or case.scores_line is not None
    return difference(case, {"attention": "sdpa"}, text, request=1.0 if seen else 0.0)


def _temporaries(case: Case) -> Effect:
    """`_multi_tensor_adamw` allocates one temporary as large as the second moment."""
    states = case.term("optimizer states")
    row = optimizer_named(case.training.config.optimizer if case.training else "")
    if states is None or not states.size_bytes or row is None or row.moments != 2:
        return Effect(None, "rule", "avoids one temporary as large as the parameters")
    size = states.size_bytes // 2
    return Effect(size, "arithmetic", f"no temporary of half the states: {format_bytes(size)}")


def _one_copy(case: Case) -> Effect:
    weights = case.term("weights") or case.term("quantized weights")
    if weights is None:
        return Effect(None, "rule", "one copy of the weights fewer")
    return Effect(weights.size_bytes, "arithmetic", f"one copy fewer: {weights.text()}")


def _half(case: Case) -> Effect:
    text = "2 bytes per parameter instead of 4"
    if case.sizes is None or case.setup.get("weights_dtype") is not None:
        return difference(case, {"weights_dtype": "bfloat16"}, text)
    # The closed form uses the checkpoint's type, but the run may have loaded another one.
    saved = 2 * case.sizes.parameters
    return Effect(saved, "arithmetic", f"{case.sizes.parameters:,} x (4 - 2) bytes, if in 32 bits")


def _off_limits(case: Case) -> Effect:
    rest = (case.capacity or 0) - (case.incident.event.allowed_bytes or 0)
    return printed(max(0, rest) or None, "off limits to this process")


def _gaps(case: Case) -> Effect:
    return printed(case.unallocated, "reserved but unallocated memory that becomes usable")


_EFFECTS: Mapping[str, Callable[[Case], Effect]] = {
    "stop_others": lambda case: printed(case.others, "held by other processes"),
    "other_card": lambda case: printed(case.others, "held by other processes on this GPU"),
    "raise_fraction": _off_limits,
    "expandable_segments": _gaps,
    "max_split": _gaps,
    "no_cuda_graphs": lambda case: printed(
        case.incident.event.private_pools_bytes, "in private pools"
    ),
    "liger": lambda case: _in_chunks(case, "liger"),
    "linear_loss": lambda case: _in_chunks(case, "chunked"),
    "sdpa": _scores,
    "smaller_batch": _smaller_batch,
    "shorter_sequence": _shorter,
    "fused_optimizer": _temporaries,
    "half_weights": _half,
    "no_reference_copy": _one_copy,
}


def _effect(key: str, said: Mapping[str, Any]) -> Callable[[Case], Effect]:
    if key in _EFFECTS:
        return _EFFECTS[key]
    if "rule" in said:
        return lambda _: Effect(None, "rule", said["rule"])
    changes = said.get("changes", said.get("settings", {}))
    return lambda case: difference(case, changes, said["saves"], said.get("request", 0.0))


def _when(key: str, said: Mapping[str, Any]) -> Iterator[Callable[[Case], object]]:
    """What has to be true for a remedy to help."""
    if "phases" in said:
        yield lambda case: case.phase in said["phases"]
    if "shows" in said:
        yield lambda case: case.shows(said["shows"]) or bool(case.logged(said["shows"]))
    if "logs" in said:
        yield lambda case: case.logged(said["logs"])
    if "around" in said:
        yield lambda case: not case.around.isdisjoint(said["around"])
    if key in WHEN:
        yield WHEN[key]


def _row(key: str, said: Mapping[str, Any]) -> Row:
    conditions = tuple(_when(key, said))
    return Row(
        key,
        said["cost"],
        said["change"],
        lambda case: all(condition(case) for condition in conditions),
        _effect(key, said),
        said.get("lines", {}),
        said.get("note"),
        said.get("settings", {}),
        frozenset(said.get("programs", _OF_TRAININGS)),
    )


TABLE = {key: _row(key, said) for key, said in data_of("remedies.toml").items()}
