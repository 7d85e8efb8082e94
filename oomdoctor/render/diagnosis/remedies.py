"""What helps: each change with what it gives back, on what basis, and the lines to type."""

from __future__ import annotations

from oomdoctor.records.diagnosis import Diagnosis, Remedy
from oomdoctor.render.blocks import Block, Facts, Note, Section, Verbatim
from oomdoctor.units import format_bytes

_SHOWN = 5  # remedies without --verbose
_LIBRARIES = ("trl", "transformers", "deepspeed", "accelerate", "lightning", "pytorch")
_BASIS = {"rule": "rule of thumb", "arithmetic": "computed"}


def remedies_section(found: Diagnosis, *, verbose: bool) -> Section:
    """The remedies in their order; without `verbose` the first, for the library in use."""
    missing = _missing(found)
    title = "What helps" + (f" ({format_bytes(missing)} are missing)" if missing else "")
    shown = found.remedies if verbose else found.remedies[:_SHOWN]
    blocks: list[Block] = []
    hidden = len(shown) < len(found.remedies)
    for number, remedy in enumerate(shown, 1):
        effect = _effect(remedy, missing, found.numbers.capacity_bytes)
        blocks.append(Facts(((f"{number}.", f"{remedy.change}: {effect}"),)))
        chosen = list(remedy.lines.items()) if verbose else _lines(found, remedy)
        hidden = hidden or len(chosen) < len(remedy.lines)
        size = max((len(name) for name, _ in chosen), default=0)
        if chosen:
            lines = tuple(f"      {name:<{size}}  {line}" for name, line in chosen)
            blocks.append(Verbatim(lines))
    if hidden:
        blocks.append(Note(_more(len(found.remedies) - len(shown))))
    return Section(title, tuple(blocks))


def _more(count: int) -> str:
    lines = "the lines for other libraries"
    return f"--verbose shows {f'{count} more, and {lines}' if count else lines}"


def _effect(remedy: Remedy, missing: int | None, capacity: int | None) -> str:
    told = [text for text in (remedy.arithmetic, remedy.note) if text]
    basis = _BASIS.get(remedy.basis, remedy.basis)
    if remedy.frees_bytes is None:
        return f"{'; '.join(told)} ({basis})" if told else f"({basis})"
    size = format_bytes(remedy.frees_bytes)
    # More than the card has cannot be freed; it is what the training would need less.
    beyond = capacity is not None and remedy.frees_bytes > capacity
    effect = f"needs about {size} less" if beyond else f"frees about {size}"
    if missing:
        enough = remedy.frees_bytes >= missing
        effect += f"{';' if enough else ', not enough alone:'} needed {format_bytes(missing)}"
    return f"{effect} ({': '.join([basis, '; '.join(told)] if told else [basis])})"


def _lines(found: Diagnosis, remedy: Remedy) -> list[tuple[str, str]]:
    """The lines of the library in the traceback, and those that need no library."""
    pairs = list(remedy.lines.items())
    wanted = {found.framework or "transformers", "pytorch"}
    chosen = [pair for pair in pairs if pair[0] in wanted or pair[0] not in _LIBRARIES]
    return pairs if len(pairs) < 3 else chosen or pairs


def _missing(found: Diagnosis) -> int | None:
    """Bytes that the request lacked; None where the message does not tell."""
    numbers = found.numbers
    if numbers.requested_bytes is None or numbers.free_bytes is None:
        return None
    return max(0, numbers.requested_bytes - numbers.free_bytes) or None
