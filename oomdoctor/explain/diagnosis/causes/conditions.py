"""The conditions of the cause rules: each looks at a case and returns the lines that prove it.

No lines means that the condition is false. Conditions know nothing about causes or remedies. Those
on the figures of the message are in `figures`.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from oomdoctor.explain.diagnosis.case import Case
from oomdoctor.explain.reading.lines.traceback import quote
from oomdoctor.explain.reading.programs import around_of
from oomdoctor.records.report.diagnosis import MemorySample
from oomdoctor.units import MIB, format_bytes

Lines = tuple[str, ...]
NONE: Lines = ()

_EPOCHS = 2  # after which the longest batch was seen, wherever counting starts


def yes(condition: bool, lines: Lines) -> Lines:
    return (lines or ("the type of the message",)) if condition else NONE


def _innermost(case: Case) -> Lines:
    """The frames as evidence; without any, the message."""
    return case.seen("")[:2] or case.figures()


def _told(case: Case) -> Lines:
    """The lines of the failure as evidence."""
    return case.incident.lines[:2] or case.figures()


def at_phase(*phases: str, resource: str = "gpu") -> Callable[[Case], Lines]:
    def when(case: Case) -> Lines:
        right = case.phase in phases and case.resource == resource
        return yes(right and not case.refused_though_free, _innermost(case))

    return when


def frame(pattern: str, *phases: str) -> Callable[[Case], Lines]:
    def when(case: Case) -> Lines:
        right = not phases or case.phase in phases
        return case.seen(pattern) if right and case.resource == "gpu" else NONE

    return when


def dialect(*names: str) -> Callable[[Case], Lines]:
    return lambda case: yes(case.dialect in names, _told(case))


def tensor(word: str, *phases: str) -> Callable[[Case], Lines]:
    def when(case: Case) -> Lines:
        if not case.tensor_is(word) or (phases and case.phase not in phases):
            return NONE
        return (case.tensors[0].arithmetic or "", *case.figures())

    return when


def mentioned(name: str) -> Callable[[Case], Lines]:
    """A line of the log shows this row of `around` in `data/programs.toml`."""
    return lambda case: case.facts.mentions.get(name, NONE)


def refused_though_free(case: Case) -> Lines:
    return yes(case.refused_though_free, case.figures())


def ranks_share(case: Case) -> Lines:
    lines = (*case.facts.mentions.get("launcher", ()), *case.figures())
    return yes(case.ranks_share, lines)


def first_step(case: Case) -> Lines:
    """The optimizer creates its states in its first step."""
    lines = case.seen(r"_init_group|zeros_like|state\[.exp_avg|init_state|get_state_buffer")
    return lines or yes(case.step is not None and case.step <= 1, _innermost(case))


def later_step(case: Case) -> Lines:
    return yes((case.step or 0) > 1, case.seen("")[:2])


def has_vocabulary(case: Case) -> Lines:
    """The model predicts words of a vocabulary."""
    return yes(case.writes_text, _innermost(case))


def logits_in_sight(case: Case) -> Lines:
    if case.phase not in ("forward", "backward", "unknown", "eval") or not case.writes_text:
        return NONE
    return case.on_logits()


def grows(case: Case) -> Lines:
    """Memory grows from step to step, and by enough to matter."""
    samples = case.samples()
    rise = growth_per_step(samples)
    if rise is None or not samples:
        return NONE
    total = samples[-1].used_bytes - samples[0].used_bytes
    enough = total >= max(256 * MIB, (case.capacity or 0) // 50)
    return yes(rise > 0 and enough, (samples[0].line, samples[-1].line))


def died_late(case: Case) -> Lines:
    """Many steps succeeded, so a step fits: something was kept, or this step was larger."""
    flat = bool(case.samples()) and not grows(case)
    return NONE if flat else _reached(case, 20)


def epochs_later(case: Case) -> Lines:
    """Whether at least two epochs ended well before: the longest batch was among theirs."""
    lines = died_late(case)
    epoch = re.search(r"(?i)\bepoch[ :=\[]{1,3}(\d+)", " ".join(lines))
    return lines if epoch is not None and int(epoch[1]) > _EPOCHS else NONE


def long_batch(case: Case) -> Lines:
    short = grows(case) or case.setup.get("packing") == "packed" or epochs_later(case)
    return NONE if short else _reached(case, 5)


def _reached(case: Case, least: int) -> Lines:
    step = case.step or 0
    lines = case.facts.evidence.get("last_step", ()) or (f"step {step} was reached",)
    return lines if step >= least else NONE


def loaded_wide(case: Case) -> Lines:
    """The weights are loaded in 32 bits, where 16 would be enough."""
    lines = case.logged(r"torch_dtype.{0,8}(?:None|float32)|dtype.{0,12}float32")
    if lines:
        return lines
    if case.sizes is None or case.allocated is None or "weights_dtype" in case.setup:
        return NONE
    # More is allocated than 16-bit weights take, but no more than 32-bit weights take.
    wide = 2.4 * case.sizes.parameters < case.allocated < 4.4 * case.sizes.parameters
    return yes(wide, case.figures())


def activations_largest(case: Case) -> Lines:
    """The closed form says that activations are the largest part."""
    terms = {term.name: term for term in case.model_terms()}
    largest = max(terms.values(), key=lambda term: term.size_bytes, default=None)
    return yes(largest is not None and largest.name == "activations", term_lines(case))


def term_lines(case: Case) -> Lines:
    return tuple(term.text() for term in case.model_terms() if term.size_bytes)


def resource(name: str) -> Callable[[Case], Lines]:
    return lambda case: yes(case.resource == name, _told(case))


def bus_error(case: Case) -> Lines:
    """Signal 7, and no word about what was mapped."""
    if case.resource != "shm" or case.logged(r"shm|shared memory|DataLoader|torch_"):
        return NONE
    return case.logged(r"SIGBUS|Bus error|: ?-7\b")


def shm_full(case: Case) -> Lines:
    return NONE if bus_error(case) else resource("shm")(case)


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


def growth_per_step(samples: tuple[MemorySample, ...]) -> float | None:
    """Bytes per step as the median of pairwise slopes (Theil-Sen); None with fewer than four steps.

    One outlier, such as a long batch or an evaluation, does not count as a leak.
    """
    points = [(s.step, s.used_bytes) for s in samples if s.step is not None]
    if len({step for step, _ in points}) < 4:
        points = list(enumerate(s.used_bytes for s in samples))
    if len(points) < 4:
        return None
    points = points[:: max(1, len(points) // 64)]
    slopes = sorted(
        (b[1] - a[1]) / (b[0] - a[0])
        for i, a in enumerate(points)
        for b in points[i + 1 :]
        if b[0] != a[0]
    )
    return slopes[len(slopes) // 2] if slopes else None


def own_workers(case: Case) -> Lines:
    """Several workers of the program itself share a GPU: of a server, or of pytest."""
    told = case.facts.mentions
    return told.get("several workers", NONE) or told.get("pytest", NONE)


def own_workers_hold(case: Case) -> Lines:
    """The same, and other processes hold a large part of the GPU."""
    held = (case.others or 0) >= (case.capacity or 0) // 4 > 0
    return yes(held, (*own_workers(case), *case.figures())) if own_workers(case) else NONE


def in_container(case: Case) -> Lines:
    """The text shows a container."""
    return yes(bool(case.around & around_of("container")), _told(case))


def offloads(case: Case) -> Lines:
    """The training keeps states or weights in host memory."""
    if case.setup.get("offload") in ("optimizer", "parameters"):
        return (f"offload: {case.setup.get('offload')}",)
    return case.logged(r"offload_(?:optimizer|param)|zero3?_offload|cpu_offload|_offload\.json")


def loads_a_model(case: Case) -> Lines:
    """The failure is in the loading of a model, or in building it for that."""
    if case.phase == "load":
        return _told(case)
    lines = case.seen(r"from_pretrained|load_model|load_checkpoint|torch\.load\(")
    return lines if case.phase == "init" else NONE


def gathers_weights(case: Case) -> Lines:
    return case.gathered


def one_buffer(case: Case) -> Lines:
    return yes(case.one_buffer, case.figures())
