"""The page of `explain`: the verdict and what to do first, the card as a bar, the cause, the rest.

Text from a log is not trusted: `formats` escapes it like all other text.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields
from pathlib import PurePath
from typing import Any

from oomdoctor.explain.diagnose import NOTHING_FOUND
from oomdoctor.explain.evidence import held_text
from oomdoctor.explain.remedies.wording import derivation, effect, is_certain, typed
from oomdoctor.records.facts.phases import OF_A_STEP
from oomdoctor.records.report.diagnosis import RESOURCE_WORDS, Cause, Diagnosis, Numbers, Remedy
from oomdoctor.records.report.report import Report
from oomdoctor.render.blocks import Block, Code, Column, Facts, Grid, Look, Note, Section, Verbatim
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
_FIRST = "Do this first"
_SHOWN = 5  # remedies without --verbose, the first included
_NEAR, _DEEPER = 4, 6  # spaces before code: below a sentence, and of a numbered remedy
_TENSORS = 3  # with --verbose
_FRAME = re.compile(r'File "([^"]*)", line (\d+), in (.*)')
_ANY_CALL = ("_wrapped_call_impl", "_call_impl", "wrapper", "decorate_context", "<module>")
_QUOTED = 2  # lines of evidence without --verbose
_ALSO_SHOWN = 5  # further failures of one log without --verbose
# The whole line, with the brackets and the size of the card, fits into 60 columns.
_BAR = 32
_BEYOND = 10


def diagnosis_rows(report: Report) -> Iterator[list[Any]]:
    """The answers as CSV: a row a diagnosis."""
    return record_rows(_CSV, report.diagnoses)


def answer_sections(report: Report, look: Look, *, asks: bool = True) -> list[Section]:
    """One source in full; several as a table, and in a verbose look each in full as well.

    With `asks` the answer names the options of `explain` that would tell more.
    """
    groups: dict[str, list[Diagnosis]] = {}
    for diagnosis in report.diagnoses:
        groups.setdefault(diagnosis.source, []).append(diagnosis)
    sections = [table_section(groups)] if len(groups) > 1 else []
    if len(groups) == 1 or look.verbose:
        for source, answers in groups.items():
            sections += _one_source(source, answers, look, titled=len(groups) > 1, asks=asks)
    return sections


def _one_source(
    source: str, diagnoses: list[Diagnosis], look: Look, *, titled: bool, asks: bool
) -> list[Section]:
    first, verbose = diagnoses[0], look.verbose
    sections = [Section(source if titled else "", tuple(_head(first)))]
    card = card_blocks(first.numbers, drawn=look.drawn)
    sections += [Section("", tuple(card))] if card else []
    facts = _facts(first, verbose=verbose)
    sections += [Section("", (Facts(tuple(facts)),))] if facts else []
    sections += _all_evidence(first) if verbose else []
    sections += _remedies(first, verbose=verbose, asks=asks)
    if len(diagnoses) > 1:
        pairs = tuple(
            (
                "elsewhere" if other.line_number is None else f"line {other.line_number}",
                other.verdict,
            )
            for other in diagnoses[1:]
        )
        shown = pairs if verbose else pairs[:_ALSO_SHOWN]
        also: list[Block] = [Facts(shown)]
        if len(shown) < len(pairs):
            also.append(Note(f"--verbose shows {len(pairs) - len(shown)} more."))
        sections.append(Section(f"Also in this log ({len(pairs)})", tuple(also)))
    return sections


def _head(diagnosis: Diagnosis) -> list[Block]:
    """What ran out and where, and what to do first: one line to type, and what it gives."""
    head: list[Block] = [Note(_sentence(diagnosis.verdict), "strong")]
    if diagnosis.no_way:
        head.append(Note(diagnosis.no_way, "normal"))
    if diagnosis.remedies:
        remedy = diagnosis.remedies[0]
        gives = effect(diagnosis, remedy)
        head += [Note(f"{_FIRST}: {remedy.change}", "strong"), *_typed(diagnosis, remedy, _NEAR)]
        head += [Note(_sentence(gives), "normal")] if gives else []
    elif diagnosis.short_answer:
        head.append(Note(f"{_FIRST}: {diagnosis.short_answer}", "normal"))
    elif not diagnosis.is_oom and not diagnosis.verdict.startswith(f"{NOTHING_FOUND}: "):
        head.append(Note(_NOTHING, "normal"))
    return head


def _typed(diagnosis: Diagnosis, remedy: Remedy, depth: int) -> list[Block]:
    """The line to type; nothing if the remedy has none."""
    lines = typed(diagnosis, remedy)
    return [Code(tuple(lines.items()), depth, not is_certain(diagnosis, lines))] if lines else []


def _sentence(text: str) -> str:
    return f"{text[:1].upper()}{text[1:]}" + ("" if text.endswith((".", "!", "?")) else ".")


def _named(cause: Cause, word: str = "") -> str:
    why = f": {cause.why}" if cause.why else ""
    name = cause.cause.replace("_", " ") + (f", {cause.detail}" if cause.detail else "")
    return f"{name} ({cause.confidence}{word}){why}"


def _facts(diagnosis: Diagnosis, *, verbose: bool) -> list[tuple[str, str]]:
    """The cause with its evidence, and what else is known; with `verbose` how it is known."""
    pairs = []
    if diagnosis.causes:
        pairs.append(("Cause", _named(diagnosis.causes[0], " confidence")))
    if not verbose:
        pairs += _evidence(diagnosis)
    if diagnosis.where is not None:
        line = "" if diagnosis.where.line is None else f":{diagnosis.where.line}"
        code = f": {diagnosis.where.code}" if diagnosis.where.code else ""
        pairs.append(
            ("Your line", f"{diagnosis.where.file}{line} in {diagnosis.where.function}{code}")
        )
    for number, tensor in enumerate(diagnosis.tensors[: _TENSORS if verbose else 1]):
        text = f"{tensor.arithmetic or tensor.name} ({tensor.likelihood} likelihood)"
        pairs.append(("or" if number else "Tensor", text))
    # A request of 2 or 20 MiB is a segment for small tensors, not a tensor; a note says so.
    sized = diagnosis.numbers.requested_bytes not in (None, 2 * MIB, 20 * MIB)
    if verbose and not diagnosis.tensors and diagnosis.assumed and sized:
        pairs.append(("Tensor", "no tensor of this model has the requested size"))
    if diagnosis.recovery is not None:
        pairs.append(("Recovery", diagnosis.recovery))
    if diagnosis.held is not None:
        held = f"{held_text(diagnosis.held)} (by {PurePath(diagnosis.held_source or '').name})"
        pairs.append(("Held", held))
    pairs += [("Note", text) for text in diagnosis.oddities]
    if verbose:
        pairs += [("" if number else "Needs", text) for number, text in enumerate(diagnosis.needs)]
    if diagnosis.simulated_bytes is not None:
        pairs.append(
            ("Simulated", f"the training peaks at {format_bytes(diagnosis.simulated_bytes)}")
        )
    if diagnosis.assumed:
        pairs.append(("Assumptions", "; ".join(diagnosis.assumed)))
    return pairs


def _evidence(diagnosis: Diagnosis) -> list[tuple[str, str]]:
    """The lines that support the first cause, and the other causes if it is not certain."""
    told = {*(tensor.arithmetic for tensor in diagnosis.tensors), *diagnosis.needs}  # already facts
    lines = diagnosis.causes[0].evidence if diagnosis.causes else diagnosis.evidence
    quoted = [_brief(line) for line in lines if line not in told and not _is_told(diagnosis, line)]
    shown = [line for line in quoted if line][:_QUOTED]
    pairs = [("" if number else "Evidence", line) for number, line in enumerate(shown)]
    others = [_in_short(cause) for cause in diagnosis.causes[1:] if cause.confidence != "low"]
    if others and diagnosis.causes[0].confidence != "high":
        pairs.append(("Less likely", ", ".join(others)))
    return pairs


def _in_short(cause: Cause) -> str:
    return f"{cause.cause.replace('_', ' ')} ({cause.confidence})"


def _is_told(diagnosis: Diagnosis, line: str) -> bool:
    """Whether a line is the message again, whose numbers the verdict and the bar have."""
    if diagnosis.numbers.requested_bytes is None:
        return False
    return line in diagnosis.message or diagnosis.message in line or "ried to allocate" in line


def _brief(line: str) -> str:
    """A frame of a traceback as `model.py:12 in forward: code`; empty if any call has it."""
    match = _FRAME.match(line)
    if match is None:
        return line
    file, number, rest = match.groups()
    return "" if rest.startswith(_ANY_CALL) else f"{PurePath(file).name}:{number} in {rest}"


def _all_evidence(diagnosis: Diagnosis) -> list[Section]:
    blocks: list[Block] = []
    for number, cause in enumerate(diagnosis.causes):
        blocks += [Note(_named(cause), "normal")] if number else []  # the first is a fact
        if cause.evidence:
            blocks.append(Facts(tuple(("evidence", line) for line in cause.evidence)))
    quoted = {line for cause in diagnosis.causes for line in cause.evidence}
    others = tuple(("log", line) for line in diagnosis.evidence if line not in quoted)
    if others:
        blocks.append(Facts(others))
    return [Section("Evidence and other causes", tuple(blocks))] if blocks else []


def table_section(groups: Mapping[str, Sequence[Diagnosis]]) -> Section:
    """One row a log, by its first diagnosis: the failure that ended it."""
    firsts = [alike[0] for alike in groups.values()]
    failed = sum(first.is_oom and not first.survived for first in firsts)
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


def _row(diagnosis: Diagnosis) -> tuple[str, ...]:
    named = _in_short(diagnosis.causes[0]) if diagnosis.causes else None
    return (
        diagnosis.source,
        _outcome(diagnosis),
        diagnosis.phase if diagnosis.is_oom and diagnosis.phase != "unknown" else "",
        "" if diagnosis.rank is None else str(diagnosis.rank),
        _size(diagnosis.numbers.requested_bytes),
        _size(diagnosis.numbers.free_bytes),
        named or (diagnosis.look_alike or "").replace("_", " "),
        diagnosis.remedies[0].change if diagnosis.remedies else diagnosis.short_answer or "",
    )


def _size(size: int | None) -> str:
    return "" if size is None else format_bytes(size)


def _outcome(diagnosis: Diagnosis) -> str:
    if not diagnosis.is_oom:
        # What the scheduler says, if there is nothing else to say.
        end = diagnosis.verdict.partition(f"{NOTHING_FOUND}: ")[2]
        return "other error" if diagnosis.look_alike else end or "no memory failure"
    return RESOURCE_WORDS[diagnosis.resource] + (", survived" if diagnosis.survived else "")


def card_blocks(numbers: Numbers, *, drawn: bool = False) -> list[Block]:
    """The bar and its legend. Where a chart has it, or without enough numbers, those there are."""
    bar = None if drawn else _bar(numbers)
    pairs = _legend(numbers, signs=bar is not None)
    if bar is not None:
        return [Verbatim((bar,)), Facts(tuple(pairs))]
    return [Facts(tuple(pairs))] if len(pairs) > 1 else []


def _bar(numbers: Numbers) -> str | None:
    """# this process, = others, . free, ! requested beyond that. None if it does not add up."""
    total, free = numbers.capacity_bytes or 0, numbers.free_bytes or 0
    others = numbers.other_processes_bytes or 0
    if not numbers.adds_up:
        return None
    cells = {sign: round(size / total * _BAR) for sign, size in (("=", others), (".", free))}
    body = "#" * max(0, _BAR - sum(cells.values())) + "=" * cells["="] + "." * cells["."]
    short = max(0, (numbers.requested_bytes or 0) - free)
    beyond = "!" * min(_BEYOND, max(1, round(short / total * _BAR))) if short else ""
    return f"[{body}]{beyond} of {format_bytes(total)}"


