"""The figures of a failure: the card as a bar to scale, and what each sign stands for."""

from __future__ import annotations

from oomdoctor.records.diagnosis import Numbers
from oomdoctor.render.blocks import Block, Facts, Verbatim
from oomdoctor.units import format_bytes

# With its brackets, what lacks and the size of the card the line fits into 60 columns.
_BAR = 32
_BEYOND = 10


def card_blocks(numbers: Numbers) -> list[Block]:
    """The bar and its legend; only the figures where they do not make a bar; nothing for one."""
    bar = _bar(numbers)
    pairs = _legend(numbers, signs=bar is not None)
    if bar is not None:
        return [Verbatim((bar,)), Facts(tuple(pairs))]
    return [Facts(tuple(pairs))] if len(pairs) > 1 else []


def _bar(numbers: Numbers) -> str | None:
    """# ours, = others, . free; ! what was asked for beyond. None where it does not add up."""
    total, free = numbers.capacity_bytes, numbers.free_bytes
    others = numbers.other_processes_bytes or 0
    if not total or free is None or free + others > total:
        return None
    cells = {sign: round(size / total * _BAR) for sign, size in (("=", others), (".", free))}
    body = "#" * max(0, _BAR - sum(cells.values())) + "=" * cells["="] + "." * cells["."]
    lacking = max(0, (numbers.requested_bytes or 0) - free)
    beyond = "!" * min(_BEYOND, max(1, round(lacking / total * _BAR))) if lacking else ""
    return f"[{body}]{beyond} of {format_bytes(total)}"


def _legend(numbers: Numbers, *, signs: bool) -> list[tuple[str, str]]:
    total, free = numbers.capacity_bytes, numbers.free_bytes
    others, asked = numbers.other_processes_bytes, numbers.requested_bytes
    pairs: list[tuple[str, str]] = []
    if signs and total and free is not None:
        own = total - free - (others or 0)
        size, parts = format_bytes(own), _parts(numbers, own)
        if others is None:  # then what is not free may be anybody's
            pairs.append(("# in use", f"{size} by all processes{parts}"))
        else:
            pairs.append(("# ours", size + parts))
    else:
        pairs += [("card", format_bytes(total))] if total else []
        own = numbers.process_bytes or numbers.reserved_bytes or numbers.allocated_bytes or 0
        pairs += [("ours", f"{format_bytes(own)}{_parts(numbers, own)}")] if own else []
    if others is not None:
        pairs.append(("= others" if signs else "others", format_bytes(others)))
    if free is not None:
        pairs.append((". free" if signs else "free", format_bytes(free)))
    if numbers.allowed_bytes is not None:
        text = f"{format_bytes(numbers.allowed_bytes)} is all that this process may use"
        pairs.append(("limit", text))
    if asked is not None:
        pairs.append(("! asked" if signs else "asked", format_bytes(asked)))
    return pairs


def _parts(numbers: Numbers, own: int) -> str:
    """What our share is made of, as far as the message tells more than the share itself."""
    parts = [
        (numbers.allocated_bytes, "allocated"),
        (numbers.reserved_unallocated_bytes, "reserved but unallocated"),
        (numbers.private_pools_bytes, "in private pools"),
    ]
    told = [f"{format_bytes(size)} {word}" for size, word in parts if size and size != own]
    return f" ({', '.join(told)})" if told else ""
