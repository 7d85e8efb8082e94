"""The answer of `explain` as a page: the verdict, the card as a bar, the cause, the remedies.

Every text that a log brought in passes the escaping of `table` and `document` like any other.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from dataclasses import fields

from oomdoctor.records.diagnosis import Diagnosis, Numbers, Remedy
from oomdoctor.records.report import Report
from oomdoctor.render.blocks import Block, Column, Facts, Grid, Note, Section, Verbatim
from oomdoctor.render.text import one_line
from oomdoctor.units import DASH, MIB, format_bytes

_BAR = 50  # columns of the card
_SHOWN = 5  # remedies without --verbose
_QUOTED = 220  # characters of a quoted line without --verbose
_LIBRARIES = ("trl", "transformers", "deepspeed", "accelerate", "lightning", "pytorch")


def diagnosis_sections(report: Report, *, verbose: bool) -> list[Section]:
    """The page: one source in full, several as one table (in full too with `verbose`)."""
    groups: dict[str, list[Diagnosis]] = {}
    for found in report.diagnoses:
        groups.setdefault(found.source, []).append(found)
    sections = []
    if len(groups) > 1:
        firsts = [found[0] for found in groups.values()]
        sections.append(Section("", (Note(_count(firsts), "strong"), _table(groups))))
    if len(groups) == 1 or verbose:
        for source, answers in groups.items():
            sections += _one_source(source, answers, verbose=verbose, titled=len(groups) > 1)
    if report.errors:
        pairs = [("error:", fault.message) for fault in report.errors]
        pairs += [("hint:", fault.hint) for fault in report.errors if fault.hint]
        sections.append(Section("Errors", (Facts(tuple(pairs)),)))
    if report.warnings:
        notes = tuple(Note(warning.message, "normal") for warning in report.warnings)
        sections.append(Section("Warnings", notes))
    if report.next_commands:
        sections.append(Section("Next:", (Verbatim(report.next_commands),)))
    return sections


def diagnoses_csv(report: Report) -> str:
    """One row a diagnosis; sizes in bytes, unknown is empty."""
    numbers = [field.name for field in fields(Numbers)]
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    head = ["source", "is_oom", "resource", "dialect", "phase", "rank", "step", "survived"]
    writer.writerow([*head, *numbers, "cause", "confidence", "tensor", "remedy", "verdict"])
    for found in report.diagnoses:
        cause = found.causes[0] if found.causes else None
        cells = [getattr(found, name) for name in head]
        cells += [getattr(found.numbers, name) for name in numbers]
        cells += [cause and cause.cause, cause and cause.confidence]
        cells += [found.tensor and found.tensor.name]
        cells += [found.remedies[0].change if found.remedies else None, found.verdict]
        writer.writerow([_cell(value) for value in cells])
    return out.getvalue()


def _count(found: Sequence[Diagnosis]) -> str:
    failed = sum(one.is_oom and not one.survived for one in found)
    return f"{failed} of {len(found)} logs ended out of memory"


def _table(groups: dict[str, list[Diagnosis]]) -> Grid:
    rows = []
    for source, all_found in groups.items():
        found = all_found[0]
        cause = found.causes[0] if found.causes else None
        rows.append(
            (
                source,
                _outcome(found),
                found.phase if found.is_oom else "",
                DASH if found.rank is None else str(found.rank),
                format_bytes(found.numbers.requested_bytes) if found.is_oom else "",
                format_bytes(found.numbers.free_bytes) if found.is_oom else "",
                f"{cause.cause} ({cause.confidence})" if cause else found.look_alike or "",
                found.remedies[0].change if found.remedies else found.short_answer or "",
            )
        )
    columns = (
        Column("log"),
        Column("outcome", tone=True),
        Column("phase", 3, detail="in {}"),
        Column("rank", 6, right=True, detail="rank {}"),
        Column("asked", 2, right=True, detail="asked for {}"),
        Column("free", 5, right=True, detail="{} free"),
        Column("cause", 1, detail="cause {}"),
        Column("first remedy", 4, detail="try: {}", wraps=True),
    )
    return Grid(columns, tuple(rows))


def _outcome(found: Diagnosis) -> str:
    if not found.is_oom:
        return "not memory" if found.look_alike else "no memory failure"
    where = {"gpu": "out of GPU memory", "host": "out of host memory", "shm": "out of /dev/shm"}
    return where.get(found.resource, "out of memory") + (", survived" if found.survived else "")


def _one_source(
    source: str, found: list[Diagnosis], *, verbose: bool, titled: bool
) -> list[Section]:
    first = found[0]
    head: list[Block] = [Note(_sentence(first.verdict), "strong")]
    if first.causes:
        cause = first.causes[0]
        word = cause.cause.replace("_", " ")
        head.append(Note(f"Cause: {word} ({cause.confidence} confidence): {cause.why}.", "normal"))
    elif first.short_answer:
        head.append(Note(f"Try: {first.short_answer}", "normal"))
    bar = _bar(first.numbers)
    sections = [Section(source if titled else "", tuple(head))]
    if bar:
        sections.append(Section("", (Verbatim(bar),)))
    facts = _facts(first)
    if facts:
        sections.append(Section("", (Facts(tuple(facts)),)))
    sections += _evidence(first, verbose=verbose)
    if first.remedies:
        sections.append(_remedies(first, verbose=verbose))
    if len(found) > 1:
        pairs = tuple((_place(other), other.verdict) for other in found[1:])
        shown = pairs if verbose else pairs[:5]
        title = f"Also in this log ({len(pairs)})"
        sections.append(Section(title, (Facts(shown),)))
    return sections


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:] + "."


def _facts(found: Diagnosis) -> list[tuple[str, str]]:
    pairs = []
    if found.where is not None:
        line = "" if found.where.line is None else f":{found.where.line}"
        code = f"  {found.where.code}" if found.where.code else ""
        pairs.append(("Your line", f"{found.where.file}{line} in {found.where.function}{code}"))
    if found.tensors:
        for number, tensor in enumerate(found.tensors[:3]):
            text = f"{tensor.arithmetic or tensor.name} ({tensor.likelihood} likelihood)"
            pairs.append(("Tensor" if not number else "  or", text))
    elif found.is_oom and found.resource == "gpu" and _tells_a_size(found):
        pairs.append(("Tensor", _no_tensor(found)))
    pairs += [("Odd", text) for text in found.oddities]
    pairs += [("" if number else "Needs", text) for number, text in enumerate(found.needs)]
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


def _evidence(found: Diagnosis, *, verbose: bool) -> list[Section]:
    if not found.causes:
        lines = found.evidence if verbose else found.evidence[:2]
        return [Section("Evidence", (Verbatim(tuple(map(_quote, lines))),))] if lines else []
    if verbose:
        blocks: list[Block] = []
        for cause in found.causes:
            text = f"{cause.cause} ({cause.confidence}): {cause.why}"
            blocks += [Note(text, "normal"), Verbatim(tuple(f"  {q}" for q in cause.evidence))]
        lines = tuple(f"  {line}" for line in found.evidence)
        blocks += [Note("the log", "normal"), Verbatim(lines)] if lines else []
        return [Section("Causes and evidence", tuple(blocks))]
    blocks = [Verbatim(tuple(map(_quote, found.causes[0].evidence[:2])))]
    others = [
        f"{c.cause.replace('_', ' ')} ({c.confidence})"
        for c in found.causes[1:]
        if c.confidence != "low"
    ]
    blocks += [Note("Less likely: " + ", ".join(others), "normal")] if others else []
    return [Section("Evidence", tuple(blocks))]


def _remedies(found: Diagnosis, *, verbose: bool) -> Section:
    missing = _missing(found)
    title = "What helps" + (f" ({format_bytes(missing)} are missing)" if missing else "")
    shown = found.remedies if verbose else found.remedies[:_SHOWN]
    blocks: list[Block] = []
    for number, remedy in enumerate(shown, 1):
        effect = _effect(remedy, found.numbers.capacity_bytes)
        blocks.append(Note(f"{number}. {remedy.change}: {effect}", "normal"))
        chosen = _lines(found, remedy, verbose=verbose)
        size = max((len(name) for name, _ in chosen), default=0)
        blocks.append(Verbatim(tuple(f"     {name:<{size}}  {line}" for name, line in chosen)))
    left = len(found.remedies) - len(shown)
    if left:
        blocks.append(Note(f"{left} more, and the lines for other libraries, with --verbose"))
    return Section(title, tuple(blocks))


def _effect(remedy: Remedy, capacity: int | None) -> str:
    basis = {"rule": "rule of thumb", "arithmetic": "computed"}.get(remedy.basis, remedy.basis)
    told = [remedy.arithmetic] if remedy.arithmetic else []
    told += [remedy.note] if remedy.note else []
    if remedy.frees_bytes is None:
        return f"{'; '.join(told)} ({basis})"
    size = format_bytes(remedy.frees_bytes)
    # More than the card has cannot be freed; it is what the training would need less.
    beyond = capacity is not None and remedy.frees_bytes > capacity
    effect = f"needs about {size} less" if beyond else f"frees about {size}"
    return f"{effect} ({basis}: {'; '.join(told)})"


def _lines(found: Diagnosis, remedy: Remedy, *, verbose: bool) -> list[tuple[str, str]]:
    """All lines, or those of the library in the traceback and what needs no library."""
    pairs = list(remedy.lines.items())
    if verbose or len(pairs) < 3:
        return pairs
    wanted = {found.framework or "transformers", "pytorch"}
    chosen = [pair for pair in pairs if pair[0] in wanted or pair[0] not in _LIBRARIES]
    return chosen or pairs


def _missing(found: Diagnosis) -> int | None:
    numbers = found.numbers
    if numbers.requested_bytes is None or numbers.free_bytes is None:
        return None
    return max(0, numbers.requested_bytes - numbers.free_bytes) or None


def _bar(numbers: Numbers) -> tuple[str, ...]:
    """The card to scale: # this process, = other processes, . free; ! what was asked beyond."""
    total, free = numbers.capacity_bytes, numbers.free_bytes
    if not total or free is None or free > total:
        return ()
    others = numbers.other_processes_bytes or 0
    own = total - free - others
    if own < 0:
        return ()
    cells = {sign: round(size / total * _BAR) for sign, size in (("=", others), (".", free))}
    body = "#" * max(0, _BAR - sum(cells.values())) + "=" * cells["="] + "." * cells["."]
    parts = [f"# this process {format_bytes(own)}"]
    unallocated = numbers.reserved_unallocated_bytes
    if unallocated:
        parts[0] += f" ({format_bytes(unallocated)} of it unallocated)"
    if numbers.other_processes_bytes is not None:
        parts.append(f"= others {format_bytes(others)}")
    parts.append(f". free {format_bytes(free)}")
    beyond = ""
    if numbers.requested_bytes is not None:
        lacking = numbers.requested_bytes - free
        share = min(_BAR // 2, max(1, round(lacking / total * _BAR))) if lacking > 0 else 0
        beyond = "!" * share
        parts.append(f"! asked {format_bytes(numbers.requested_bytes)}")
    return (f"[{body}]{beyond}  of {format_bytes(total)}", "  ".join(parts))


def _place(found: Diagnosis) -> str:
    return "elsewhere" if found.line_number is None else f"line {found.line_number}"


def _quote(line: str) -> str:
    text = one_line(line)
    return text if len(text) <= _QUOTED else text[: _QUOTED - 4] + " ..."


def _cell(value: object) -> str | int:
    if value is None:
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return value
    text = one_line(str(value))
    return f"'{text}" if text.startswith(("=", "+", "-", "@")) and text != "-" else text
