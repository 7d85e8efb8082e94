"""The conditions of the cause rules that compare the figures of the message with each other."""

from __future__ import annotations

import re
from collections.abc import Callable

from oomdoctor.explain.diagnosis.case import Case
from oomdoctor.explain.diagnosis.causes.conditions import NONE, Lines, yes
from oomdoctor.explain.diagnosis.usage import UNDERFLOW
from oomdoctor.explain.reading.printed_sizes import size_bytes
from oomdoctor.records.job.measurement import CATEGORY_WORDS, BlockCategory
from oomdoctor.system.catalogue import gpus
from oomdoctor.units import GIB, MIB

_NAMED = tuple(category for category in CATEGORY_WORDS if category != "other")
_MUCH = 0.2  # of what was needed
_GREW = 0.1
_GAPS = 0.1  # of what is reserved
_LARGE = 1.25  # times the request: gaps that just cover it are no more than blocks between sizes


def larger_than_card(case: Case) -> Lines:
    big = None not in (case.requested, case.capacity)
    return yes(big and (case.requested or 0) > (case.capacity or 0), case.figures())


def impossible_request(case: Case) -> Lines:
    """A petabyte or more: no tensor has that size, so it was computed wrongly."""
    return yes((case.requested or 0) >= 2**50, case.figures())


def unlikely_request(case: Case) -> Lines:
    """More than any GPU of the catalogue has, and more than this device."""
    largest = max(gpu.memory_bytes for gpu in gpus())
    return yes((case.requested or 0) > max(largest, case.capacity or 0), case.figures())