def _legend(numbers: Numbers, *, signs: bool) -> list[tuple[str, str]]:
    total, free = numbers.capacity_bytes, numbers.free_bytes
    others, requested = numbers.other_processes_bytes, numbers.requested_bytes
    pairs = [("card", format_bytes(total))] if total and not signs else []
    if numbers.adds_up and total and free is not None:
        own, sign = total - free - (others or 0), "# " if signs else ""
        size, parts = format_bytes(own), _parts(numbers, own)
        if others is None:  # then any process may hold what is not free
            pairs.append((f"{sign}in use", f"{size} by all processes{parts}"))
        else:
            pairs.append((f"{sign}this process", size + parts))
    else:
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
    told = [f"{format_bytes(size)} {word}" for size, word in parts if size and size != own]
    return f": {', '.join(told)}" if told else ""


def _remedies(diagnosis: Diagnosis, *, verbose: bool, asks: bool) -> list[Section]:
    """The remedies after the first one; with `verbose` all, with how their sizes are known.

    With `asks` the section also says which options of `explain` would tell more.
    """
    shown = diagnosis.remedies if verbose else diagnosis.remedies[1:_SHOWN]
    blocks: list[Block] = []
    for number, remedy in enumerate(shown, 1 if verbose else 2):
        gives = effect(diagnosis, remedy)
        pairs = [(f"{number}.", f"{remedy.change}: {gives}" if gives else remedy.change)]
        blocks.append(Facts((*pairs, ("", derivation(remedy))) if verbose else tuple(pairs)))
        if not verbose:
            blocks += _typed(diagnosis, remedy, _DEEPER)
        elif remedy.lines:
            blocks.append(Code(tuple(remedy.lines.items()), _DEEPER))
    blocks += [Note(text) for text in _asides(diagnosis, verbose=verbose, asks=asks)]
    title = "Remedies" if verbose and shown else "Other remedies" if shown else ""
    return [Section(title, tuple(blocks))] if blocks else []


def _asides(diagnosis: Diagnosis, *, verbose: bool, asks: bool) -> Iterator[str]:
    if any(
        remedy.leaves_bytes is not None and remedy.enough is None for remedy in diagnosis.remedies
    ):
        yield "Sizes leave out what grows with the batch: with it, the training needs more."
    count = len(diagnosis.remedies) - _SHOWN
    if not verbose and (count > 0 or any(len(remedy.lines) > 1 for remedy in diagnosis.remedies)):
        more = f"{count} more {'remedy' if count == 1 else 'remedies'} and " if count > 0 else ""
        yield f"--verbose shows {more}the code for other programs."
    if (
        asks
        and not diagnosis.assumed
        and diagnosis.resource == "gpu"
        and diagnosis.phase in OF_A_STEP
    ):
        yield "Add --model MODEL --seq-len N --micro-batch N for the sizes of this training."
