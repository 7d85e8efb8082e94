"""What helps: each change with the memory it frees, the basis of that size, and its code."""

from __future__ import annotations

from oomdoctor.records.diagnosis import Diagnosis, Remedy
from oomdoctor.render.blocks import Block, Facts, Note, Section, Verbatim
from oomdoctor.units import format_bytes

_SHOWN = 5  # remedies without --verbose
_LIBRARIES = ("trl", "transformers", "deepspeed", "accelerate", "lightning", "pytorch")
_BASIS = {"rule": "rule of thumb", "arithmetic": "computed", "predicted": "simulated"}


def remedies_section(found: Diagnosis, *, verbose: bool) -> Section:
    """The remedies in their order; without `verbose` the first ones, for the library in use."""
    short_by = found.short_bytes or _short_by(found)
    title = "What helps" + (f" (short by {format_bytes(short_by)})" if short_by else "")
    shown = found.remedies if verbose else found.remedies[:_SHOWN]
    blocks: list[Block] = [Note(found.no_way, "strong")] if found.no_way else []
    hidden = len(shown) < len(found.remedies)
    for number, remedy in enumerate(shown, 1):
        effect = _effect(remedy, short_by, found.numbers.capacity_bytes)
        blocks.append(Facts(((f"{number}.", f"{remedy.change}: {effect}"),)))
        chosen = list(remedy.lines.items()) if verbose else _lines(found, remedy)
        hidden = hidden or len(chosen) < len(remedy.lines)
        size = max((len(name) for name, _ in chosen), default=0)
        if chosen:
            lines = [_indented(name, line, size) for name, line in chosen]
            blocks.append(Verbatim(tuple(line for block in lines for line in block)))
    if hidden:
        blocks.append(Note(_more(len(found.remedies) - len(shown))))
    return Section(title, tuple(blocks))


def _more(count: int) -> str:
    code = "the code for other libraries"
    if not count:
        return f"--verbose shows {code}."
    return f"--verbose shows {count} more {'remedy' if count == 1 else 'remedies'} and {code}."


def _indented(name: str, lines: str, size: int) -> list[str]:
    """The lines for one library, with its name before the first one."""
    first, *others = lines.splitlines()
    return [f"      {name:<{size}}  {first}", *(f"      {'':<{size}}  {line}" for line in others)]


def _effect(remedy: Remedy, short_by: int | None, capacity: int | None) -> str:
    details = [text for text in (remedy.arithmetic, remedy.note) if text]
    basis = _BASIS.get(remedy.basis, remedy.basis)
    if remedy.frees_bytes is None:
        return f"{'; '.join(details)} ({basis})" if details else f"({basis})"
    size = format_bytes(remedy.frees_bytes)
    if remedy.leaves_bytes is not None and remedy.enough is not False:
        card = f" of {format_bytes(capacity)}" if capacity else ""
        least = "about " if remedy.enough else "at least "
        effect = f"then needs {least}{format_bytes(remedy.leaves_bytes)}{card}"
    else:
        # More than the card has cannot be freed: the training would need that much less.
        beyond = capacity is not None and remedy.frees_bytes > capacity
        effect = f"needs about {size} less" if beyond else f"frees about {size}"
        if short_by and remedy.frees_bytes < short_by:
            effect += ", not enough alone"
    return f"{effect} ({': '.join([basis, '; '.join(details)] if details else [basis])})"


def _lines(found: Diagnosis, remedy: Remedy) -> list[tuple[str, str]]:
    """The code for the library in the traceback, and what needs no library."""
    pairs = list(remedy.lines.items())
    wanted = {found.framework or "transformers", "pytorch"}
    if remedy.parts:  # several lines for each library: one library is enough
        known = [name for name in (found.framework, "transformers", "pytorch") if name]
        wanted = {next((name for name in known if name in remedy.lines), "pytorch")}
    chosen = [pair for pair in pairs if pair[0] in wanted or pair[0] not in _LIBRARIES]
    return pairs if len(pairs) < 3 and not remedy.parts else chosen or pairs


def _short_by(found: Diagnosis) -> int | None:
    """How much of the request was not free; for reports that older versions wrote."""
    numbers = found.numbers
    if numbers.requested_bytes is None or numbers.free_bytes is None:
        return None
    return max(0, numbers.requested_bytes - numbers.free_bytes) or None
