"""The conditions that compare what a training needs, by arithmetic, with what the GPU has."""

from __future__ import annotations

from collections.abc import Callable

from oomdoctor.explain.diagnosis.case import Case
from oomdoctor.explain.diagnosis.causes.conditions import (
    NONE,
    Lines,
    logits_in_sight,
    term_lines,
    yes,
)
from oomdoctor.explain.diagnosis.frames import quote
from oomdoctor.units import format_bytes


def beyond_card(case: Case) -> Lines:
    """The training needs more than the GPU has, by arithmetic, and no one part is to blame."""
    whole = case.beyond and part_to_blame(case) is None
    return yes(whole, (*term_lines(case), *case.figures()))


def beyond_by(name: str) -> Callable[[Case], Lines]:
    """The same, and without this part, the largest that grows with the batch, it would fit."""

    def when(case: Case) -> Lines:
        if not case.beyond or part_to_blame(case) != name:
            return NONE
        scores = scores_in_frame(case)[:-1] if name == "activations" else NONE
        return (*scores, *term_lines(case), *case.figures())

    return when


def part_to_blame(case: Case) -> str | None:
    """The part that grows with the batch without which the training would fit, if there is one.

    If each of two would be enough, the one at which it failed counts, else the larger one. A part
    that was not on the device when it failed is not to blame.
    """
    total, room = case.total, case.room
    if total is None or room is None or case.phase in ("load", "init", "clip", "optimizer"):
        return None
    grown = {
        term.name: term.size_bytes
        for term in case.model_terms()
        if term.name in ("activations", "logits") and total - term.size_bytes <= room
    }
    if case.phase == "forward" and not logits_in_sight(case):
        grown.pop("logits", None)
    if "logits" in grown and (case.phase == "loss" or case.tensor_is("logits")):
        return "logits"
    if "activations" in grown and case.scores_line is not None:
        return "activations"
    return max(grown, key=lambda name: grown[name]) if grown else None


def scores_in_frame(case: Case) -> Lines:
    """The line that failed computes attention scores itself, which is eager attention."""
    line = case.scores_line
    if line is None or case.refused_though_free:
        return NONE
    term = scores_term(case)
    return (quote(line), *((term,) if term else ()), *(case.figures()[:1] or NONE))


def scores_term(case: Case) -> str | None:
    """The size of the scores of one layer, if batch, length and model are known."""
    if case.sizes is None or case.training is None or not case.training.tokens:
        return None
    batch, length = case.training.micro_batch_size, case.training.sequence_length
    each = case.training.compute_bytes
    size = (batch or 0) * case.sizes.heads * (length or 0) ** 2 * each
    shape = f"{batch} x {case.sizes.heads} x {length} x {length} x {each} bytes"
    return f"attention scores of one layer: {shape} = {format_bytes(size)}"