def peers_decide(case: Case) -> Lines:
    """Other processes that hold as much as this one, in a run of several ranks: its own ranks."""
    own, listed = case.incident.event.process_bytes, case.incident.listed_processes
    several = case.incident.rank is not None or (case.facts.world_size or 1) > 1
    alike = [process for process in listed if own and abs(process.used_bytes - own) <= own // 20]
    return yes(several and bool(alike), case.figures())


def trains_too_many(case: Case) -> Lines:
    """Weights and gradients of 16 bits for the parameters that are trained exceed the GPU."""
    count, alone = case.facts.settings.get("trainable_parameters"), case.facts.world_size or 1
    if not isinstance(count, int) or case.capacity is None or alone > 1:
        return NONE
    return yes(4 * count > case.capacity, case.facts.evidence.get("trainable_parameters", ()))


def others_decide(case: Case) -> Lines:
    """The message says what this process or others hold, and without others it would have fit.

    Where they hold a small part of the GPU, the next requests would have failed.
    """
    event = case.incident.event
    said = event.process_bytes is not None or event.other_processes_bytes is not None
    much = (case.others or 0) >= (case.capacity or 0) // 10
    return others_likely(case) if said and much else NONE


def others_likely(case: Case) -> Lines:
    """The same, but what others hold is only what neither is free nor PyTorch's."""
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
    binds = case.requested is not None and (case.free or 0) >= case.requested
    return yes(binds and limited(case), case.figures())


def fraction_set(case: Case) -> Lines:
    return yes(limited(case), case.figures())


def fragmented(case: Case) -> Lines:
    """What is reserved but unallocated would have covered the request, and is large beside it.

    PyTorch's message asks for reserved memory that is "much more" than allocated: some gaps are
    always there, as the allocator rounds sizes and takes segments of 2 and 20 MiB.
    """
    large = (case.unallocated or 0) >= _GAPS * (case.reserved or 0)
    return gaps_cover(case) if large else NONE


def gaps_cover(case: Case) -> Lines:
    """What is reserved but unallocated would have covered the request, as far as can be told.

    Gaps below 1 GiB that are a few per cent of the GPU are usual: the next request would fail.
    """
    if case.unallocated is None or case.requested is None or case.requested < 50 * MIB:
        return NONE
    if case.unallocated < min(GIB, (case.capacity or 0) // 20):
        return NONE
    return yes(case.unallocated >= _LARGE * case.requested, case.figures())


def badly_fragmented(case: Case) -> Lines:
    """The same, and it is a large part of what the process holds: little else would explain it.

    If it is a fifth of the GPU, it need not be larger than the request.
    """
    unallocated, total = case.unallocated or 0, case.capacity or 0
    covers = unallocated >= (case.requested or 0) >= 50 * MIB
    if unallocated < max(GIB, total // 10) or not covers or case.refused_though_free:
        return NONE
    return case.figures() if unallocated >= total // 5 else gaps_cover(case)


def graph_pools(case: Case) -> Lines:
    pools = case.incident.event.private_pools_bytes or 0
    return yes(pools >= max(512 * MIB, (case.capacity or 0) // 20), case.figures())


def mostly_graph_pools(case: Case) -> Lines:
    pools = case.incident.event.private_pools_bytes or 0
    return graph_pools(case) if 2 * pools >= (case.allocated or 0) else NONE


def free_but_refused(case: Case) -> Lines:
    """Far more was free than requested and no limit shows: a private pool may have refused."""
    event = case.incident.event
    if case.free is None or case.requested is None or event.allowed_bytes is not None:
        return NONE
    much = case.free > max(2 * case.requested, GIB)
    return yes(much and UNDERFLOW not in case.message, case.figures())


def refused_by_windows(case: Case) -> Lines:
    """The same, on Windows."""
    return free_but_refused(case) if "windows" in case.around else NONE


def fills_card(case: Case) -> Lines:
    """The GPU is full, no matter what filled it."""
    if None in (case.free, case.capacity) or case.resource != "gpu":
        return NONE
    return yes((case.free or 0) <= 0.2 * (case.capacity or 0), case.figures())


def requested(case: Case) -> Lines:
    """The message prints how much was requested."""
    return yes(case.requested is not None, case.figures())


def needs_most(case: Case) -> Lines:
    """The request alone is a large part of the GPU."""
    if case.requested is None or case.capacity is None:
        return NONE
    return yes(case.requested >= case.capacity // 4, case.figures())


_OTHER_ALLOCATIONS = re.compile(r"other allocations: ([\d.]+ ?[KMGT]i?B)")
_XPU_LIMIT = 4 * GIB  # CL_DEVICE_MAX_MEM_ALLOC_SIZE of Arc GPUs, unless relaxed


def shared_with_others(case: Case) -> Lines:
    """MPS counts the memory of other programs too, and they hold a fifth of the limit or more."""
    match = _OTHER_ALLOCATIONS.search(case.message)
    held = 0 if match is None else size_bytes(match[1]) or 0
    return yes(held >= (case.capacity or 0) / 5 and held > 0, case.figures())


def beyond_xpu_limit(case: Case) -> Lines:
    """One allocation above the driver's limit, of a GPU that has far more."""
    used = (case.allocated or 0) + (case.requested or 0)
    large = (case.requested or 0) >= _XPU_LIMIT and used < (case.capacity or 0)
    return yes(large, case.figures())


def holds_most(category: BlockCategory) -> Callable[[Case], Lines]:
    """The category is the largest part of what was needed when the request failed."""

    def when(case: Case) -> Lines:
        seen = case.snapshot
        if seen is None or not seen.share(category):
            return NONE
        return seen.lines(category) if max(_NAMED, key=seen.share) == category else NONE

    return when


def holds_much(category: BlockCategory) -> Callable[[Case], Lines]:
    """The category is a large part of what was needed when the request failed."""

    def when(case: Case) -> Lines:
        seen = case.snapshot
        if seen is None or seen.share(category) < _MUCH:
            return NONE
        return seen.lines(category)

    return when


def left_behind(case: Case) -> Lines:
    """Each step, pass or failure left memory behind, and it has become enough to matter."""
    seen = case.snapshot
    if seen is None or seen.growth is None:
        return NONE
    grown = seen.growth.bytes_per_step * seen.growth.steps
    if grown < _GREW * seen.oom.allocated_bytes and grown < (case.missing or 0):
        return NONE
    where = seen.growth.where
    at = () if where is None else (f"made at {where.file}:{where.line} in {where.function}",)
    return at or seen.lines()[:1]
