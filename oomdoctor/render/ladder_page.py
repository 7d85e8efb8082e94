"""The page of `probe` and `plan`: its sections, their order, and their parts in a browser."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from oomdoctor.package_data import rows_of
from oomdoctor.records.job.machine import Machine
from oomdoctor.records.report.report import Report
from oomdoctor.render import blocks
from oomdoctor.render.blocks import Facts, Look, Note, Part, Section, Verbatim
from oomdoctor.render.charts.parts import bar_sections
from oomdoctor.render.ladder.answer import answer_lines
from oomdoctor.render.ladder.details import detail_sections, version_sections
from oomdoctor.render.ladder.header import header, is_plan
from oomdoctor.render.ladder.row_lengths import length_sections
from oomdoctor.render.ladder.rungs import rung_sections
from oomdoctor.render.ladder.yours import your_sections
from oomdoctor.render.plan.sections import plan_sections
from oomdoctor.units import format_bytes

_OPENED_BY = {
    "snapshot": "`oomdoctor snapshot` reads it",
    "trace": "open it in Perfetto (ui.perfetto.dev) or chrome://tracing",
}


@dataclass(frozen=True, slots=True)
class Entry:
    """Sections of the page, and the part that they belong to in a browser.

    Without `text` they are in that page only, without `part` they are not in it. Text has those
    with `verbose` only if all is asked for.
    """

    make: Callable[[Report, Look], list[Section]]
    part: str = ""
    verbose: bool = False
    text: bool = True


def report_sections(report: Report, look: Look) -> list[Section]:
    """The report as sections, in the order of text."""
    entries = [entry for entry in ENTRIES if entry.text and (look.verbose or not entry.verbose)]
    return [section for entry in entries for section in entry.make(report, look)]


def report_parts(report: Report) -> list[Part]:
    """The report in parts, in the order of a page for a browser: with everything, and charts."""
    held: dict[str, list[Section]] = {part.name: [] for part in PARTS}
    for entry in ENTRIES:
        for section in entry.make(report, Look(verbose=True)) if entry.part else ():
            held[section.part or entry.part].append(section)
    return [replace(part, sections=tuple(held[part.name])) for part in PARTS]


def _head(report: Report, look: Look) -> list[Section]:
    first, *others = answer_lines(report, look.plus_minus)
    return [Section("", (Note(first, "strong"), *(Note(text, "normal") for text in others)))]


def _next(report: Report, look: Look) -> list[Section]:
    """What to type next: in short the first command."""
    if look.verbose:
        return blocks.next_sections(report)
    commands = (*report.next_commands, *report.next_on_gpu)
    return [Section("Next:", (Verbatim(commands[:1]),))] if commands else []


def _files(report: Report, _: Look) -> list[Section]:
    """What was recorded, and what opens it."""
    pairs = tuple(
        (file.kind, f"{file.label} at micro-batch {file.micro_batch_size}: {file.path}; {opened}")
        for file in report.files
        for opened in (_OPENED_BY[file.kind],)
    )
    return [Section("Recorded", (Facts(pairs),))] if pairs else []


def _environment(report: Report, _: Look) -> list[Section]:
    """The hardware and the libraries, which text has with its details."""
    if report.machine is None:
        return []
    machine = report.machine
    versions = {name: version for name, version in machine.versions.items() if version}
    pairs = [*_devices(report, machine), *((name, version) for name, version in versions.items())]
    missing = sorted(name for name, version in machine.versions.items() if not version)
    if missing:
        pairs.append(("not installed", ", ".join(missing)))
    return [Section("", (Facts(tuple(pairs)),))] if pairs else []


def _devices(report: Report, machine: Machine) -> list[tuple[str, str]]:
    """The hardware; of a plan it is another machine's, so only the libraries are known."""
    if is_plan(report):
        return []
    cpu = f"{machine.cpu_name or 'unknown model'}, {machine.cpu_count} cores"
    pairs = [("CPU", cpu), ("host memory", format_bytes(machine.memory_bytes))]
    if machine.gpu_name:
        pairs.insert(0, ("GPU", f"{machine.gpu_name}, {format_bytes(machine.total_bytes)}"))
    if machine.driver_version:
        pairs.insert(1, ("driver", machine.driver_version))
    if machine.slurm_job_id:
        pairs.append(("Slurm job", machine.slurm_job_id))
    return pairs


ENTRIES = (
    Entry(_head, "summary"),
    Entry(header, "environment", verbose=True),
    Entry(lambda report, _: blocks.error_sections(report), "errors"),
    Entry(your_sections, "yours"),
    Entry(rung_sections, "ranking"),
    Entry(bar_sections, verbose=True),  # a browser has the chart
    Entry(plan_sections, "plan"),
    Entry(_files, "files"),
    Entry(length_sections, "data"),
    Entry(lambda report, _: blocks.warning_sections(report), "warnings"),
    Entry(detail_sections, "details", verbose=True),
    Entry(version_sections, verbose=True),
    Entry(_environment, "environment", text=False),
    Entry(_next, "next"),
)
PARTS = rows_of(Part, "report_parts.toml")
