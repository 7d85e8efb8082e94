"""The answer of `explain` as a page: the verdict, the card as a bar, the cause, the remedies.

Every text that a log brought in passes the escaping of `table` and `document` like any other.
"""

from __future__ import annotations

from oomdoctor.records.diagnosis import Cause, Diagnosis
from oomdoctor.records.report import Report
from oomdoctor.render.blocks import Block, Facts, Note, Section, Verbatim
from oomdoctor.render.diagnosis.card import card_blocks
from oomdoctor.render.diagnosis.logs import table_section
from oomdoctor.render.diagnosis.remedies import remedies_section
from oomdoctor.units import MIB

_NOTHING = (
    "If the run died without a word: the output of all ranks, stderr too (2>&1), the kernel's "
    "messages (dmesg -T) or the id of the Slurm job may tell."
)
_QUOTED = 2  # lines of evidence without --verbose
_ALSO_SHOWN = 5  # further failures of one log without --verbose


def diagnosis_sections(report: Report, *, verbose: bool) -> list[Section]:
    """The page: one source in full, several as one table (in full too with `verbose`)."""
    groups: dict[str, list[Diagnosis]] = {}
    for found in report.diagnoses:
        groups.setdefault(found.source, []).append(found)
    sections = [table_section(groups)] if len(groups) > 1 else []
    if len(groups) == 1 or verbose:
        for source, answers in groups.items():
            sections += _one_source(source, answers, verbose=verbose, titled=len(groups) > 1)
    if report.errors:
        pairs = [("error:", fault.message) for fault in report.errors]
        pairs += [("hint:", fault.hint) for fault in report.errors if fault.hint]
        sections.append(Section("Errors", (Facts(tuple(pairs)),)))
    slurm = [warning.message for warning in report.warnings if warning.code == "slurm"]
    others = [warning.message for warning in report.warnings if warning.code != "slurm"]
    for title, texts in (("Slurm says", slurm), ("Warnings", others)):
        if texts:
            sections.append(Section(title, tuple(Note(text, "normal") for text in texts)))
    if report.next_commands:
        sections.append(Section("Next:", (Verbatim(report.next_commands),)))
    return sections


def _one_source(
    source: str, found: list[Diagnosis], *, verbose: bool, titled: bool
) -> list[Section]:
    first = found[0]
    sections = [Section(source if titled else "", tuple(_head(first)))]
    card = card_blocks(first.numbers)
    facts = [*_facts(first), *([] if verbose else _evidence(first))]
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
            also.append(Note(f"--verbose shows {len(pairs) - len(shown)} more"))
        sections.append(Section(f"Also in this log ({len(pairs)})", tuple(also)))
    return sections


def _head(found: Diagnosis) -> list[Block]:
    head: list[Block] = [Note(found.verdict[:1].upper() + found.verdict[1:] + ".", "strong")]
    if found.causes:
        head.append(Note(f"Cause: {_named(found.causes[0], ' confidence')}.", "normal"))
    elif found.short_answer:
        head.append(Note(f"Try: {found.short_answer}", "normal"))
    elif not found.is_oom:
        head.append(Note(_NOTHING, "normal"))
    return head


def _named(cause: Cause, word: str = "") -> str:
    why = f": {cause.why}" if cause.why else ""
    return f"{cause.cause.replace('_', ' ')} ({cause.confidence}{word}){why}"


def _facts(found: Diagnosis) -> list[tuple[str, str]]:
    pairs = []
    if found.where is not None:
        line = "" if found.where.line is None else f":{found.where.line}"
        code = f": {found.where.code}" if found.where.code else ""
        pairs.append(("Your line", f"{found.where.file}{line} in {found.where.function}{code}"))
    if found.tensors:
        for number, tensor in enumerate(found.tensors[:3]):
            text = f"{tensor.arithmetic or tensor.name} ({tensor.likelihood} likelihood)"
            pairs.append(("or" if number else "Tensor", text))
    elif found.is_oom and found.resource == "gpu" and _tells_a_size(found):
        pairs.append(("Tensor", _no_tensor(found)))
    pairs += [("Odd", text) for text in found.oddities]
    pairs += [("and" if number else "Needs", text) for number, text in enumerate(found.needs)]
    if found.assumed:
        pairs.append(("Assumed", "; ".join(found.assumed)))
    return pairs


def _tells_a_size(found: Diagnosis) -> bool:
    """A request of 2 or 20 MiB is a segment for small tensors, which the oddities explain."""
    return found.numbers.requested_bytes not in (None, 2 * MIB, 20 * MIB)


def _no_tensor(found: Diagnosis) -> str:
    if not found.assumed:
        return "the model is not known: --model MODEL --seq-len N --micro-batch N would name it"
    return "no tensor of this model has the size that was asked for"


def _evidence(found: Diagnosis) -> list[tuple[str, str]]:
    """The lines that speak for the first cause, whole, and the other causes by name."""
    known = {tensor.arithmetic for tensor in found.tensors}  # stands among the facts already
    lines = found.causes[0].evidence if found.causes else found.evidence
    quoted = [line for line in lines if line not in known][:_QUOTED]
    pairs = [("and" if number else "Evidence", line) for number, line in enumerate(quoted)]
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
            blocks.append(Verbatim(tuple(f"  {line}" for line in cause.evidence)))
    if found.evidence:
        lines = tuple(f"  {line}" for line in found.evidence)
        blocks += [Note("the log", "normal"), Verbatim(lines)]
    return [Section("Causes and evidence", tuple(blocks))] if blocks else []


def _place(found: Diagnosis) -> str:
    return "elsewhere" if found.line_number is None else f"line {found.line_number}"
