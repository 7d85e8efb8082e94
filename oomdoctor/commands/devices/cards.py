"""The devices of a plan: published cards by name, or a bare size."""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace

from oomdoctor.analysis import fit
from oomdoctor.analysis.memory.overhead import (
    context_bytes,
    context_seen,
    device_total_bytes,
    with_nccl,
)
from oomdoctor.analysis.speed.limits import can_be_true
from oomdoctor.analysis.speed.links import AUTO_LINK
from oomdoctor.commands.devices.calibrations import calibrated_speed
from oomdoctor.commands.ladder.assemble import SIZE_SOURCE
from oomdoctor.emulator.card import split_count
from oomdoctor.records.capability import ANY, MODERN, capability_numbers
from oomdoctor.records.job.costs import CalibratedBy, Calibration
from oomdoctor.records.job.machine import ByteRange, GpuFacts
from oomdoctor.records.job.result import ProbeResult
from oomdoctor.records.job.simulation import PeakError, Target
from oomdoctor.records.report.plan import PlanRequest
from oomdoctor.records.report.report import Warn
from oomdoctor.records.report.warnings import warning
from oomdoctor.system import catalogue
from oomdoctor.system.catalogue import peak_errors
from oomdoctor.system.store.calibration import Learned, newest
from oomdoctor.units import format_bytes, parse_size

# A bare size gets the kernels and workspaces of an A100.
_USUAL_CAPABILITY = "8.0"
# Cards are called by numbers such as 980 and 4090; a shorter one is a size.
_CARD_NUMBER = re.compile(r"\d{3,}")


@dataclass(frozen=True, slots=True)
class Card:
    """A device to predict for, in bytes; `facts` is None for a bare size."""

    name: str
    facts: GpuFacts | None
    memory_bytes: int
    total_bytes: int
    total_source: str
    headroom_bytes: int
    context: ByteRange
    speed: Calibration | None = None  # what `probe` measured on such a card
    calibrated_by: CalibratedBy | None = None
    ignored: Learned | None = None  # stored constants that cannot be true
    asked_as: str | None = None  # the name in the request, shared with the `variants`
    variants: tuple[str, ...] = ()

    @property
    def usable_bytes(self) -> int:
        """What a rung may use, including the CUDA context."""
        return self.total_bytes - self.headroom_bytes

    @property
    def capability(self) -> str:
        """The compute capability, assumed if unknown."""
        stated = self.facts.compute_capability if self.facts else None
        return stated or _USUAL_CAPABILITY

    def target(self, interconnect: str = AUTO_LINK, error: PeakError | None = None) -> Target:
        """What the worker needs to know about the card, and about what links several of them."""
        return Target(
            name=self.name,
            total_bytes=self.total_bytes,
            usable_bytes=self.usable_bytes,
            overhead_bytes=self.context.likely,
            gpu=self.facts,
            calibration=self.speed,
            interconnect=interconnect,
            error=error,
        )


def cards_of(plan: PlanRequest, headroom: float) -> tuple[Card, ...]:
    """The devices of a plan, smallest memory first; `headroom` is a share of the total.

    Cards with less than `min_memory_bytes` are left out.

    Raises:
        ValueError: a name is neither a known card nor a size.
    """
    if plan.all_gpus:
        listed = [facts for facts in catalogue.gpus() if facts.vendor == "NVIDIA"]
        cards = [_card(facts, headroom) for facts in listed]
    else:
        cards = [card_named(name, headroom) for name in plan.gpus]
    if plan.context_bytes is not None:
        seen = context_seen(plan.context_bytes, "as the process was seen to take")
        cards = [replace(card, context=seen) for card in cards]
    least = plan.min_memory_bytes or 0
    unique = {card.name: card for card in cards if card.memory_bytes >= least}
    return tuple(sorted(unique.values(), key=lambda card: (card.memory_bytes, card.total_bytes)))


def of_ranks(card: Card, ranks: int) -> Card:
    """The card as one of several ranks finds it: NCCL's buffers take a part of it."""
    return replace(card, context=with_nccl(card.context, ranks))


