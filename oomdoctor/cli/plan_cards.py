"""The cards of a plan: which ones, in which order, at which prices."""

from __future__ import annotations

from dataclasses import replace
from typing import get_args

from oomdoctor.cli.option_reader import Reader
from oomdoctor.cli.options.ladder import PlanOptions
from oomdoctor.commands.devices.cards import card_named, cards_of
from oomdoctor.commands.plan.picks import price_list
from oomdoctor.errors import OomDoctorError
from oomdoctor.records.report.plan import CardOrder, PlanRequest, PriceList
from oomdoctor.system.catalogue import find_gpu
from oomdoctor.system.machine.devices import choose_device
from oomdoctor.system.machine.nvml import list_gpus
from oomdoctor.units import format_bytes, size_note

_ORDERS: tuple[CardOrder, ...] = get_args(CardOrder)


def named_gpus(reader: Reader, named: tuple[str, ...], *, all_gpus: bool) -> tuple[str, ...]:
    """The catalogue names of the cards; by default the GPU of this machine."""
    if all_gpus:
        return ()
    if not named:
        here = _gpu_here()
        if here is None:
            reader.fault(
                "--gpu", "is missing, and this machine has no GPU; name a card such as 'RTX 4090'"
            )
            return ()
        named = (here,)
    return tuple(name for name in named if _is_card(reader, name))


def _is_card(reader: Reader, name: str) -> bool:
    try:
        card = card_named(name, 0.0)
    except ValueError as error:
        reader.fault("--gpu", str(error))
        return False
    if card.facts is None and (note := size_note(name)) is not None:
        reader.note("--gpu", note)
    return True


def _gpu_here() -> str | None:
    """The name of this machine's first GPU, or its size if the card is unknown."""
    try:
        gpu = choose_device("auto", list_gpus()).gpu
    except OomDoctorError:
        return None  # several GPUs that cannot be distinguished: the user has to name one
    if gpu is None:
        return None
    known = find_gpu(gpu.name, gpu.total_bytes)
    return known.name if known is not None else f"{gpu.total_bytes}B"


def card_order(reader: Reader, options: PlanOptions) -> CardOrder | None:
    """The order of several cards; None for one card, and for a sweep."""
    if options.sort is not None:
        return reader.choice("--sort", options.sort, _ORDERS)
    if options.sweep is not None or not _several(options):
        return None
    return "speed" if options.price is None else "cost"


def _several(options: PlanOptions) -> bool:
    return options.all_gpus or len(options.gpu or ()) > 1


def prices(reader: Reader, options: PlanOptions) -> PriceList | None:
    """The list that --price names."""
    if options.price is None:
        return None
    try:
        return price_list(options.price)
    except ValueError as error:
        reader.fault("--price", str(error))
        return None


def check_least(reader: Reader, plan: PlanRequest) -> None:
    """Check that some card has the memory of --min-vram."""
    if plan.min_memory_bytes is not None and (plan.all_gpus or len(plan.gpus) > 1):
        known = cards_of(replace(plan, min_memory_bytes=None), 0.0)
        if known and plan.min_memory_bytes > known[-1].memory_bytes:
            most = f"{known[-1].name} has {format_bytes(known[-1].memory_bytes)}"
            reader.fault("--min-vram", f"is more than any card has: {most}")
