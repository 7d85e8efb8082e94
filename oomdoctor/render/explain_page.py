"""The page of `explain`: the verdict, the cause, the card as a bar, the evidence, the remedies.

Text from a log is not trusted: `formats` escapes it like all other text.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields
from pathlib import PurePath
from typing import Any

from oomdoctor.explain.evidence import held_text
from oomdoctor.records.report.diagnosis import RESOURCE_WORDS, Cause, Diagnosis, Numbers, Remedy
from oomdoctor.records.report.report import Report
from oomdoctor.render.blocks import Block, Column, Facts, Grid, Look, Note, Section, Verbatim
from oomdoctor.render.formats.csv_rows import named, record_rows
from oomdoctor.render.words import counted
from oomdoctor.units import MIB, format_bytes

_NOTHING = (
    "If the run died silently, try the output of all ranks with stderr (2>&1), the kernel log "
    "(dmesg -T) or the Slurm job id."
)
_CSV = (
    *named(("source", "is_oom", "resource", "dialect", "phase", "rank", "step", "survived")),
    *named((field.name for field in fields(Numbers)), "numbers."),
    ("cause", "causes.0.cause"),
    ("confidence", "causes.0.confidence"),
    ("tensor", "tensor.name"),
    ("remedy", "remedies.0.change"),
    ("verdict", "verdict"),
)
_QUOTED = 2  # lines of evidence without --verbose
_ALSO_SHOWN = 5  # further failures of one log without --verbose


# The whole line, with the brackets and the size of the card, fits into 60 columns.
_BAR = 32
_BEYOND = 10


def diagnosis_sections(report: Report, look: Look) -> list[Section]:
    """The answers, then errors, warnings and what to type next."""
    return answer_sections(report.diagnoses, verbose=look.verbose)


def diagnosis_rows(report: Report) -> Iterator[list[Any]]:
    """The answers as CSV: a row a diagnosis."""
    return record_rows(_CSV, report.diagnoses)


def answer_sections(
    diagnoses: Sequence[Diagnosis], *, verbose: bool, asks: bool = True
) -> list[Section]:
    """One source in full; several as a table, and with `verbose` each in full as well.

    With `asks` the answer names the options of `explain` that would tell more.
    """
    groups: dict[str, list[Diagnosis]] = {}
    for found in diagnoses:
        groups.setdefault(found.source, []).append(found)
    sections = [table_section(groups)] if len(groups) > 1 else []
    if len(groups) == 1 or verbose:
        for source, answers in groups.items():
            sections += _one_source(
                source, answers, verbose=verbose, titled=len(groups) > 1, asks=asks
            )
    return sections


def _one_source(
    source: str, found: list[Diagnosis], *, verbose: bool, titled: bool, asks: bool
) -> list[Section]:
    first = found[0]
    sections = [Section(source if titled else "", tuple(_head(first)))]
    card = card_blocks(first.numbers)
    facts = [*_facts(first, asks=asks), *([] if verbose else _evidence(first))]
    sections += [Section("", tuple(card))] if card else []
    sections += [Section("", (Facts(tuple(facts)),))] if facts else []
    sections += _all_evidence(first) if verbose else []
    if first.remedies:
        sections.append(remedies_section(first, verbose=verbose))
    if len(found) > 1:
        pairs = tuple((_place(other), other.verdict) for other in found[1:])
        shown = pairs if verbose else pairs[:_ALSO_SHOWN]
        also: list[Block] = [Facts(shown)]
        if len(shown) < len(pairs):
            also.append(Note(f"--verbose shows {len(pairs) - len(shown)} more."))
        sections.append(Section(f"Also in this log ({len(pairs)})", tuple(also)))
    return sections


def _head(found: Diagnosis) -> list[Block]:
    head: list[Block] = [Note(found.verdict[:1].upper() + found.verdict[1:] + ".", "strong")]
    if found.causes:
        head.append(Note(f"Cause: {_named(found.causes[0], ' confidence')}.", "normal"))
    elif found.short_answer:
        head.append(Note(f"Try: {found.short_answer}", "normal"))
    elif not found.is_oom and ": " not in found.verdict:
        head.append(Note(_NOTHING, "normal"))
    return head


def _named(cause: Cause, word: str = "") -> str:
    why = f": {cause.why}" if cause.why else ""
    name = cause.cause.replace("_", " ") + (f", {cause.detail}" if cause.detail else "")
    return f"{name} ({cause.confidence}{word}){why}"


def _facts(found: Diagnosis, *, asks: bool) -> list[tuple[str, str]]:
    pairs = []
    if found.where is not None:
        line = "" if found.where.line is None else f":{found.where.line}"
        code = f": {found.where.code}" if found.where.code else ""
        pairs.append(("Your line", f"{found.where.file}{line} in {found.where.function}{code}"))
    if found.tensors:
        for number, tensor in enumerate(found.tensors[:3]):
            text = f"{tensor.arithmetic or tensor.name} ({tensor.likelihood} likelihood)"
            pairs.append(("or" if number else "Tensor", text))
    elif asks and found.is_oom and found.resource == "gpu" and _names_a_tensor(found):
        pairs.append(("Tensor", _no_tensor(found)))
    if found.recovery is not None:
        pairs.append(("Recovery", found.recovery))
    if found.held is not None:
        held = f"{held_text(found.held)} (by {PurePath(found.held_source or '').name})"
        pairs.append(("Held", held))
    pairs += [("Note", text) for text in found.oddities]
    pairs += [("" if number else "Needs", text) for number, text in enumerate(found.needs)]
    if found.simulated_bytes is not None:
        pairs.append(("Simulated", f"the training peaks at {format_bytes(found.simulated_bytes)}"))
    if found.assumed:
        pairs.append(("Assumptions", "; ".join(found.assumed)))
    return pairs


def _names_a_tensor(found: Diagnosis) -> bool:
    """A request of 2 or 20 MiB is a segment for small tensors, not a tensor; a note says so."""
    return found.numbers.requested_bytes not in (None, 2 * MIB, 20 * MIB)


def _no_tensor(found: Diagnosis) -> str:
    if not found.assumed:
        return "unknown; to identify it, pass --model MODEL --seq-len N --micro-batch N"
    return "no tensor of this model has the requested size"


def _evidence(found: Diagnosis) -> list[tuple[str, str]]:
    """The lines that support the first cause, in full, and the names of the other causes."""
    # already among the facts
    known = {*(tensor.arithmetic for tensor in found.tensors), *found.needs}
    lines = found.causes[0].evidence if found.causes else found.evidence
    quoted = [line for line in lines if line not in known][:_QUOTED]
    pairs = [("Evidence", line) for line in quoted]
    others = [
        f"{cause.cause.replace('_', ' ')} ({cause.confidence})"
        for cause in found.causes[1:]
        if cause.confidence != "low"
    ]
    return [*pairs, ("Less likely", ", ".join(others))] if others else pairs


def _all_evidence(found: Diagnosis) -> list[Section]:
    blocks: list[Block] = []
    for cause in found.causes:
        blocks.append(Note(_named(cause), "normal"))
        if cause.evidence:
            blocks.append(Facts(tuple(("evidence", line) for line in cause.evidence)))
    quoted = {line for cause in found.causes for line in cause.evidence}
    others = tuple(("log", line) for line in found.evidence if line not in quoted)
    if others:
        blocks.append(Facts(others))
    return [Section("Causes and evidence", tuple(blocks))] if blocks else []


def _place(found: Diagnosis) -> str:
    return "elsewhere" if found.line_number is None else f"line {found.line_number}"


def table_section(groups: Mapping[str, Sequence[Diagnosis]]) -> Section:
    """One row a log, by its first diagnosis: the failure that ended it."""
    firsts = [found[0] for found in groups.values()]
    failed = sum(one.is_oom and not one.survived for one in firsts)
    count = f"{failed} of {counted(len(firsts), 'log')} ended with an out-of-memory error"
    columns = (
        Column("log"),
        Column("outcome", tone=True),
        Column("phase", 3, detail="in {}"),
        Column("rank", 6, right=True, detail="rank {}"),
        Column("requested", 2, right=True, detail="requested {}"),
        Column("free", 5, right=True, detail="{} free"),
        Column("cause", 1, detail="cause {}"),
        Column("first remedy", 4, detail="try: {}", wraps=True),
    )
    return Section("", (Note(count, "strong"), Grid(columns, tuple(map(_row, firsts)))))


def _row(found: Diagnosis) -> tuple[str, ...]:
    cause = found.causes[0] if found.causes else None
    named = f"{cause.cause.replace('_', ' ')} ({cause.confidence})" if cause else None
    return (
        found.source,
        _outcome(found),
        found.phase if found.is_oom and found.phase != "unknown" else "",
        "" if found.rank is None else str(found.rank),
        _size(found.numbers.requested_bytes),
        _size(found.numbers.free_bytes),
        named or (found.look_alike or "").replace("_", " "),
        found.remedies[0].change if found.remedies else found.short_answer or "",
    )


def _size(size: int | None) -> str:
    return "" if size is None else format_bytes(size)


def _outcome(found: Diagnosis) -> str:
    if not found.is_oom:
        # What the scheduler says, if there is nothing else to say.
        end = found.verdict.partition(": ")[2]
        return "other error" if found.look_alike else end or "no memory failure"
    return RESOURCE_WORDS[found.resource] + (", survived" if found.survived else "")


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