def card_named(text: str, headroom: float) -> Card:
    """The card of that name or alias (`4090`), or a device of that size (`24GiB`, `24`).

    If several variants share the name, the one with the least memory.

    Raises:
        ValueError: it is neither, and the message has the nearest names; or it is a number that
            may be MiB or bytes.
    """
    stripped = text.strip()
    numbered = bool(_CARD_NUMBER.fullmatch(stripped))
    if not numbered:
        with suppress(ValueError):
            return _sized(parse_size(stripped), headroom)
    facts = catalogue.find_gpu(stripped)
    if facts is not None:
        return _card(facts, headroom)
    variants = catalogue.gpu_variants(stripped)
    if variants:
        others = tuple(gpu.name for gpu in variants[1:])
        return replace(_card(variants[0], headroom), asked_as=stripped, variants=others)
    if numbered:
        return _sized(parse_size(stripped), headroom)
    count, name = split_count(stripped)
    if count > 1 and (catalogue.find_gpu(name) or catalogue.gpu_variants(name)):
        raise ValueError(f"{text!r} are {count} cards; write {name!r}, and --gpus {count} for all")
    nearest = catalogue.nearest_gpus(stripped)
    meant = f"did you mean {', '.join(nearest)}?" if nearest else "`oomdoctor gpus` lists the cards"
    raise ValueError(f"{text!r} is neither a known card nor a size such as 24GiB; {meant}")


def variant_warnings(card: Card) -> list[Warn]:
    """That its name stands for several cards, of which the smallest was taken."""
    if not card.variants:
        return []
    return [warning("gpu_variant", asked=card.asked_as, taken=card.name, others=card.variants)]


def _card(facts: GpuFacts, headroom: float) -> Card:
    total, source = device_total_bytes(facts)
    learned, ignored = _learned(facts)
    speed, by = calibrated_speed(learned, facts)
    return Card(
        name=facts.name,
        facts=facts,
        memory_bytes=facts.memory_bytes,
        total_bytes=total,
        total_source=source,
        headroom_bytes=fit.headroom_bytes(total, headroom),
        context=context_on(facts),
        speed=speed,
        calibrated_by=by,
        ignored=ignored,
    )


def _learned(facts: GpuFacts) -> tuple[Learned | None, Learned | None]:
    """What `probe` measured on such a card; second if it cannot be true."""
    learned = newest(lambda learned: catalogue.find_gpu(learned.gpu_name) == facts)
    if learned is not None and not can_be_true(learned.speed, facts):
        return None, learned
    return learned, None


def context_on(facts: GpuFacts) -> ByteRange:
    """The context on a card: what `probe` measured on one, otherwise published figures."""
    learned = newest(
        lambda learned: (
            learned.overhead_bytes is not None
            and catalogue.find_gpu(learned.gpu_name) == facts
            and can_be_true(learned.speed, facts)
        )
    )
    if learned is None or learned.overhead_bytes is None:
        return context_bytes(facts)
    by = f"driver {learned.driver_version}" if learned.driver_version else "driver unknown"
    return context_seen(learned.overhead_bytes, f"measured by probe on this card model, {by}")


def _sized(size: int, headroom: float) -> Card:
    return Card(
        name=format_bytes(size),
        facts=None,
        memory_bytes=size,
        total_bytes=size,
        total_source=SIZE_SOURCE,
        headroom_bytes=fit.headroom_bytes(size, headroom),
        context=context_bytes(None),
    )


def card_that_holds(
    holds: Callable[[int], bool],
    *,
    least: tuple[int, int] = ANY,
    headroom: float = fit.USUAL_HEADROOM,
    ranks: int = 1,
    surely: bool = False,
) -> Card | None:
    """The smallest NVIDIA card whose allocator may hold what is needed; None if none may.

    `holds` says whether so many bytes are enough. `least` is the lowest compute capability.
    """
    facts = fit.smallest_card(
        catalogue.gpus(),
        holds,
        least=least,
        headroom=headroom,
        ranks=ranks,
        context=context_on,
        surely=surely,
    )
    return None if facts is None else of_ranks(_card(facts, headroom), ranks)


def room_for(row: ProbeResult, own: str | None, headroom: float) -> str | None:
    """The name of the smallest card that surely has room for the peak of a simulated rung.

    `own` is the compute capability of the card that was too small. None if the peak is not known,
    or if there is no such card.
    """
    measured, peak = row.measurement, row.peak_device_bytes
    if measured is None or peak is None:
        return None
    outside = measured.overhead_bytes or 0
    held, predicted = peak - outside, row.evidence == "predicted"
    if predicted:
        share = fit.PeakErrors(peak_errors(), own, None).share(row.config.method, "reserved")
        held = round(held * (1 + (fit.ASSUMED_ERROR if share is None else share)))
    least = MODERN if own is None or capability_numbers(own) >= MODERN else ANY
    card = card_that_holds(
        lambda room: room > held,
        least=least,
        headroom=headroom,
        ranks=row.config.world_size,
        surely=predicted,
    )
    return None if card is None else card.name
