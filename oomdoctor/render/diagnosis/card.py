"""The memory of a card at the failure: a bar to scale, and a legend with the sizes."""

from __future__ import annotations

from oomdoctor.records.diagnosis import Numbers
from oomdoctor.render.blocks import Block, Facts, Verbatim
from oomdoctor.units import format_bytes

# The whole line, with the brackets and the size of the card, fits into 60 columns.
_BAR = 32
_BEYOND = 10


def card_blocks(numbers: Numbers) -> list[Block]:
    """The bar and its legend. Without enough numbers for a bar, a list of those there are."""
    bar = _bar(numbers)
    pairs = _legend(numbers, signs=bar is not None)
    if bar is not None:
        return [Verbatim((bar,)), Facts(tuple(pairs))]
    return [Facts(tuple(pairs))] if len(pairs) > 1 else []


def _bar(numbers: Numbers) -> str | None:
    """# this process, = others, . free, ! requested beyond that. None if it does not add up."""
    total, free = numbers.capacity_bytes, numbers.free_bytes
    others = numbers.other_processes_bytes or 0
    if not total or free is None or free + others > total:
        return None
    cells = {sign: round(size / total * _BAR) for sign, size in (("=", others), (".", free))}
    body = "#" * max(0, _BAR - sum(cells.values())) + "=" * cells["="] + "." * cells["."]
    short = max(0, (numbers.requested_bytes or 0) - free)
    beyond = "!" * min(_BEYOND, max(1, round(short / total * _BAR))) if short else ""
    return f"[{body}]{beyond} of {format_bytes(total)}"


def _legend(numbers: Numbers, *, signs: bool) -> list[tuple[str, str]]:
    total, free = numbers.capacity_bytes, numbers.free_bytes
    others, requested = numbers.other_processes_bytes, numbers.requested_bytes
    pairs: list[tuple[str, str]] = []
    if signs and total and free is not None:
        own = total - free - (others or 0)
        size, parts = format_bytes(own), _parts(numbers, own)
        if others is None:  # then any process may hold what is not free
            pairs.append(("# in use", f"{size} by all processes{parts}"))
        else:
            pairs.append(("# this process", size + parts))
    else:
        pairs += [("card", format_bytes(total))] if total else []
        own = numbers.process_bytes or numbers.reserved_bytes or numbers.allocated_bytes or 0
        pairs += [("this process", f"{format_bytes(own)}{_parts(numbers, own)}")] if own else []
    if others is not None:
        pairs.append(("= other processes" if signs else "other processes", format_bytes(others)))
    if free is not None:
        pairs.append((". free" if signs else "free", format_bytes(free)))
    if numbers.allowed_bytes is not None:
        pairs.append(("limit", f"{format_bytes(numbers.allowed_bytes)} for this process"))
    if requested is not None:
        pairs.append(("! requested" if signs else "requested", format_bytes(requested)))
    return pairs


def _parts(numbers: Numbers, own: int) -> str:
    """How the process uses its memory, if the message says more than the total."""
    parts = [
        (numbers.allocated_bytes, "allocated"),
        (numbers.reserved_unallocated_bytes, "reserved but unallocated"),
        (numbers.private_pools_bytes, "in private pools"),
    ]
    known = [f"{format_bytes(size)} {word}" for size, word in parts if size and size != own]
    return f" ({', '.join(known)})" if known else ""
