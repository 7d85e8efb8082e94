"""One answer to what fits: the same usable memory, context and smallest card everywhere."""

from __future__ import annotations

import pytest

from oomdoctor.analysis.fit import (
    USUAL_HEADROOM,
    PeakErrors,
    borderline_note,
    headroom_bytes,
    is_borderline,
    peak_error,
    smallest_card,
    usable_bytes,
)
from oomdoctor.commands.devices.cards import card_named, card_that_holds
from oomdoctor.records.capability import capability_numbers
from oomdoctor.records.job.machine import ByteRange
from oomdoctor.records.job.simulation import PeakError, PeakErrorRecord
from oomdoctor.system import catalogue
from oomdoctor.units import GIB, MIB


@pytest.mark.parametrize("name", ["RTX A4500", "L4", "H100 PCIe"])
def test_the_smallest_card_is_one_that_a_plan_says_is_enough(name: str) -> None:
    """`run` named cards without the headroom that `plan` then missed."""
    card = card_named(name, USUAL_HEADROOM)
    room = card.usable_bytes - card.context.likely
    fits, misses = card_that_holds(lambda r: r >= room), card_that_holds(lambda r: r > room + MIB)
    assert fits is not None and fits.usable_bytes - fits.context.likely >= room
    assert misses is not None and misses.usable_bytes - misses.context.likely > room
    assert misses.name != name


def test_several_ranks_need_room_for_nccl() -> None:
    card = card_named("L4", USUAL_HEADROOM)
    room = card.usable_bytes - card.context.likely
    alone = card_that_holds(lambda r: r >= room, least=(8, 9))
    shared = card_that_holds(lambda r: r >= room, least=(8, 9), ranks=2)
    assert alone is not None and shared is not None
    assert alone.total_bytes < shared.total_bytes


def test_a_card_of_another_vendor_is_only_for_its_own() -> None:
    found = smallest_card(catalogue.gpus(), lambda room: room > 150 * GIB, vendor="AMD")
    assert found is not None and found.vendor == "AMD"
    assert smallest_card(catalogue.gpus(), lambda room: room > 10**14) is None


def test_the_headroom_is_a_share_of_what_is_there() -> None:
    l4 = catalogue.find_gpu("L4")
    assert l4 is not None
    card = card_named("L4", 0.05)
    assert usable_bytes(l4, 0.05) == card.usable_bytes
    assert card.total_bytes - card.usable_bytes == headroom_bytes(card.total_bytes, 0.05)


def test_memory_that_the_host_shares_is_also_the_system_s() -> None:
    gb10, spark = catalogue.find_gpu("GB10"), card_named("GB10", 0.0)
    assert gb10 is not None and gb10.shares_host_memory
    assert usable_bytes(gb10, 0.0) == spark.usable_bytes == spark.total_bytes
    assert spark.total_bytes == round(gb10.memory_bytes * 15 / 16) - 20 * GIB


def test_capabilities_compare_as_numbers() -> None:
    assert capability_numbers("10.0") > capability_numbers("8.9") > capability_numbers(None)


CONTEXT = ByteRange(GIB // 4, GIB // 2, GIB, "")


@pytest.mark.parametrize(("peak", "near"), [(5.0, False), (8.5, True), (9.1, True), (12.0, False)])
def test_what_is_nearer_to_the_limit_than_the_error_is_borderline(peak: float, near: bool) -> None:
    error = peak_error(CONTEXT, PeakErrors((), None, None), "full")
    held = round(peak * GIB) - CONTEXT.likely
    assert is_borderline(held, CONTEXT.likely, 9 * GIB, error) == near


@pytest.mark.parametrize(("p95", "near"), [(0.01, False), (0.15, True)])
def test_recorded_errors_say_how_exact_a_prediction_is(p95: float, near: bool) -> None:
    off = PeakErrorRecord(
        "emulated", "reserved", "full", None, None, 40,
        signed_median=0.0, absolute_median=0.0, p95=p95,
    )  # fmt: skip
    error = peak_error(CONTEXT, PeakErrors((off,), "8.0", "2.12.1"), "full")
    assert is_borderline(8 * GIB - CONTEXT.likely, CONTEXT.likely, 9 * GIB, error) == near
    held = 100 * GIB  # of which any share is more than the error of the context
    assert borderline_note(error, held, tensors_only=False).endswith(f"off by up to {p95:.1%}")


def test_the_context_is_named_where_it_is_what_makes_a_peak_borderline() -> None:
    """The note said "off by up to 0.2%" of a peak at 98% of the usable memory."""
    error = PeakError(0.002, GIB // 4, GIB // 2)
    assert is_borderline(8 * GIB, CONTEXT.likely, round(8.7 * GIB), error)
    assert borderline_note(error, 8 * GIB, tensors_only=False) == (
        "borderline: predictions like this are off by up to 0.2%, "
        "the CUDA context and libraries by up to 512 MiB"
    )


@pytest.mark.parametrize(("peak", "near"), [(6.5, False), (7.8, True)])
def test_tensors_alone_leave_out_what_the_allocator_holds(peak: float, near: bool) -> None:
    error = peak_error(CONTEXT, PeakErrors((), None, None), "full")
    held = round(peak * GIB) - CONTEXT.likely
    assert is_borderline(held, CONTEXT.likely, 9 * GIB, error, tensors_only=True) == near


@pytest.mark.parametrize(("peak", "near"), [(8.4, False), (8.6, True)])
def test_what_vllm_takes_is_as_exact_as_its_share(peak: float, near: bool) -> None:
    error = peak_error(CONTEXT, PeakErrors((), None, None), "full")
    outside = CONTEXT.likely + 5 * GIB
    held = round(peak * GIB) - outside
    assert is_borderline(held, outside, 9 * GIB, error) == near
