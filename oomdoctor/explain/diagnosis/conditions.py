"""The conditions of the cause rules: each looks at a case and returns the lines that prove it.

No lines means that the condition is false. Conditions know nothing about causes or remedies.
"""

from __future__ import annotations

from collections.abc import Callable

from oomdoctor.explain.diagnosis.case import UNDERFLOW, Case
from oomdoctor.explain.diagnosis.growth import growth_per_step
from oomdoctor.units import GIB, MIB

Lines = tuple[str, ...]
NONE: Lines = ()


def yes(condition: bool, lines: Lines) -> Lines:
    return (lines or ("the type of the message",)) if condition else NONE


def larger_than_card(case: Case) -> Lines:
    big = None not in (case.requested, case.capacity)
    return yes(big and (case.requested or 0) > (case.capacity or 0), case.figures())


def others_decide(case: Case) -> Lines:
    others, missing = case.others or 0, case.missing
    if others < GIB or not missing or missing > others or limited(case):
        return NONE
    return case.figures()


def others_hold(case: Case) -> Lines:
    total = case.capacity or 0
    return yes((case.others or 0) >= max(GIB, total // 20) and not limited(case), case.figures())


def limited(case: Case) -> bool:
    """A memory fraction below the GPU's size is set, and this process is close to it."""
    allowed, total = case.incident.event.allowed_bytes, case.capacity
    if allowed is None or total is None or allowed >= 0.98 * total:
        return False
    left = allowed - (case.reserved or 0)
    return left < (case.requested or 0) or left < 0.1 * allowed


def fraction_binds(case: Case) -> Lines:
    if not limited(case) or case.requested is None:
        return NONE
    return yes((case.free or 0) >= case.requested, case.figures())


def fraction_set(case: Case) -> Lines:
    return yes(limited(case), case.figures())


def fragmented(case: Case) -> Lines:
    if case.unallocated is None or case.requested is None or case.requested < 50 * MIB:
        return NONE
    return yes(case.unallocated >= case.requested, case.figures())


def badly_fragmented(case: Case) -> Lines:
    much = (case.unallocated or 0) >= max(GIB, (case.capacity or 0) // 20)
    return fragmented(case) if much and not case.refused_though_free else NONE


def graph_pools(case: Case) -> Lines:
    pools = case.incident.event.private_pools_bytes or 0
    return yes(pools >= max(512 * MIB, (case.capacity or 0) // 20), case.figures())


def free_but_refused(case: Case) -> Lines:
    """Far more was free than requested and no limit shows: a private pool may have refused."""
    event = case.incident.event
    if case.free is None or case.requested is None or event.allowed_bytes is not None:
        return NONE
    much = case.free > max(2 * case.requested, GIB)
    return yes(much and UNDERFLOW not in case.message, case.figures())


def at_phase(*phases: str) -> Callable[[Case], Lines]:
    def when(case: Case) -> Lines:
        lines = case.seen("") or case.figures()
        right = case.phase in phases and case.incident.resource == "gpu"
        return yes(right and not case.refused_though_free, lines[:2])

    return when


def frame(pattern: str, *phases: str) -> Callable[[Case], Lines]:
    def when(case: Case) -> Lines:
        right = not phases or case.phase in phases
        return case.seen(pattern) if right and case.incident.resource == "gpu" else NONE

    return when


def dialect(*names: str) -> Callable[[Case], Lines]:
    return lambda case: yes(case.dialect in names, case.incident.lines[:2] or case.figures())


def log(pattern: str, *, resource: str = "") -> Callable[[Case], Lines]:
    def when(case: Case) -> Lines:
        return case.logged(pattern) if resource in ("", case.incident.resource) else NONE

    return when


def tensor(word: str, *phases: str) -> Callable[[Case], Lines]:
    def when(case: Case) -> Lines:
        if not case.tensor_is(word) or (phases and case.phase not in phases):
            return NONE
        return (case.tensors[0].arithmetic or "", *case.figures())

    return when


def first_step(case: Case) -> Lines:
    """The optimizer creates its states in its first step."""
    if case.phase != "optimizer":
        return NONE
    lines = case.seen(r"_init_group|zeros_like|state\[.exp_avg|init_state|get_state_buffer")
    if lines:
        return lines
    return yes(case.step is not None and case.step <= 1, case.seen("")[:2] or case.figures())


def later_step(case: Case) -> Lines:
    return yes(
        case.phase == "optimizer" and case.step is not None and case.step > 1, case.seen("")[:2]
    )


def foreach(case: Case) -> Lines:
    return case.seen(r"_foreach_|_multi_tensor") if case.phase == "optimizer" else NONE


def logits_in_sight(case: Case) -> Lines:
    if case.phase not in ("forward", "backward", "unknown", "eval"):
        return NONE
    return case.innermost(r"lm_head|logits|cross_entropy|loss_function|log_softmax|loss_utils")


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
    step = case.step or 0
    flat = bool(case.samples()) and not grows(case)
    if step < 20 or flat or case.phase not in ("forward", "backward", "loss", "unknown"):
        return NONE
    return case.facts.evidence.get("last_step", ()) or (f"step {step} was reached",)


def long_batch(case: Case) -> Lines:
    step = case.step or 0
    if step < 5 or grows(case) or case.phase not in ("forward", "backward", "loss"):
        return NONE
    if case.setup.packing:
        return NONE
    return case.facts.evidence.get("last_step", ()) or (f"step {step} was reached",)


def kept_by_notebook(case: Case) -> Lines:
    return case.seen(r"ipykernel|<ipython-input|/tmp/ipykernel|<module>.*loss_?(?:sum|total)")


def loads_twice(case: Case) -> Lines:
    if case.phase not in ("load", "init"):
        return NONE
    return case.seen(
        r"deepcopy|create_reference_model|ref_model|_load_optimizer_and_scheduler|torch\.load\("
        r"|^(?!.*transformers/modeling_utils).*\bload_state_dict\b|merge_and_unload|resume_from_checkpoint"
    )


def loaded_wide(case: Case) -> Lines:
    """The weights are loaded in 32 bits, where 16 would be enough."""
    if case.phase not in ("load", "init"):
        return NONE
    lines = case.logged(r"torch_dtype.{0,8}(?:None|float32)|dtype.{0,12}float32")
    if lines:
        return lines
    if case.sizes is None or case.allocated is None or case.setup.weights_dtype not in (None,):
        return NONE
    # More is allocated than 16-bit weights take, but no more than 32-bit weights take.
    wide = 2.4 * case.sizes.parameters < case.allocated < 4.4 * case.sizes.parameters
    return yes(wide, case.figures())


def fills_card(case: Case) -> Lines:
    """The GPU is full, no matter what filled it."""
    if None in (case.free, case.capacity) or case.incident.resource != "gpu":
        return NONE
    return yes((case.free or 0) <= 0.2 * (case.capacity or 0), case.figures())


def needs_most(case: Case) -> Lines:
    """The request alone is a large part of the GPU."""
    if case.requested is None or case.capacity is None:
        return NONE
    return yes(case.requested >= case.capacity // 4, case.figures())


def activations_largest(case: Case) -> Lines:
    """The closed form says that activations are the largest part."""
    if case.phase not in ("forward", "backward", "unknown") or case.incident.resource != "gpu":
        return NONE
    known = {term.name: term for term in case.model_terms()}
    largest = max(known.values(), key=lambda term: term.size_bytes, default=None)
    return yes(largest is not None and largest.name == "activations", term_lines(case))


def term_lines(case: Case) -> Lines:
    return tuple(term.text() for term in case.model_terms() if term.size_bytes)


def resource(name: str) -> Callable[[Case], Lines]:
    return lambda case: yes(
        case.incident.resource == name, case.incident.lines[:2] or case.figures()
    )


def bus_error(case: Case) -> Lines:
    """Signal 7, and no word about what was mapped."""
    if case.incident.resource != "shm" or case.logged(r"shm|shared memory|DataLoader|torch_"):
        return NONE
    return case.logged(r"SIGBUS|Bus error|: ?-7\b")


def shm_full(case: Case) -> Lines:
    return NONE if bus_error(case) else resource("shm")(case)


def kernel_killed(case: Case) -> Lines:
    """The kernel itself reports the kill."""
    lines = case.logged(r"oom-kill|Out of memory: Kill|invoked oom")
    return lines if case.dialect == "host_oom_killer" else NONE


def shared_with_others(case: Case) -> Lines:
    """MPS counts the memory of other programs too."""
    return yes(case.dialect == "mps" and "other allocations" in case.message, case.figures())
