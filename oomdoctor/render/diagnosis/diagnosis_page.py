"""The page of `explain`: the verdict, the cause, the card as a bar, the evidence, the remedies.

Text from a log is not trusted: `formats` escapes it like all other text.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import PurePath

from oomdoctor.explain.evidence import held_text
from oomdoctor.records.diagnosis import Cause, Diagnosis
from oomdoctor.records.report import Report
from oomdoctor.render.blocks import Block, Facts, Look, Note, Section
from oomdoctor.render.diagnosis.card import card_blocks
from oomdoctor.render.diagnosis.logs import table_section
from oomdoctor.render.diagnosis.remedies import remedies_section
from oomdoctor.units import MIB, format_bytes

_NOTHING = (
    "If the run died silently, try the output of all ranks with stderr (2>&1), the kernel log "
    "(dmesg -T) or the Slurm job id."
)
_QUOTED = 2  # lines of evidence without --verbose
_ALSO_SHOWN = 5  # further failures of one log without --verbose


def diagnosis_sections(report: Report, look: Look) -> list[Section]:
    """The answers, then errors, warnings and what to type next."""
    return answer_sections(report.diagnoses, verbose=look.verbose)


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
